use crate::limits::{CLOSE_AT_ONCE_MAX, LARGE_ANSWER};

/// How a connection ends after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// Cleanly. `large`: much of the response may still be in flight, so wait for the client to close.
    Clean { large: bool },
    /// With a reset: the response is incomplete.
    Abort,
}

impl Close {
    /// After a response of `sent` bytes that ends the connection.
    pub(crate) fn after(sent: u64) -> Self {
        Self::Clean { large: sent > CLOSE_AT_ONCE_MAX }
    }
}

/// What follows a piece of a response that was sent, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: the response is complete, or was aborted.
    Over(Over),
    /// The next piece, when the socket is writable.
    AtRoom,
    /// The next piece, when the source has data.
    AtSource,
    /// The next piece: the budget is used up, and the socket may have room.
    AtOnce,
}

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    /// How to close the connection; `None` if it is kept for the next request.
    pub(crate) close: Option<Close>,
    /// Whether much of the response may still be in the kernel's send buffer.
    pub(crate) large: bool,
}

impl Over {
    /// After a response whose `sent` bytes are all sent.
    pub(crate) fn complete(keep_alive: bool, sent: u64) -> Self {
        Self { close: (!keep_alive).then(|| Close::after(sent)), large: sent > LARGE_ANSWER }
    }

    /// After a response that cannot be completed.
    pub(crate) const ABORTED: Self = Self { close: Some(Close::Abort), large: false };
}
