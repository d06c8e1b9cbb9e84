//! Reads files out of a path's NAR, by the offsets in its listing: from the files of a live store, or from the stored NAR.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use narval_codec::decode::{Decoder, FrameIndex, INPUT_LEN};
use narval_files::FileAt;
use narval_http::{Body, BodySource, FileRange, Fill, Response, SegmentBuf};
use narval_keep::{Cache, NarFile, SmallKind};
use narval_nix::listing::{LISTING_LEN_MAX, Listing};
use narval_nix::{Compression, HashPart, NarHash, StorePath};
use narval_store::{NarStream, ReadAhead, Step};
use quick_cache::Weighter;

use super::paths;
use super::places::Places;
use crate::error::ServeError;
use crate::nar::plan::PathNar;
use crate::piecework::Answered;

/// How much is decoded at a time before a file.
const SKIP_BYTES: u64 = 4 << 20;
/// The maximum length of what one request decodes without sending it, in bytes.
const SKIPPED_BYTES_MAX: u64 = 1 << 30;
/// How much is read at a time to compare files.
const PIECE_LEN: usize = 256 * 1024;
/// Memory for the frames of stored NARs, in bytes: 16 bytes for each frame of 4 MiB.
const FRAMES_BYTES_MAX: u64 = 4 << 20;
/// The expected number of NARs whose frames are remembered; the cache grows beyond that.
const FRAMES_OF_MAX: usize = 256;

/// The frames of stored NARs, by the name of their file, which is that of its contents.
#[derive(Debug)]
pub(super) struct Frames(quick_cache::sync::Cache<String, Arc<FrameIndex>, ByBytes>);

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<String, Arc<FrameIndex>> for ByBytes {
    fn weight(&self, name: &String, index: &Arc<FrameIndex>) -> u64 {
        (100 + name.len() + index.memory_bytes()) as u64
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self(quick_cache::sync::Cache::with_weighter(FRAMES_OF_MAX, FRAMES_BYTES_MAX, ByBytes))
    }
}

impl Frames {
    fn of(&self, name: &str, nar: &NarFile) -> io::Result<Arc<FrameIndex>> {
        if let Some(known) = self.0.get(name) {
            return Ok(known);
        }
        let index = Arc::new(FrameIndex::read(&nar.file, nar.len)?);
        self.0.insert(name.to_owned(), Arc::clone(&index));
        Ok(index)
    }
}

/// A path whose files can be read.
pub(super) struct Inside {
    pub(super) path: StorePath,
    pub(super) nar_hash: NarHash,
    pub(super) listing: Listing,
    place: Place,
}

enum Place {
    Live(Arc<PathNar>, Arc<ReadAhead>),
    Stored(Arc<File>, Compression, Option<Arc<FrameIndex>>),
}

impl Inside {
    /// # Errors
    /// If no source has the path, or it has no listing.
    pub(super) fn open(places: &Places, frames: &Frames, hash_part: HashPart) -> Result<Self, ServeError> {
        if let (Some(planner), Some(store)) = (&places.planner, &places.store)
            && store.path_from_hash_part(&hash_part)?.is_some()
        {
            let (path_nar, _) = planner.plan(hash_part)?;
            let listing = path_nar.layout.listing().map_err(|error| ServeError::of_files(&path_nar.path, &error))?;
            let (path, nar_hash) = (path_nar.path.clone(), path_nar.nar_hash);
            return Ok(Self { path, nar_hash, listing, place: Place::Live(path_nar, Arc::clone(&planner.ahead)) });
        }
        let cache = places.writable.as_ref().ok_or(ServeError::NoPath)?;
        Self::stored(places, cache, frames, hash_part)
    }

    /// The listing of a path alone: the NAR is not opened, which would be a use of it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn listing(places: &Places, hash_part: HashPart) -> Result<Listing, ServeError> {
        if let (Some(planner), Some(store)) = (&places.planner, &places.store)
            && store.path_from_hash_part(&hash_part)?.is_some()
        {
            let (path_nar, _) = planner.plan(hash_part)?;
            return path_nar.layout.listing().map_err(|error| ServeError::of_files(&path_nar.path, &error));
        }
        let cache = places.writable.as_ref().ok_or(ServeError::NoPath)?;
        let info = paths::look_up(places, hash_part)?.ok_or(ServeError::NoPath)?;
        kept_listing(cache, hash_part, &info.path)
    }

    fn stored(places: &Places, cache: &Cache, frames: &Frames, hash_part: HashPart) -> Result<Self, ServeError> {
        let info = paths::look_up(places, hash_part)?.ok_or(ServeError::NoPath)?;
        let damaged = |reason: String| ServeError::damaged(&info.path, reason);
        let listing = kept_listing(cache, hash_part, &info.path)?;
        let name = info.url.strip_prefix("nar/").unwrap_or_default();
        let nar = cache.nar_file(name)?.ok_or(ServeError::NoPath)?;
        let index = match nar.compression {
            Compression::Zstd => Some(frames.of(name, &nar).map_err(|error| damaged(error.to_string()))?),
            _ => None,
        };
        let place = Place::Stored(Arc::new(nar.file), nar.compression, index);
        Ok(Self { path: info.path, nar_hash: nar.nar_hash, listing, place })
    }

    /// An answer with this body. It is made by the page's threads if that means decoding.
    pub(super) fn answered(
        &self,
        response: Response,
        source: impl BodySource + 'static,
        length: Option<u64>,
    ) -> Answered {
        match self.is_decoded() {
            true => Answered::Pieces { response, source: Box::new(source), length, of: self.path.clone() },
            false => Answered::Whole(response.body(Body::source(source, length))),
        }
    }

    /// Whether reading a file means decoding data before it.
    pub(super) fn is_decoded(&self) -> bool {
        matches!(&self.place, Place::Stored(_, compression, _) if *compression != Compression::None)
    }

    /// Whether a request may decode everything before this offset that must be.
    ///
    /// # Errors
    /// [`ServeError::TooFar`]
    pub(super) fn may_skip_to(&self, offset: u64) -> Result<(), ServeError> {
        let skipped = match &self.place {
            Place::Stored(_, _, Some(index)) => offset.saturating_sub(index.before(offset).contents),
            Place::Stored(_, compression, None) if *compression != Compression::None => offset,
            Place::Live(..) | Place::Stored(..) => 0,
        };
        if skipped > SKIPPED_BYTES_MAX { Err(ServeError::TooFar) } else { Ok(()) }
    }

    /// A reader of files, in the order of the NAR.
    pub(super) fn reader(&self) -> Reader {
        match &self.place {
            Place::Live(path_nar, ahead) => {
                Reader::Live { path_nar: Arc::clone(path_nar), ahead: Arc::clone(ahead), stream: None }
            }
            Place::Stored(file, compression, index) => Reader::Stored(Stored {
                file: Arc::clone(file),
                compression: *compression,
                index: index.clone(),
                decoder: None,
                position: 0,
                start: 0,
                end: 0,
                skipped: 0,
            }),
        }
    }
}

/// The listing that a writable cache has of a path.
fn kept_listing(cache: &Cache, hash_part: HashPart, path: &StorePath) -> Result<Listing, ServeError> {
    let damaged = |reason: String| ServeError::damaged(path, reason);
    let (file, len) = cache.small_file(SmallKind::Listing, hash_part.as_str())?.ok_or(ServeError::NoPath)?;
    let mut json = Vec::new();
    let read = file.take(len.min(LISTING_LEN_MAX as u64)).read_to_end(&mut json);
    read.map_err(|error| damaged(error.to_string()))?;
    Listing::parse(&json).map_err(|error| damaged(error.to_string()))
}

/// Reads one range of the NAR after another.
pub(super) enum Reader {
    Live { path_nar: Arc<PathNar>, ahead: Arc<ReadAhead>, stream: Option<NarStream> },
    Stored(Stored),
}

impl Reader {
    /// The next range. It must not begin before the end of the last one.
    ///
    /// # Errors
    /// If the files cannot be opened, or the ranges are not in order.
    pub(super) fn begin(&mut self, offset: u64, size: u64) -> io::Result<()> {
        match self {
            Self::Live { path_nar, ahead, stream } => {
                let end = offset.checked_add(size).ok_or(io::ErrorKind::InvalidData)?;
                *stream = Some(path_nar.stream(offset..end, ahead)?);
                Ok(())
            }
            Self::Stored(stored) => stored.begin(offset, size),
        }
    }

    /// Passes the whole range on in pieces, while somebody wants it.
    ///
    /// # Errors
    /// If it cannot be read, or nobody wants it any more.
    pub(super) fn read_all(&mut self, is_wanted: &dyn Fn() -> bool, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut piece = Vec::new();
        loop {
            if !is_wanted() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            piece.clear();
            let step = match self {
                Self::Live { stream: None, .. } => Step::Done,
                Self::Live { stream: Some(stream), .. } => stream.fill(&mut piece, PIECE_LEN)?,
                Self::Stored(stored) => match stored.read(&mut piece, PIECE_LEN as u64)? {
                    Fill::Done => Step::Done,
                    _ => Step::More,
                },
            };
            take(&piece);
            match step {
                Step::More => {}
                Step::Done => return Ok(()),
                Step::File(part) => {
                    let mut left = FileAt::new(part.file, part.offset).take(part.length);
                    while left.limit() > 0 {
                        piece.clear();
                        if left.by_ref().take(PIECE_LEN as u64).read_to_end(&mut piece)? == 0 {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                        take(&piece);
                    }
                }
            }
        }
    }

    /// Appends a piece of the range, or nothing. Returns [`Fill::Done`] once the range is complete.
    pub(super) fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        match self {
            Self::Live { stream: None, .. } => Ok(Fill::Done),
            Self::Live { stream: Some(stream), .. } => {
                let room = out.room();
                match stream.fill(out.memory(), room)? {
                    Step::More => Ok(Fill::More),
                    Step::Done => Ok(Fill::Done),
                    Step::File(part) => {
                        out.push_file(FileRange { file: part.file, offset: part.offset, length: part.length });
                        Ok(Fill::More)
                    }
                }
            }
            Self::Stored(stored) => {
                let room = out.room() as u64;
                stored.read(out.memory(), room)
            }
        }
    }
}

/// Reads from a stored NAR.
pub(super) struct Stored {
    file: Arc<File>,
    compression: Compression,
    index: Option<Arc<FrameIndex>>,
    decoder: Option<Decoder<BufReader<FileAt<Arc<File>>>>>,
    /// Where the decoder is in the NAR.
    position: u64,
    /// The range.
    start: u64,
    end: u64,
    /// The length of what is decoded before the ranges.
    skipped: u64,
}

impl Stored {
    fn begin(&mut self, offset: u64, size: u64) -> io::Result<()> {
        // A listing in another order is damaged. Following it would decode the NAR many times.
        if offset < self.end {
            return Err(io::ErrorKind::InvalidData.into());
        }
        (self.start, self.end) = (offset, offset.checked_add(size).ok_or(io::ErrorKind::InvalidData)?);
        let (file_offset, contents) = match (&self.index, self.compression) {
            (Some(index), _) => {
                let frame = index.before(offset);
                (frame.file, frame.contents)
            }
            (None, Compression::None) => (offset, offset),
            (None, _) => (0, 0),
        };
        if self.decoder.is_none() || contents > self.position {
            let source = FileAt::new(Arc::clone(&self.file), file_offset);
            let decoder = Decoder::new(&self.compression, BufReader::with_capacity(INPUT_LEN, source), 1);
            self.decoder = Some(decoder.map_err(io::Error::other)?);
            self.position = contents;
        }
        self.skipped = self.skipped.saturating_add(offset.saturating_sub(self.position));
        match self.skipped {
            ..=SKIPPED_BYTES_MAX => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::FileTooLarge, "too much is before it")),
        }
    }

    /// Appends at most `room` bytes.
    fn read(&mut self, out: &mut Vec<u8>, room: u64) -> io::Result<Fill> {
        let Some(decoder) = &mut self.decoder else { return Ok(Fill::Done) };
        if self.position < self.start {
            // In pieces: other requests wait for this thread, and the client may leave.
            let piece = (self.start - self.position).min(SKIP_BYTES);
            let skipped = io::copy(&mut decoder.take(piece), &mut io::sink())?;
            if skipped < piece {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.position += skipped;
            return Ok(Fill::More);
        }
        let room = room.min(self.end - self.position);
        let got = decoder.take(room).read_to_end(out)? as u64;
        if got < room {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.position += got;
        Ok(if self.position == self.end { Fill::Done } else { Fill::More })
    }
}
