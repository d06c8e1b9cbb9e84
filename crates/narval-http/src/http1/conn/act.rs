use bytes::Bytes;
use http::HeaderMap;

use super::body_memory::Buffered;
use super::service::Exchange;
use crate::http1::head::ParsedHead;
use crate::limits::{CLOSE_AT_ONCE_MAX, LARGE_ANSWER};

/// What is to be done for a connection next. After each but the last three, the connection is told what came of it, and says what
/// follows.
pub(crate) enum Act<X: Exchange> {
    /// Send the answers that were collected. All out: [`sent`](super::Conn::sent); if not, [`sending`](super::Conn::sending) and, when
    /// they are out, [`flushed`](super::Conn::flushed).
    Write(Then<X>),
    /// Begin to send this answer, or have it sent.
    Answer(Box<X::Answer>),
    /// Send more of the answer that the connection keeps: [`drove`](super::Conn::drove).
    Drive,
    /// Have a worker make and send the next piece of this answer.
    Continue(Box<X::Answer>),
    /// Have a worker answer this request: [`dispatched`](super::Conn::dispatched) or [`refused`](super::Conn::refused).
    Job(Request<X>),
    /// The answer to the last request comes later: it has the lease.
    Later(X::Later),
    /// Wait for what [`Wants`](super::Wants) says.
    Wait,
    /// Wait for that, and for the socket to take more.
    AwaitRoom,
    /// End the connection.
    End(Close),
    /// Drop the connection at once.
    Drop,
}

/// What follows when the answers that were collected are out.
pub(crate) enum Then<X: Exchange> {
    /// Nothing: all input was used.
    Wait,
    /// The next request.
    Next,
    /// This request, whose head is still in the input.
    Begin(Box<ParsedHead>),
    /// An answer that comes later.
    Later(X::Later),
    /// The end of the connection.
    Close(Close),
}

/// A request for a worker.
pub(crate) struct Request<X: Exchange> {
    pub(crate) bytes: Bytes,
    pub(crate) head: Box<ParsedHead>,
    pub(crate) body: Body<X>,
}

/// The body of a request for a worker.
pub(crate) enum Body<X: Exchange> {
    None,
    Buffered(Box<(Buffered, HeaderMap)>),
    Streamed(X::Pipe),
}

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

#[cfg(test)]
const _: () = assert!(size_of::<Act<crate::io::sim::connection::Carried>>() <= 64, "it is moved for every request");
