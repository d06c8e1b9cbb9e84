use bytes::Bytes;
use http::HeaderMap;

use super::body_memory::Buffered;
use super::over::Close;
use super::service::Exchange;
use crate::http1::head::ParsedHead;

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

#[cfg(test)]
const _: () = assert!(size_of::<Act<crate::io::sim::connection::Carried>>() <= 64, "it is moved for every request");
