use bytes::Bytes;
use http::HeaderMap;

use super::body_memory::Buffered;
use super::closing::End;
use super::service::Exchange;
use crate::http1::head::ParsedHead;

/// The next action for a connection, once the gathered responses are sent.
pub(crate) enum Act<X: Exchange> {
    /// Wait for the events in [`Wants`](super::Wants).
    Wait,
    /// There is more input to use: [`Conn::go_on`](super::Conn::go_on).
    Again,
    /// Send this response: [`answered`](super::Conn::answered) at its end. It includes the gathered ones.
    Answer(Box<X::Answer>),
    /// Have a worker answer this request: [`dispatched`](super::Conn::dispatched) or [`refused`](super::Conn::refused), and then
    /// [`answered`](super::Conn::answered).
    Job(Request<X>),
    /// The answer to the last request follows later: [`answered`](super::Conn::answered).
    Later(X::Later),
    /// End the connection.
    End(End),
    /// Drop the connection at once.
    Drop,
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
