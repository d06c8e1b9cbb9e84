use std::io;

use http::HeaderMap;

use crate::http1::ProtoError;

/// A request body between the connection that receives it and the handler that reads it.
pub(crate) trait Pipe: Clone {
    /// Adds bytes.
    fn push(&self, data: &[u8]);

    /// The body is complete.
    fn complete(&self, trailers: HeaderMap);

    /// The body is malformed, and is not received any further.
    fn refuse(&self, error: ProtoError);

    /// The rest of the body will never arrive.
    fn abort(&self, reason: io::ErrorKind);

    /// Decides who receives next. After anything but [`Receiver::Connection`], the handler must report when that
    /// changes. Only called while the connection does not receive.
    fn receiver(&self) -> Receiver;

    /// Whether to continue receiving, for handlers that cannot receive themselves. After `false`, the handler must ask
    /// for more.
    fn has_room(&self) -> bool {
        self.receiver() == Receiver::Connection
    }

    /// Whether the handler has begun to read. Until then the body waits for a thread.
    fn has_begun(&self) -> bool;

    /// Bytes of the body that the handler has received itself since the last call.
    fn take_received(&self) -> u64;

    /// Whether the connection waits for the handler to read.
    fn is_paused(&self) -> bool;
}

/// Who receives more of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// The connection: what it receives is [pushed](Pipe::push).
    Connection,
    /// The handler, straight from the socket.
    Handler,
    /// Nobody, until the handler has read the buffered bytes.
    Nobody,
}
