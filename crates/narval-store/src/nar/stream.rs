//! Produces a NAR from any offset: framing and small files as bytes, large files as ranges of files.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FileType;

use super::NarIoError;
use super::ahead::{ReadAhead, Slot};
use super::batch::{Batch, is_whole, plan_batch, read_batch};
use super::layout::{NarLayout, Record};
use super::open::Root;
use super::packed::{ByteLocation, PackedNar};

/// The maximum number of batches read ahead for one stream.
const BATCHES_AHEAD_MAX: usize = 4;

/// Shorter runs of a packed NAR are read into memory and sent together with the bytes around them.
const PACKED_RUN_MIN: u64 = 16 * 1024;

/// A range of a file that is part of a NAR.
#[derive(Debug, Clone)]
pub struct FilePart {
    /// The open file. Read it by position.
    pub file: Arc<File>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; the file had them when it was opened.
    pub length: u64,
}

/// What follows the bytes that [`NarStream::fill`] appended.
#[derive(Debug)]
pub enum Step {
    /// More: call it again.
    More,
    /// A range of a file, then more.
    File(FilePart),
    /// Nothing: the NAR is complete.
    Done,
}

/// The source of one NAR, or of a range of it.
///
/// ```no_run
/// # use std::{path::Path, sync::Arc};
/// use narval_store::{NarLayout, NarStream, Step};
/// let path = Path::new("/nix/store/jgkkbkqm53rw4zyyjj1xhlmsvnvvm9p3-hello-2.10-3");
/// let layout = Arc::new(NarLayout::scan(path)?);
/// let mut stream = NarStream::open(layout.clone(), path, 0..layout.size_bytes(), None)?;
/// loop {
///     let mut bytes = Vec::new();
///     match stream.fill(&mut bytes, 256 * 1024)? {
///         Step::More => {}
///         Step::File(part) => println!("{} bytes, then {} of a file", bytes.len(), part.length),
///         Step::Done => break,
///     }
/// }
/// # Ok::<(), narval_store::NarIoError>(())
/// ```
#[derive(Debug)]
pub struct NarStream {
    layout: Arc<NarLayout>,
    root: Arc<Root>,
    position: u64,
    end: u64,
    /// The entry at `position`.
    index: usize,
    /// A large file whose contents come next, already open.
    whole: Option<(usize, Arc<File>)>,
    /// The packed NAR with its small files, if there is one.
    packed: Option<Arc<PackedNar>>,
    ahead: Option<Arc<ReadAhead>>,
    slots: VecDeque<Arc<Slot>>,
    /// Batches used so far: reading ahead starts slowly, because most NARs are small.
    batches_used: usize,
}

impl NarStream {
    /// Opens the root and checks that it is the planned one. `range` must be within `0..layout.size_bytes()`; `ahead`
    /// reads small files ahead.
    ///
    /// # Errors
    /// [`NarIoError::Changed`] if the root was replaced since: plan it again.
    pub fn open(
        layout: Arc<NarLayout>,
        path: &Path,
        range: Range<u64>,
        ahead: Option<Arc<ReadAhead>>,
    ) -> Result<Self, NarIoError> {
        if range.start > range.end || range.end > layout.size_bytes() {
            return Err(NarIoError::Range);
        }
        let root = Arc::new(Root::open(&layout, path)?);
        let index = layout.index_at(range.start);
        Ok(Self {
            layout,
            root,
            position: range.start,
            end: range.end,
            index,
            whole: None,
            packed: None,
            ahead,
            slots: VecDeque::new(),
            batches_used: 0,
        })
    }

    /// Reads everything except the contents of large files from a packed NAR of the same layout.
    #[must_use]
    pub fn packed(mut self, packed: Arc<PackedNar>) -> Self {
        self.packed = Some(packed);
        self
    }

    /// The number of remaining bytes.
    pub fn remaining_bytes(&self) -> u64 {
        self.end - self.position
    }

    /// Appends the next bytes: about `room` of them, fewer before a large file and at the end, up to 256 KiB more.
    ///
    /// # Errors
    /// [`NarIoError`] if a file cannot be read, or has changed since it was planned. The NAR cannot be
    /// completed then.
    pub fn fill(&mut self, out: &mut Vec<u8>, room: usize) -> Result<Step, NarIoError> {
        let full = out.len().saturating_add(room);
        if let Some(packed) = self.packed.clone() {
            return self.fill_packed(&packed, out, full);
        }
        loop {
            if self.position >= self.end {
                return Ok(Step::Done);
            }
            if out.len() >= full {
                return Ok(Step::More);
            }
            let layout = self.layout.clone();
            let Some(record) = layout.record(self.index) else { return Ok(Step::Done) };
            if is_whole(record) {
                if let Some(part) = self.fill_whole(record, out)? {
                    return Ok(Step::File(part));
                }
            } else if self.position == record.start {
                self.fill_batch(out)?;
            } else {
                // A range that starts within an entry.
                let one = self.index..self.index + 1;
                let mut bytes = Vec::new();
                read_batch(&layout, &self.root, &one, &mut bytes)?;
                let skip = usize::try_from(self.position - record.start).unwrap_or(usize::MAX);
                self.take(bytes.get(skip..).unwrap_or_default(), out);
            }
            while self.index + 1 < layout.entry_count() && layout.start(self.index + 1) <= self.position {
                self.index += 1;
            }
        }
    }

    fn fill_packed(&mut self, packed: &PackedNar, out: &mut Vec<u8>, full: usize) -> Result<Step, NarIoError> {
        let layout = self.layout.clone();
        while self.position < self.end {
            if out.len() >= full {
                return Ok(Step::More);
            }
            let (file, offset, length) = match packed.place(self.position) {
                ByteLocation::Packed { offset, length } => (packed.file().clone(), offset, length),
                ByteLocation::Large { index, offset, length } => {
                    self.index = index;
                    let Some(record) = layout.record(index) else { break };
                    (self.open_whole(record)?, offset, length)
                }
            };
            let length = length.min(self.remaining_bytes());
            self.position += length;
            if length >= PACKED_RUN_MIN {
                return Ok(Step::File(FilePart { file, offset, length }));
            }
            let from = out.len();
            out.resize(from + usize::try_from(length).unwrap_or(0), 0);
            let read = file.read_exact_at(out.get_mut(from..).unwrap_or_default(), offset);
            read.map_err(|error| NarIoError::io("read", &self.root.path, error))?;
        }
        Ok(Step::Done)
    }

    /// Produces the head of a large file, a part of its contents, or the bytes after it.
    fn fill_whole(&mut self, record: &Record, out: &mut Vec<u8>) -> Result<Option<FilePart>, NarIoError> {
        let head_len = record.head_len();
        let within = self.position - record.start;
        let mut bytes = Vec::new();
        let from = if within < head_len {
            // Opened before its head is produced, to detect a missing file as early as possible.
            self.open_whole(record)?;
            self.layout.push_head(record, &mut bytes);
            within
        } else if within < head_len + record.extent {
            let file = self.open_whole(record)?;
            let offset = within - head_len;
            let length = (record.extent - offset).min(self.remaining_bytes());
            self.position += length;
            return Ok(Some(FilePart { file, offset, length }));
        } else {
            self.whole = None;
            NarLayout::push_tail(record, &mut bytes);
            within - head_len - record.extent
        };
        self.take(bytes.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default(), out);
        Ok(None)
    }

    fn open_whole(&mut self, record: &Record) -> Result<Arc<File>, NarIoError> {
        if let Some((index, file)) = &self.whole
            && *index == self.index
        {
            return Ok(file.clone());
        }
        let path = || self.layout.path(&self.root.path, self.index);
        let mut below = Vec::new();
        self.layout.push_path(self.index, &mut below);
        below.push(0);
        let file = self.root.open_file(&below).map_err(|error| NarIoError::io("open", &path(), error))?;
        let stat = rustix::fs::fstat(&file).map_err(|error| NarIoError::io("read", &path(), error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(NarIoError::Changed { path: path(), change: "it is no longer a regular file" });
        }
        if u64::try_from(stat.st_size) != Ok(record.extent) {
            return Err(NarIoError::Changed { path: path(), change: "its size has changed" });
        }
        let file = Arc::new(file);
        self.whole = Some((self.index, file.clone()));
        Ok(file)
    }

    fn fill_batch(&mut self, out: &mut Vec<u8>) -> Result<(), NarIoError> {
        let entries = plan_batch(&self.layout, self.index, self.end);
        while self.slots.front().is_some_and(|slot| slot.batch.entries.start < entries.start) {
            self.slots.pop_front();
        }
        let slot = self.slots.pop_front_if(|slot| slot.batch.entries == entries);
        self.batches_used += 1;
        self.read_ahead(entries.end);
        match slot.and_then(|slot| slot.take()) {
            Some(bytes) => self.take(&bytes?, out),
            // No thread has started it: read it here, directly to its destination.
            None => {
                let from = out.len();
                read_batch(&self.layout, &self.root, &entries, out)?;
                let read = (out.len() - from) as u64;
                let wanted = read.min(self.remaining_bytes());
                out.truncate(from + usize::try_from(wanted).unwrap_or(usize::MAX));
                self.position += wanted;
            }
        }
        Ok(())
    }

    /// Schedules the next batches, as far as memory and the queue allow.
    fn read_ahead(&mut self, after: usize) {
        let Some(ahead) = &self.ahead else { return };
        let mut next = self.slots.back().map_or(after, |slot| slot.batch.entries.end);
        while self.slots.len() < self.batches_used.min(BATCHES_AHEAD_MAX) {
            while self.layout.record(next).is_some_and(is_whole) {
                next += 1;
            }
            if self.layout.start(next) >= self.end {
                return;
            }
            let entries = plan_batch(&self.layout, next, self.end);
            next = entries.end;
            let batch = Batch { layout: self.layout.clone(), root: self.root.clone(), entries };
            match ahead.schedule(batch) {
                Some(slot) => self.slots.push_back(slot),
                None => return,
            }
        }
    }

    /// Appends bytes at the current position, up to the end of the range.
    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let wanted = usize::try_from(self.remaining_bytes()).unwrap_or(usize::MAX);
        let bytes = bytes.get(..wanted).unwrap_or(bytes);
        out.extend_from_slice(bytes);
        self.position += bytes.len() as u64;
    }
}
