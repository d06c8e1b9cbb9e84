//! NARs that are sent while they are fetched.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use narval_cache::upstream::Unavailable;
use narval_files::{FillEnd, GrowingFile, Waits};
use narval_http::{Body, BodySource, BodyWaker, FileRange, Fill, HeadRef, Response, SegmentBuf};

use super::representation::{Representation, Selected};
use crate::error::ServeError;
use crate::metrics::{Counter, Metrics};

/// Pieces of at least this size are sent from the file with `sendfile(2)`.
const SENDFILE_BYTES_MIN: u64 = 128 * 1024;
/// The maximum time until a waiting connection checks for more data, even without a notification.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Answers with a growing NAR of a known length, or with one range of it, and counts the bytes.
pub(crate) fn send_growing(
    representation: &Representation,
    head: &HeadRef<'_>,
    growing: Arc<GrowingFile>,
    (bytes, metrics): (&Counter, &Arc<Metrics>),
) -> Result<Response, ServeError> {
    let range = |from, length| {
        let follower = Follower::new(Arc::clone(&growing), from, Some(from + length), (bytes, metrics));
        Body::source(follower, Some(length))
    };
    representation.answer(head, |selected| match selected {
        Selected::Whole => Ok(range(0, representation.size)),
        Selected::One(selected) => Ok(range(selected.start, selected.length)),
        // No Nix client asks for several ranges.
        Selected::Several(_) => Err(Unavailable {
            retry_after: Duration::from_secs(1),
            reason: "several ranges are sent once the NAR is here".to_owned(),
        }
        .into()),
    })
}

/// The body of an answer to HEAD.
pub(crate) struct Nothing;

impl BodySource for Nothing {
    fn fill(&mut self, _: &mut SegmentBuf) -> io::Result<Fill> {
        Ok(Fill::Done)
    }
}

/// Adds what is there of a growing file, as far as there is room for it in memory: large pieces stay in the file. Returns the length.
pub(super) fn push_piece(file: &Arc<File>, offset: u64, there: u64, out: &mut SegmentBuf) -> io::Result<u64> {
    if there >= SENDFILE_BYTES_MIN {
        out.push_file(FileRange { file: Arc::clone(file), offset, length: there });
        return Ok(there);
    }
    let length = usize::try_from(there).unwrap_or(0).min(out.room().max(1));
    let memory = out.memory();
    let from = memory.len();
    memory.resize(from + length, 0);
    file.read_exact_at(memory.get_mut(from..).unwrap_or_default(), offset)?;
    Ok(length as u64)
}

/// Follows the thread that fetches.
pub(crate) struct Follower {
    growing: Arc<GrowingFile>,
    /// Keeps the fetch going; `None` if it has ended already.
    _waits: Option<Waits>,
    sent: u64,
    /// Where to stop; `None` for the end of the NAR.
    to: Option<u64>,
    /// Counts what is sent.
    bytes: Counter,
    metrics: Arc<Metrics>,
}

impl Follower {
    pub(crate) fn new(
        growing: Arc<GrowingFile>,
        from: u64,
        to: Option<u64>,
        (bytes, metrics): (&Counter, &Arc<Metrics>),
    ) -> Self {
        let waits = growing.waits();
        Self { growing, _waits: waits, sent: from, to, bytes: bytes.clone(), metrics: Arc::clone(metrics) }
    }
}

impl BodySource for Follower {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let progress = self.growing.progress();
        let readable = progress.readable.min(self.to.unwrap_or(u64::MAX));
        let there = readable.saturating_sub(self.sent);
        if there == 0 {
            return match progress.end {
                Some(FillEnd::Complete) => Ok(Fill::Done),
                Some(FillEnd::Failed(reason)) => {
                    self.metrics.stream_aborts.inc();
                    Err(io::Error::new(io::ErrorKind::InvalidData, &*reason))
                }
                None => Ok(Fill::Wait),
            };
        }
        let length = push_piece(self.growing.file(), self.sent, there, out)?;
        self.bytes.inc_by(length);
        self.sent += length;
        Ok(if self.to == Some(self.sent) { Fill::Done } else { Fill::More })
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        self.growing.when_beyond(self.sent, move || waker.wake());
        LOOK_EVERY
    }
}
