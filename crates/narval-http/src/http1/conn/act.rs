use bytes::Bytes;
use http::HeaderMap;

use super::body_memory::Buffered;
use super::closing::End;
use super::over::Close;
use super::service::Exchange;
use crate::http1::head::ParsedHead;

/// The next action for a connection. After each except the last three, report its result to the connection, which
/// returns the next one.
pub(crate) enum Act<X: Exchange> {
    /// Send the gathered responses. If all were sent: [`sent`](super::Conn::sent); otherwise
    /// [`sending`](super::Conn::sending) and, once they are sent, [`flushed`](super::Conn::flushed).
    Write(Then<X>),
    /// Start sending this response, or have a worker send it.
    Answer(Box<X::Answer>),
    /// Send more of the connection's response: [`drove`](super::Conn::drove).
    Drive,
    /// Have a worker produce and send the next piece of this response.
    Continue(Box<X::Answer>),
    /// Have a worker answer this request: [`dispatched`](super::Conn::dispatched) or [`refused`](super::Conn::refused).
    Job(Request<X>),
    /// The answer to the last request follows later: it has the lease.
    Later(X::Later),
    /// Wait for the events in [`Wants`](super::Wants).
    Wait,
    /// Wait for those, and for the socket to become writable.
    AwaitRoom,
    /// End the connection.
    End(End),
    /// Drop the connection at once.
    Drop,
}

/// What follows once the gathered responses are sent.
pub(crate) enum Then<X: Exchange> {
    /// Nothing: all input is used.
    Wait,
    /// The next request.
    Next,
    /// This request, whose head is still in the input.
    Begin(Box<ParsedHead>),
    /// An answer that follows later.
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
