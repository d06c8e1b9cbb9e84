//! What a shard tells its connections, whatever they speak.

use std::io;

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
    /// The deadline may have passed.
    Tick,
    /// The server stops.
    Stop,
    /// HTTP/1: the last request is answered, and the connection is kept unless it has to close.
    Answered(Option<Close>),
    /// HTTP/1: a job has ended without a message, and there may be input to use.
    Ready,
    /// HTTP/2: what concerns a stream.
    Noted(u32, Note),
}
