//! A NAR packed into one file, without the contents of its large files.
//!
//! The parts that take time to gather (small files, framing) are contiguous in the file. Large files, which
//! `sendfile(2)` sends anyway, stay where they are, unless the whole NAR is packed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::layout::{NarLayout, Record};

/// A packed NAR: its small files and framing in one file, its large files where they are.
#[derive(Debug)]
pub struct PackedNar {
    file: Arc<File>,
    /// The parts that are not packed, in order.
    holes: Box<[Hole]>,
    nar_size_bytes: u64,
    /// Bytes still to be written, and their offset.
    pending: Vec<u8>,
    pending_at: u64,
}

/// The size of a write, and the alignment of its offset: the kernel then caches the file in large folios, and
/// `sendfile(2)` takes three quarters of the time.
const WRITE_LEN: usize = 1024 * 1024;

/// Files of at least this size are not packed: packing one would save a few percent of the time to send it.
const HOLE_MIN: u64 = 1024 * 1024;

fn stays(record: &Record) -> bool {
    record.contents_len() >= HOLE_MIN
}

/// The contents of a large file.
#[derive(Debug, Clone, Copy)]
struct Hole {
    /// Its offset in the NAR.
    start: u64,
    length: u64,
    /// The index of its entry.
    index: usize,
    /// Length of this hole and all before it.
    bytes_until: u64,
}

/// The location of a byte of the NAR.
pub(super) enum ByteLocation {
    /// In the packed file at `offset`, followed by the rest of `length` bytes.
    Packed { offset: u64, length: u64 },
    /// In the file of this entry at `offset`, followed by the rest of `length` bytes.
    Large { index: usize, offset: u64, length: u64 },
}

impl PackedNar {
    /// An empty packed NAR: [put](Self::put) its bytes, which go to `file`, including the contents of large files if
    /// `whole` is set.
    pub fn new(layout: &NarLayout, file: File, whole: bool) -> Self {
        let mut holes = Vec::new();
        let mut bytes_until = 0;
        let records = layout.records.iter().enumerate().filter(|(_, record)| !whole && stays(record));
        for (index, record) in records {
            bytes_until += record.extent;
            let start = record.start + record.head_len();
            holes.push(Hole { start, length: record.extent, index, bytes_until });
        }
        let (pending, pending_at) = (Vec::new(), 0);
        Self { file: Arc::new(file), holes: holes.into(), nar_size_bytes: layout.size_bytes(), pending, pending_at }
    }

    /// The memory used, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.holes)
    }

    /// The file, if the whole NAR is packed.
    pub fn whole(&self) -> Option<&Arc<File>> {
        self.holes.is_empty().then_some(&self.file)
    }

    /// Stores the NAR's bytes at this offset. All bytes must be put, in order.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn put(&mut self, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() && at < self.nar_size_bytes {
            let (is_packed, length) = match self.place(at) {
                ByteLocation::Packed { length, .. } => (true, length),
                ByteLocation::Large { length, .. } => (false, length),
            };
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let room = WRITE_LEN.saturating_sub(self.pending.len()).max(1);
            let length = if is_packed { length.min(room) } else { length };
            let (now, later) = bytes.split_at(bytes.len().min(length));
            if is_packed {
                self.pending.extend_from_slice(now);
                if self.pending.len() >= WRITE_LEN {
                    self.write()?;
                }
            }
            at += now.len() as u64;
            bytes = later;
        }
        if at >= self.nar_size_bytes {
            self.write()?;
            self.pending = Vec::new();
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.pending, self.pending_at)?;
        self.pending_at += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// The location of the byte at this offset of the NAR; the length is 0 only at the end.
    pub(super) fn place(&self, at: u64) -> ByteLocation {
        let next = self.holes.partition_point(|hole| hole.start + hole.length <= at);
        let before = next.checked_sub(1).and_then(|last| self.holes.get(last)).map_or(0, |hole| hole.bytes_until);
        match self.holes.get(next) {
            Some(hole) if hole.start <= at => {
                let offset = at - hole.start;
                ByteLocation::Large { index: hole.index, offset, length: hole.length - offset }
            }
            hole => {
                let end = hole.map_or(self.nar_size_bytes, |hole| hole.start);
                ByteLocation::Packed { offset: at - before, length: end.saturating_sub(at) }
            }
        }
    }
}

impl NarLayout {
    /// The number of files that a [`PackedNar`] saves opening, and its size in bytes without large files.
    pub fn small_files(&self) -> (usize, u64) {
        self.records.iter().fold((0, self.size_bytes), |(files, bytes), record| match stays(record) {
            true => (files, bytes.saturating_sub(record.extent)),
            false => (files + usize::from(record.is_regular()), bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::super::{NarReader, NarStream, WHOLE_FILE_MIN};
    use super::*;

    #[test]
    fn every_range_is_the_same_packed_and_not() {
        let large = usize::try_from(HOLE_MIN).unwrap();
        let whole_file = usize::try_from(WHOLE_FILE_MIN).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("path");
        std::fs::create_dir_all(path.join("d")).unwrap();
        let small = [("a", 5), ("d/e", 40_000), ("d/f", 0), ("d/g", whole_file + 1)];
        for (name, size) in [("b", large + 3), ("c", large), ("z", large + 9)].into_iter().chain(small) {
            let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8 ^ name.as_bytes()[0]).collect();
            std::fs::write(path.join(name), bytes).unwrap();
        }
        let mut nar = Vec::new();
        NarReader::open(&path).unwrap().read_to_end(&mut nar).unwrap();
        let layout = Arc::new(NarLayout::scan(&path).unwrap());
        let size = layout.size_bytes();
        assert_eq!(layout.small_files(), (4, size - 3 * HOLE_MIN - 12));
        for whole in [false, true] {
            let mut packed = PackedNar::new(&layout, tempfile::tempfile().unwrap(), whole);
            // In pieces that end at arbitrary offsets.
            for (piece, at) in nar.chunks(77_777).zip((0..).step_by(77_777)) {
                packed.put(at, piece).unwrap();
            }
            let kept = packed.file.metadata().unwrap().len();
            assert_eq!(kept, if whole { size } else { layout.small_files().1 });
            assert_eq!(packed.whole().is_some(), whole);
            let packed = Arc::new(packed);
            let ends = (0..size).step_by(29_873).chain([1, size - 1, size]);
            let holes = packed.holes.iter().flat_map(|hole| [hole.start, hole.start + hole.length]);
            let edges: Vec<u64> = ends.chain(holes.flat_map(|at| [at - 1, at, at + 1])).collect();
            for (&start, &end) in edges.iter().zip(edges.iter().rev()).filter(|(start, end)| start <= end) {
                let stream = NarStream::open(Arc::clone(&layout), &path, start..end, None).unwrap();
                let mut got = Vec::new();
                NarReader::of(stream.packed(Arc::clone(&packed))).read_to_end(&mut got).unwrap();
                let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
                assert!(got == nar[range], "{start}..{end}");
            }
        }
    }
}
