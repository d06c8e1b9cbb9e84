//! A response body, piece by piece, for whoever copies its bytes: the shard into frames of HTTP/2, a middleware into a compressor, a
//! test into memory.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderName, HeaderValue};
use rustix::io::{Errno, ReadWriteFlags};

use crate::message::body::feed::Feed;
use crate::message::body::source::{BodyWaker, FileRange, Fill, SegmentBuf};
use crate::message::body::{Body, BodyKind};
use crate::message::panic_guard::Kept;

/// The rest of a body. Memory and cached parts of files can be taken without blocking; the rest is produced first, by the same thread or
/// another one.
#[derive(Default)]
pub(crate) struct Produced {
    parts: VecDeque<Part>,
    /// Bytes in all parts.
    ready: u64,
    /// Memory of parts that were produced here or by a worker: all that was allocated, until the last byte of it is taken.
    held: usize,
    /// Bytes of a part in memory that the handler supplied.
    supplied: usize,
    source: Source,
    trailers: Vec<(HeaderName, HeaderValue)>,
    /// Reading the next file would block.
    file_blocks: bool,
    /// The source produced nothing although there is more: it works for what comes later, which is left to workers.
    works: bool,
    /// What is kept until its end.
    kept: Option<Kept>,
}

enum Part {
    /// What is left of it, and what it counts for in `held` until it is empty.
    Memory(Bytes, usize),
    File(FileRange),
}

impl Part {
    fn is_empty(&self) -> bool {
        match self {
            Self::Memory(bytes, _) => bytes.is_empty(),
            Self::File(range) => range.length == 0,
        }
    }
}

/// Where the rest comes from.
#[derive(Default)]
enum Source {
    /// Nothing is left.
    #[default]
    None,
    Here(Feed),
    /// The source has no data now.
    Waiting(Feed),
    /// A worker has the source.
    Away,
    /// A worker has the next file.
    FileAway(Box<Source>),
}

/// What follows the ready bytes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The end, after trailers if `true`.
    End { trailers: bool },
    /// The next piece is [produced here](Produced::make).
    Here,
    /// It may block, so a worker runs its [maker](Produced::maker).
    Worker,
    /// It is being produced.
    Making,
    /// Its source has no data now.
    Waiting,
}

/// Produces the next piece of a body, on a worker.
#[derive(Debug)]
pub(crate) enum Maker {
    Source(Feed),
    File(FileRange),
}

/// What it produced.
pub(crate) enum Made {
    Segments { feed: Feed, fill: Fill, segments: SegmentBuf },
    File(Bytes),
}

impl Produced {
    pub(crate) fn new(body: Body) -> Self {
        let mut produced = match body.kind {
            BodyKind::Empty => Self::default(),
            BodyKind::Bytes(bytes) => Self::memory(bytes),
            BodyKind::File(range) => {
                let ready = range.length;
                Self { parts: VecDeque::from([Part::File(range)]), ready, ..Self::default() }
            }
            BodyKind::Source { source, length } => {
                Self { source: Source::Here(Feed::new(source, length)), ..Self::default() }
            }
        };
        produced.kept = body.kept;
        produced
    }

    /// From memory.
    pub(crate) fn memory(bytes: Bytes) -> Self {
        let supplied = bytes.len();
        Self { parts: VecDeque::from([Part::Memory(bytes, 0)]), ready: supplied as u64, supplied, ..Self::default() }
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
    fn append(&mut self, mut feed: Feed, fill: Fill, segments: SegmentBuf) {
        let made = segments.bytes();
        let SegmentBuf { memory, files, .. } = segments;
        let held = memory.capacity();
        self.ready += made;
        self.works = made == 0;
        let before = self.parts.len();
        let (mut memory, mut taken) = (Bytes::from(memory), 0);
        for (at, range) in files {
            self.push(Part::Memory(memory.split_to((at - taken).min(memory.len())), 0));
            self.push(Part::File(range));
            taken = at;
        }
        self.push(Part::Memory(memory, 0));
        // The parts share one allocation, which is freed with the last of them.
        let mut made = self.parts.iter_mut().skip(before).rev();
        if let Some(Part::Memory(_, counted)) = made.find(|part| matches!(part, Part::Memory(..))) {
            *counted = held;
            self.held += held;
        }
        self.source = match fill {
            Fill::Done => {
                self.trailers = feed.trailers();
                Source::None
            }
            Fill::More => Source::Here(feed),
            Fill::Wait => Source::Waiting(feed),
        };
    }

    fn push(&mut self, part: Part) {
        if !part.is_empty() {
            self.parts.push_back(part);
        }
    }
}

impl Produced {
    /// Bytes that can be taken now.
    pub(crate) fn ready(&self) -> u64 {
        if self.is_at_blocked_file() || matches!(self.source, Source::FileAway(_)) { 0 } else { self.ready }
    }

    /// What follows them.
    pub(crate) fn rest(&self) -> Rest {
        match &self.source {
            Source::Away | Source::FileAway(_) => Rest::Making,
            _ if self.is_at_blocked_file() => Rest::Worker,
            Source::Here(source) if !self.works && source.never_blocks() => Rest::Here,
            Source::Here(_) => Rest::Worker,
            Source::Waiting(_) => Rest::Waiting,
            Source::None => Rest::End { trailers: !self.trailers.is_empty() },
        }
    }

    /// Bytes of memory produced for the ready part; bodies that the handler supplied as a whole and ranges of files do
    /// not count.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Bytes of memory in all, with a body that the handler supplied as a whole: all of it until its last byte is taken.
    pub(crate) fn in_memory(&self) -> usize {
        self.held + self.supplied
    }

    /// Takes ready bytes, at least one; 0 if they must be produced after all.
    ///
    /// # Errors
    /// The body cannot be completed.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut taken = 0;
        while let Some(part) = self.parts.front_mut() {
            let place = into.get_mut(taken..).unwrap_or_default();
            if place.is_empty() {
                break;
            }
            let n = match part {
                Part::Memory(bytes, held) => {
                    let n = place.len().min(bytes.len());
                    bytes.copy_to_slice(place.get_mut(..n).unwrap_or_default());
                    if bytes.is_empty() {
                        self.supplied = 0;
                        self.held = self.held.saturating_sub(*held);
                    }
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
            if part.is_empty() {
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

    /// Produces about `quantum` bytes, for bodies where that does not block.
    ///
    /// # Errors
    /// The body cannot be completed.
    pub(crate) fn make(&mut self, quantum: usize) -> io::Result<()> {
        if let Some(maker) = self.maker() {
            let made = maker.make(quantum)?;
            self.made(made);
        }
        Ok(())
    }

    /// Takes the maker of the next piece, for another thread; it returns with [`made`](Self::made).
    pub(crate) fn maker(&mut self) -> Option<Maker> {
        if self.is_at_blocked_file() {
            let Some(Part::File(range)) = self.parts.front() else { return None };
            let range = range.clone();
            let source = mem::take(&mut self.source);
            self.source = Source::FileAway(Box::new(source));
            return Some(Maker::File(range));
        }
        match mem::replace(&mut self.source, Source::Away) {
            Source::Here(feed) => Some(Maker::Source(feed)),
            other => {
                self.source = other;
                None
            }
        }
    }

    /// The next piece was produced.
    pub(crate) fn made(&mut self, made: Made) {
        match made {
            Made::Segments { feed, fill, segments } => self.append(feed, fill, segments),
            Made::File(bytes) => {
                if let Source::FileAway(source) = mem::take(&mut self.source) {
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
                let held = bytes.len();
                self.held += held;
                self.parts.push_front(Part::Memory(bytes, held));
            }
        }
    }

    /// Its source has more data, if it waits for that.
    pub(crate) fn resume(&mut self) {
        self.source = match mem::take(&mut self.source) {
            Source::Waiting(feed) => Source::Here(feed),
            other => other,
        };
    }

    /// The trailer fields, once everything is taken.
    pub(crate) fn trailers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        mem::take(&mut self.trailers)
    }

    /// Asks it to end, for the client or the server; returns whether it does.
    pub(crate) fn hang_up(&mut self) -> bool {
        match &mut self.source {
            Source::Here(source) | Source::Waiting(source) => source.hang_up(),
            Source::None | Source::Away | Source::FileAway(_) => false,
        }
    }
}

impl Made {
    /// The memory that it holds.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Segments { segments, .. } => segments.memory.capacity(),
            Self::File(bytes) => bytes.len(),
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
            Self::Source(mut feed) => {
                let mut segments = SegmentBuf::with_room(quantum);
                let fill = feed.fill(&mut segments)?;
                Ok(Made::Segments { feed, fill, segments })
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
