use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderName, HeaderValue};
use rustix::io::{Errno, ReadWriteFlags};

use crate::http2::conn::{Body, Rest};
use crate::http2::response;
use crate::message::body_source::{BodySource, BodyWaker, Fill, SegmentBuf};
use crate::message::panic_guard::Kept;
use crate::run::transmit::{NOT_IN_TRAILERS, wrong_length};
use crate::{FileRange, RequestId};

/// The body of a response on a stream. The shard itself copies memory and cached parts of files into frames; workers
/// produce the rest.
pub(crate) struct StreamBody {
    parts: VecDeque<Part>,
    /// Bytes in all parts.
    ready: u64,
    /// Bytes of parts in memory that were produced here or by a worker.
    held: usize,
    /// Bytes of a part in memory that the handler supplied.
    supplied: usize,
    source: Source,
    /// Bytes that the source still has to produce, if the length is known.
    left: Option<u64>,
    trailers: Vec<(HeaderName, HeaderValue)>,
    /// Reading the next file would block.
    file_blocks: bool,
    /// The source produced nothing although there is more: it works for what comes later, which is left to workers.
    works: bool,
    /// The request that it answers.
    id: Option<RequestId>,
    /// What is kept until its end.
    pub(super) kept: Option<Kept>,
}

enum Part {
    Memory(Bytes),
    File(FileRange),
}

/// Where the rest comes from.
enum Source {
    /// Nothing is left.
    None,
    Here(Box<dyn BodySource>),
    /// The source has no data now.
    Waiting(Box<dyn BodySource>),
    /// A worker has the source.
    Away,
    /// A worker has the next file.
    FileAway(Box<Source>),
}

/// Produces the next piece of a body, on a worker.
pub(crate) enum Maker {
    Source(Box<dyn BodySource>, Option<RequestId>),
    File(FileRange),
}

/// What it produced.
pub(crate) enum Made {
    Segments { source: Box<dyn BodySource>, fill: Fill, segments: SegmentBuf },
    File(Bytes),
}

impl StreamBody {
    /// From memory.
    pub(crate) fn memory(bytes: Bytes) -> Self {
        let supplied = bytes.len();
        Self { parts: VecDeque::from([Part::Memory(bytes)]), ready: supplied as u64, supplied, ..Self::empty() }
    }

    /// From a file.
    pub(crate) fn file(range: FileRange) -> Self {
        let ready = range.length;
        Self { parts: VecDeque::from([Part::File(range)]), ready, ..Self::empty() }
    }

    /// Produced while it is sent; `length` if it is known.
    pub(crate) fn source(source: Box<dyn BodySource>, length: Option<u64>) -> Self {
        Self { source: Source::Here(source), left: length, id: RequestId::current(), ..Self::empty() }
    }

    fn empty() -> Self {
        Self {
            parts: VecDeque::new(),
            ready: 0,
            held: 0,
            supplied: 0,
            source: Source::None,
            left: None,
            trailers: Vec::new(),
            file_blocks: false,
            works: false,
            id: None,
            kept: None,
        }
    }

    /// Registers `waker` for when the source has more data; returns the longest wait.
    pub(crate) fn wait(&mut self, waker: BodyWaker) -> Duration {
        match &mut self.source {
            Source::Waiting(source) => source.wait(waker),
            _ => Duration::ZERO,
        }
    }

    fn is_at_blocked_file(&self) -> bool {
        self.file_blocks && matches!(self.parts.front(), Some(Part::File(_)))
    }

    /// Appends what a source produced.
    fn append(&mut self, mut source: Box<dyn BodySource>, fill: Fill, segments: SegmentBuf) -> io::Result<()> {
        let SegmentBuf { memory, files, .. } = segments;
        let length = memory.len();
        let (mut memory, mut taken, mut made) = (Bytes::from(memory), 0, 0);
        for (at, range) in files {
            let before = memory.split_to((at - taken).min(memory.len()));
            taken = at;
            made += before.len() as u64 + range.length;
            self.push(Part::Memory(before));
            self.push(Part::File(range));
        }
        made += memory.len() as u64;
        self.push(Part::Memory(memory));
        self.works = made == 0;
        self.ready += made;
        self.held += length;
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(made).ok_or_else(|| wrong_length("the body is longer than promised"))?;
        }
        self.source = match fill {
            Fill::Done if self.left.is_some_and(|left| left > 0) => {
                return Err(wrong_length("the body is shorter than promised"));
            }
            Fill::Done => {
                if self.left.is_none() {
                    self.trailers = source.trailers();
                    self.trailers.retain(|(name, _)| !NOT_IN_TRAILERS.contains(name));
                }
                Source::None
            }
            Fill::More => Source::Here(source),
            Fill::Wait => Source::Waiting(source),
        };
        Ok(())
    }

    fn push(&mut self, part: Part) {
        let is_empty = match &part {
            Part::Memory(bytes) => bytes.is_empty(),
            Part::File(range) => range.length == 0,
        };
        if !is_empty {
            self.parts.push_back(part);
        }
    }
}

impl Body for StreamBody {
    type Maker = Maker;
    type Made = Made;

    fn ready(&self) -> u64 {
        if self.is_at_blocked_file() || matches!(self.source, Source::FileAway(_)) { 0 } else { self.ready }
    }

    fn rest(&self) -> Rest {
        match &self.source {
            Source::Away | Source::FileAway(_) => Rest::Making,
            _ if self.is_at_blocked_file() => Rest::Worker,
            Source::Here(source) if !self.works && source.never_blocks() => Rest::Here,
            Source::Here(_) => Rest::Worker,
            Source::Waiting(_) => Rest::Waiting,
            Source::None => Rest::End { trailers: !self.trailers.is_empty() },
        }
    }

    fn held(&self) -> usize {
        self.held
    }

    fn in_memory(&self) -> usize {
        self.held + self.supplied
    }

    fn take(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut taken = 0;
        while let Some(part) = self.parts.front_mut() {
            let place = into.get_mut(taken..).unwrap_or_default();
            if place.is_empty() {
                break;
            }
            let n = match part {
                Part::Memory(bytes) => {
                    let n = place.len().min(bytes.len());
                    self.supplied = if n == bytes.len() { 0 } else { self.supplied };
                    bytes.copy_to_slice(place.get_mut(..n).unwrap_or_default());
                    self.held = self.held.saturating_sub(n);
                    n
                }
                Part::File(range) => match read_at_once(range, place)? {
                    Some(n) => n,
                    None => {
                        self.file_blocks = true;
                        break;
                    }
                },
            };
            taken += n;
            let is_empty = match part {
                Part::Memory(bytes) => bytes.is_empty(),
                Part::File(range) => range.length == 0,
            };
            if is_empty {
                self.parts.pop_front();
                self.file_blocks = false;
            }
        }
        self.ready -= taken as u64;
        if let Some(kept) = &self.kept {
            kept.has_sent_more(taken as u64);
        }
        Ok(taken)
    }

    fn make(&mut self, quantum: usize) -> io::Result<()> {
        let Source::Here(mut source) = mem::replace(&mut self.source, Source::None) else { return Ok(()) };
        let mut segments = SegmentBuf::with_room(quantum);
        let fill = source.fill(&mut segments)?;
        self.append(source, fill, segments)
    }

    fn maker(&mut self) -> Option<Maker> {
        if self.is_at_blocked_file() {
            let Some(Part::File(range)) = self.parts.front() else { return None };
            let range = range.clone();
            let source = mem::replace(&mut self.source, Source::None);
            self.source = Source::FileAway(Box::new(source));
            return Some(Maker::File(range));
        }
        match mem::replace(&mut self.source, Source::Away) {
            Source::Here(source) => Some(Maker::Source(source, self.id.clone())),
            other => {
                self.source = other;
                None
            }
        }
    }

    fn made(&mut self, made: Made) -> io::Result<()> {
        match made {
            Made::Segments { source, fill, segments } => self.append(source, fill, segments),
            Made::File(bytes) => {
                if let Source::FileAway(source) = mem::replace(&mut self.source, Source::None) {
                    self.source = *source;
                }
                if let Some(Part::File(range)) = self.parts.front_mut() {
                    range.offset += bytes.len() as u64;
                    range.length = range.length.saturating_sub(bytes.len() as u64);
                    if range.length == 0 {
                        self.parts.pop_front();
                    }
                }
                // Try the next range again: the kernel may have read ahead.
                self.file_blocks = false;
                self.held += bytes.len();
                self.parts.push_front(Part::Memory(bytes));
                Ok(())
            }
        }
    }

    fn resume(&mut self) {
        if let Source::Waiting(source) = mem::replace(&mut self.source, Source::None) {
            self.source = Source::Here(source);
        }
    }

    fn trailers(&mut self) -> Vec<u8> {
        response::trailers_block(&mem::take(&mut self.trailers))
    }

    fn hang_up(&mut self) -> bool {
        match &mut self.source {
            Source::Here(source) | Source::Waiting(source) => source.hang_up(),
            Source::None | Source::Away | Source::FileAway(_) => false,
        }
    }
}

impl Maker {
    /// Produces about `quantum` bytes. May block.
    ///
    /// # Errors
    /// The body cannot be completed.
    pub(crate) fn make(self, quantum: usize) -> io::Result<Made> {
        match self {
            Self::Source(mut source, id) => {
                let _entered = id.map(RequestId::enter);
                let mut segments = SegmentBuf::with_room(quantum);
                let fill = source.fill(&mut segments)?;
                Ok(Made::Segments { source, fill, segments })
            }
            Self::File(range) => {
                let length = usize::try_from(range.length).unwrap_or(usize::MAX).min(quantum);
                let mut bytes = vec![0; length];
                range.file.read_exact_at(&mut bytes, range.offset)?;
                Ok(Made::File(bytes.into()))
            }
        }
    }
}

/// Reads what the page cache has of a range, and advances the range; `None` if that would block.
fn read_at_once(range: &mut FileRange, place: &mut [u8]) -> io::Result<Option<usize>> {
    let most = place.len().min(usize::try_from(range.length).unwrap_or(usize::MAX));
    let place = place.get_mut(..most).unwrap_or_default();
    let mut slices = [IoSliceMut::new(place)];
    match rustix::io::preadv2(&range.file, &mut slices, range.offset, ReadWriteFlags::NOWAIT) {
        Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than promised")),
        Ok(n) => {
            range.offset += n as u64;
            range.length -= n as u64;
            Ok(Some(n))
        }
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
