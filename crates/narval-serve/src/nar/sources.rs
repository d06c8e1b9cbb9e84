//! Bodies of NAR answers: a NAR or ranges of it, from the files of a store path or from one file.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use narval_http::semantics::range::MultipartRanges;
use narval_http::{BodySource, FileRange, Fill, SegmentBuf};
use narval_nix::Sha256Hasher;
use narval_store::{NarReader, NarStream, PackedNar, ReadAhead, Step};

use crate::metrics::Metrics;
use crate::nar::damaged::{DamagedPaths, NOT_AS_REGISTERED};
use crate::nar::packed::PackedNars;
use crate::nar::plan::PathNar;

/// If at most this much of a NAR follows a large file, it is produced together with that file: little more than the
/// closing tokens.
const TAIL_BYTES_MAX: u64 = 1024;

/// A stream that reads from a packed NAR as far as possible, if there is one.
pub(crate) fn with_packed(stream: NarStream, packed: Option<&Arc<PackedNar>>) -> NarStream {
    match packed {
        Some(packed) => stream.packed(Arc::clone(packed)),
        None => stream,
    }
}

/// A NAR, or one range of it.
pub(crate) struct NarSource {
    pub(crate) path_nar: Arc<PathNar>,
    pub(crate) stream: NarStream,
    pub(crate) metrics: Arc<Metrics>,
    /// Notified when the whole NAR was sent.
    pub(crate) packed_nars: Option<Arc<PackedNars>>,
}

impl BodySource for NarSource {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let filled = fill(&mut self.stream, &self.path_nar, &self.metrics, out)?;
        if filled == Fill::Done
            && let Some(packed_nars) = self.packed_nars.take()
        {
            packed_nars.was_sent(&self.path_nar);
        }
        Ok(filled)
    }
}

/// Appends the next piece of a stream. An error aborts the response: a truncated NAR must not end cleanly.
fn fill(stream: &mut NarStream, path_nar: &PathNar, metrics: &Metrics, out: &mut SegmentBuf) -> io::Result<Fill> {
    let (room, before) = (out.room(), stream.remaining_bytes());
    let step = stream.fill(out.memory(), room);
    metrics.nar_bytes_identity.inc_by(before.saturating_sub(stream.remaining_bytes()));
    match step {
        Ok(Step::More) => Ok(Fill::More),
        Ok(Step::Done) => Ok(Fill::Done),
        Ok(Step::File(part)) => {
            out.push_file(FileRange { file: part.file, offset: part.offset, length: part.length });
            if stream.remaining_bytes() > TAIL_BYTES_MAX {
                return Ok(Fill::More);
            }
            // The closing tokens are produced immediately: a few bytes are not worth another call.
            fill(stream, path_nar, metrics, out)
        }
        Err(error) => {
            metrics.stream_aborts.inc();
            tracing::error!("NAR of {} aborted: {error}", path_nar.path);
            Err(error.into())
        }
    }
}

/// A NAR that is hashed as it is sent, and aborted before its last piece when the hash does not match.
pub(crate) struct VerifiedSource {
    path_nar: Arc<PathNar>,
    nar: NarReader,
    left: u64,
    hasher: Sha256Hasher,
    damaged: Arc<DamagedPaths>,
    metrics: Arc<Metrics>,
}

impl VerifiedSource {
    pub(crate) fn new(
        path_nar: Arc<PathNar>,
        stream: NarStream,
        damaged: Arc<DamagedPaths>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let left = path_nar.layout.size_bytes();
        Self { path_nar, nar: NarReader::of(stream), left, hasher: Sha256Hasher::new(), damaged, metrics }
    }
}

impl BodySource for VerifiedSource {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let room = out.room();
        let memory = out.memory();
        let from = memory.len();
        memory.resize(from + room, 0);
        let read = self.nar.read(memory.get_mut(from..).unwrap_or_default());
        let got = read.inspect_err(|error| {
            self.metrics.stream_aborts.inc();
            tracing::error!("NAR of {} aborted: {error}", self.path_nar.path);
        })?;
        memory.truncate(from + got);
        self.hasher.update(memory.get(from..).unwrap_or_default());
        self.left = self.left.saturating_sub(got as u64);
        self.metrics.nar_bytes_identity.inc_by(got as u64);
        if self.left > 0 && got > 0 {
            return Ok(Fill::More);
        }
        if self.hasher.clone().finish() == self.path_nar.nar_hash {
            return Ok(Fill::Done);
        }
        let hash_part = self.path_nar.path.hash_part();
        self.damaged.add(hash_part, &self.path_nar.nar_hash, &self.path_nar.real_path);
        self.metrics.stream_aborts.inc();
        tracing::error!("NAR of {} aborted: {NOT_AS_REGISTERED}", self.path_nar.path);
        Err(io::Error::new(io::ErrorKind::InvalidData, NOT_AS_REGISTERED))
    }
}

/// Several ranges of a NAR, as `multipart/byteranges`.
pub(crate) struct RangesSource {
    path_nar: Arc<PathNar>,
    packed: Option<Arc<PackedNar>>,
    ahead: Arc<ReadAhead>,
    metrics: Arc<Metrics>,
    parts: MultipartRanges,
    next: usize,
    stream: Option<NarStream>,
}

impl RangesSource {
    pub(crate) fn new(
        path_nar: Arc<PathNar>,
        packed: Option<Arc<PackedNar>>,
        ahead: Arc<ReadAhead>,
        metrics: Arc<Metrics>,
        parts: MultipartRanges,
    ) -> Self {
        Self { path_nar, packed, ahead, metrics, parts, next: 0, stream: None }
    }
}

impl BodySource for RangesSource {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        if let Some(stream) = &mut self.stream {
            if fill(stream, &self.path_nar, &self.metrics, out)? == Fill::Done {
                self.stream = None;
            }
            return Ok(Fill::More);
        }
        let Some(range) = self.parts.ranges().get(self.next).copied() else {
            self.parts.end(out.memory());
            return Ok(Fill::Done);
        };
        self.parts.part_head(self.next, out.memory());
        self.next += 1;
        let range = range.start..range.start + range.length;
        self.stream = Some(with_packed(self.path_nar.stream(range, &self.ahead)?, self.packed.as_ref()));
        Ok(Fill::More)
    }
}

/// Several ranges of a file.
pub(crate) struct FileRanges {
    file: Arc<File>,
    parts: MultipartRanges,
    next: usize,
}

impl FileRanges {
    pub(crate) fn new(file: Arc<File>, parts: MultipartRanges) -> Self {
        Self { file, parts, next: 0 }
    }
}

impl BodySource for FileRanges {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let Some(range) = self.parts.ranges().get(self.next).copied() else {
            self.parts.end(out.memory());
            return Ok(Fill::Done);
        };
        self.parts.part_head(self.next, out.memory());
        self.next += 1;
        out.push_file(FileRange { file: Arc::clone(&self.file), offset: range.start, length: range.length });
        Ok(Fill::More)
    }
}
