//! What a shard tells its connections, whatever they speak.

use std::io;

use crate::io::clock::Millis;
use crate::io::over::Close;
use crate::run::mailbox::Note;

/// What has happened.
pub(crate) enum Event<'a> {
    /// Bytes came from the client, decrypted.
    Received(&'a [u8]),
    /// The client has ended its input (`UnexpectedEof`; it may still read), or the connection broke.
    InputEnded(io::ErrorKind),
    /// The layer below can no longer decode the client's input, and has an alert to send.
    Undecodable,
    /// The socket is writable again.
    Writable,
    /// The deadline may have passed.
    Tick,
    /// The server stops.
    Stop,
    /// HTTP/1: the last request is answered, and the connection is kept unless it has to close.
    Answered(Option<Close>),
    /// HTTP/1: it was answered at that time by a job that has ended without a message, and no input is left.
    AnsweredAt(Millis),
    /// What was gathered waits for the socket. For HTTP/1, [`Answered`](Self::Answered) follows.
    Unsent,
    /// Everything so far is sent. HTTP/1: there may be input to use.
    Ready,
    /// HTTP/2: no worker takes the request of this stream.
    Refused(u32),
    /// HTTP/2: it has no request, and another connection gets its place.
    GivenUp,
    /// From another thread: about the connection, or (unless it is 0) one of its streams.
    Noted(u32, Note),
}
