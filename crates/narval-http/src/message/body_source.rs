//! Bodies that are made piece by piece while they are sent.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::io::driver::Token;
use crate::run::connection::Connection;
use crate::run::mailbox::{Mailbox, Message};

/// `length` bytes of an open file from `offset` on. It is read by position: the file's own offset plays no part.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The open file; several ranges may share it.
    pub file: Arc<File>,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// A body made on demand: the engine asks for the next piece when the client has taken the last one, so that a slow
/// client holds no thread and no more than one piece of memory.
pub trait BodySource: Send {
    /// Appends the next piece, about [`SegmentBuf::room`] bytes, on a worker thread; it may block (read files).
    ///
    /// # Errors
    /// An error aborts the connection: what was promised can't be kept, and a short body must not end cleanly.
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill>;

    /// After a [`Fill::Wait`]: keeps `waker`, to be used as soon as there is more, and says how long to wait for that at
    /// most before asking anyhow ([`Duration::ZERO`]: there is more already). The connection waits meanwhile, and no
    /// thread does. It must not block.
    fn wait(&mut self, waker: BodyWaker) -> Duration {
        drop(waker);
        WAIT_UNTOLD
    }

    /// The client sends no more, or the server stops. A body that goes on for as long as somebody listens ends now, and says
    /// so: its next [`fill`](Self::fill) is then the last. False (the default): it is to be sent to its end.
    fn hang_up(&mut self) -> bool {
        false
    }

    /// Whether [`fill`](Self::fill) only ever copies memory: then the thread that multiplexes the connections may call it itself, and
    /// spares a worker the trouble. False by default.
    fn never_blocks(&self) -> bool {
        false
    }

    /// After [`Fill::Done`]: the fields behind the body (RFC 9110 section 6.5). They are sent with chunked bodies only,
    /// and those that say how a message is framed or routed are left out.
    fn trailers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        Vec::new()
    }
}

/// How long a connection waits for a source that does not say how long, and is not told of more.
const WAIT_UNTOLD: Duration = Duration::from_millis(100);

/// Whether a [`BodySource`] has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// There is more: ask again.
    More,
    /// That was the last piece.
    Done,
    /// There is no more for now: ask again when the waker that [`BodySource::wait`] is given next has been used.
    Wait,
}

/// Has the engine ask a [`BodySource`] again that had nothing for it; from any thread.
#[derive(Debug)]
pub struct BodyWaker {
    // Not the connection: whoever keeps a waker must not keep the socket open.
    home: Arc<Mailbox>,
    token: Token,
}

impl BodyWaker {
    pub(crate) fn new(connection: &Connection) -> Self {
        Self { home: connection.home().clone(), token: connection.token }
    }

    /// There is more.
    pub fn wake(self) {
        self.home.post(Message::BodyReady { token: self.token });
    }
}

/// Where a [`BodySource`] puts its bytes: runs of memory and ranges of files, in order.
#[derive(Debug, Default)]
pub struct SegmentBuf {
    pub(crate) memory: Vec<u8>,
    /// File ranges, each with the length of `memory` at which it comes.
    pub(crate) files: Vec<(usize, FileRange)>,
}

impl SegmentBuf {
    /// How many bytes of memory one piece should have at most.
    pub const QUANTUM: usize = 256 * 1024;

    /// How many more bytes of memory are wanted now.
    pub fn room(&self) -> usize {
        Self::QUANTUM.saturating_sub(self.memory.len())
    }

    /// The bytes so far; append to it.
    pub fn memory(&mut self) -> &mut Vec<u8> {
        &mut self.memory
    }

    /// Puts a range of a file next, to be sent without a copy. For 128 KiB and more; append smaller ones to `memory`.
    pub fn push_file(&mut self, range: FileRange) {
        self.files.push((self.memory.len(), range));
    }
}
