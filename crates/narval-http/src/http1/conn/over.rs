use crate::limits::{CLOSE_AT_ONCE_MAX, LARGE_ANSWER};

/// How a connection ends after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// Cleanly. `large`: much of the answer may still be on its way, and the client's end is waited for.
    Clean { large: bool },
    /// With a reset: the answer is not complete.
    Abort,
}

impl Close {
    /// After an answer of `sent` bytes that ends the connection.
    pub(crate) fn after(sent: u64) -> Self {
        Self::Clean { large: sent > CLOSE_AT_ONCE_MAX }
    }
}

/// What follows a piece of an answer that was sent, or could not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: the answer is complete, or was aborted.
    Over(Over),
    /// The next piece, when the socket takes more.
    AtRoom,
    /// The next piece, when the source has more.
    AtSource,
    /// The next piece: the budget is used up, and the socket may take more.
    AtOnce,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    /// How the connection is to be closed; `None`: it is kept for the next request.
    pub(crate) close: Option<Close>,
    /// Whether much of the answer may still be in the kernel's send buffer.
    pub(crate) large: bool,
}

impl Over {
    /// After an answer of which all `sent` bytes are out.
    pub(crate) fn complete(keep_alive: bool, sent: u64) -> Self {
        Self { close: (!keep_alive).then(|| Close::after(sent)), large: sent > LARGE_ANSWER }
    }

    /// After an answer that can't be completed.
    pub(crate) const ABORTED: Self = Self { close: Some(Close::Abort), large: false };
}
