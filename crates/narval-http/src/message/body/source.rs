//! Bodies that are produced while they are sent.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::message::carrier::{Address, Nudge};

/// `length` bytes of an open file from `offset` on. They are read by position: the file's own offset is not used.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The open file; several ranges may share it.
    pub file: Arc<File>,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// A body produced on demand. The engine asks for the next piece once the last one is sent, so a slow client holds no
/// thread, and memory for one piece only.
pub trait BodySource: Send {
    /// Appends the next piece, about [`SegmentBuf::room`] bytes. Called on a worker thread; it may block (read files). A
    /// source that has long work to do before its next bytes returns [`Fill::More`] without any now and then: other
    /// requests have their turn, and the source is dropped if the client has left.
    ///
    /// # Errors
    /// An error aborts the connection: an incomplete body must not end cleanly.
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill>;

    /// Called after [`Fill::Wait`]. Stores `waker`, to be used as soon as there is more data, and returns the time after
    /// which [`fill`](Self::fill) is called in any case ([`Duration::ZERO`] if there is data already). No thread waits
    /// meanwhile. This method must not block.
    fn wait(&mut self, waker: BodyWaker) -> Duration {
        drop(waker);
        WAIT_UNTOLD
    }

    /// Called when the client has ended its input, or the server stops. A body without an end of its own returns
    /// `true`: its next [`fill`](Self::fill) is the last. `false` (the default) means that the body is sent to its end.
    fn hang_up(&mut self) -> bool {
        false
    }

    /// Whether [`fill`](Self::fill) only copies memory. If so, the thread that multiplexes the connections may call it
    /// itself, which saves a hop to a worker. `false` by default.
    fn never_blocks(&self) -> bool {
        false
    }

    /// Called after [`Fill::Done`]: the trailer fields (RFC 9110 section 6.5). They are only sent with chunked bodies;
    /// fields for framing or routing are left out.
    fn trailers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        Vec::new()
    }
}

/// How long a connection waits for a source with the default [`BodySource::wait`].
const WAIT_UNTOLD: Duration = Duration::from_millis(100);

/// The result of [`BodySource::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// There is more.
    More,
    /// That was the last piece.
    Done,
    /// There is no data now: call [`BodySource::wait`], and [`fill`](BodySource::fill) again when its waker is used.
    Wait,
}

/// Wakes a body that returned [`Fill::Wait`], from any thread.
#[derive(Debug)]
pub struct BodyWaker(pub(crate) Address);

impl BodyWaker {
    /// Wakes the body: it has data again.
    pub fn wake(self) {
        self.0.nudge(Nudge::Source);
    }
}

/// The output of a [`BodySource`]: bytes and ranges of files, in order.
#[derive(Debug)]
pub struct SegmentBuf {
    /// Bytes of memory for this piece.
    quantum: usize,
    pub(crate) memory: Vec<u8>,
    /// File ranges, each with the length of `memory` at which it is inserted.
    pub(crate) files: Vec<(usize, FileRange)>,
}

impl Default for SegmentBuf {
    fn default() -> Self {
        Self::with_room(Self::QUANTUM)
    }
}

impl SegmentBuf {
    /// An empty buffer for about this many bytes.
    pub(crate) fn with_room(quantum: usize) -> Self {
        Self { quantum, memory: Vec::new(), files: Vec::new() }
    }

    /// The size of a piece in bytes of memory, at most.
    pub const QUANTUM: usize = 256 * 1024;

    /// How many more bytes of memory fit into this piece.
    pub fn room(&self) -> usize {
        self.quantum.saturating_sub(self.memory.len())
    }

    /// The length of what it holds, files included.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().fold(self.memory.len() as u64, |sum, (_, range)| sum.saturating_add(range.length))
    }

    /// The bytes so far; append to them.
    pub fn memory(&mut self) -> &mut Vec<u8> {
        &mut self.memory
    }

    /// Appends a range of a file, which is sent without a copy. For 128 KiB and more; append smaller ones to `memory`.
    pub fn push_file(&mut self, range: FileRange) {
        self.files.push((self.memory.len(), range));
    }
}
