//! The offsets of the frames in a zstd file, so that a part of its contents can be decoded without the data before it.
//!
//! Frames are found by their headers and those of their blocks (RFC 8878, 3.1.1): nothing is decompressed. A frame without a contents
//! size ends the search, because the offsets after it are unknown.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::zstd_frames::{BLOCK_HEADER_LEN, CHECKSUM_LEN, Header, MAGIC, PREFIX_LEN, SKIPPABLE_MAGIC, little_endian};

/// The minimum distance between recorded frames, in decompressed bytes.
const DISTANCE_MIN: u64 = 1024 * 1024;
/// The maximum number of headers that are read. A NAR of 100 GB has this many blocks.
const HEADERS_MAX: usize = 1 << 20;
/// The longest frame header after its prefix (3.1.1.1).
const HEADER_LEN_MAX: usize = 13;

/// The frames of a zstd file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameIndex {
    /// In ascending order; the first is the start of the file.
    starts: Vec<FrameStart>,
}

/// The start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameStart {
    /// Offset in the file, in bytes.
    pub file: u64,
    /// Offset of its contents in the decompressed file.
    pub contents: u64,
}

impl FrameIndex {
    /// Reads the headers of a file of this length. A damaged file has fewer frames than a good one: decoding it fails.
    ///
    /// ```
    /// use std::io::Write;
    /// use narval_codec::decode::FrameIndex;
    /// let frame = zstd::bulk::compress(&vec![7; 3 << 20], 1)?;
    /// let mut file = tempfile::tempfile()?;
    /// file.write_all(&[&frame[..], &frame[..]].concat())?;
    /// let index = FrameIndex::read(&file, 2 * frame.len() as u64)?;
    /// assert_eq!(index.before(4 << 20).file, frame.len() as u64);
    /// assert_eq!(index.before(2 << 20).file, 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(file: &File, len: u64) -> io::Result<Self> {
        let mut starts = vec![FrameStart { file: 0, contents: 0 }];
        let mut headers = Headers { file, len, left: HEADERS_MAX };
        let mut at = FrameStart { file: 0, contents: 0 };
        while let Some(next) = headers.after_frame(at)? {
            at = next;
            if at.file < len && starts.last().is_none_or(|last| at.contents - last.contents >= DISTANCE_MIN) {
                starts.push(at);
            }
        }
        starts.shrink_to_fit();
        Ok(Self { starts })
    }

    /// The last recorded frame whose contents begin at or before this offset.
    pub fn before(&self, contents: u64) -> FrameStart {
        let after = self.starts.partition_point(|start| start.contents <= contents);
        self.starts.get(after.saturating_sub(1)).copied().unwrap_or(FrameStart { file: 0, contents: 0 })
    }

    /// Its size in memory, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.starts.len() * size_of::<FrameStart>()
    }
}

/// Reads the headers of a file.
struct Headers<'a> {
    file: &'a File,
    len: u64,
    /// How many more are read.
    left: usize,
}

impl Headers<'_> {
    /// The place after a frame; `None` if it is unknown, or the file ends.
    fn after_frame(&mut self, at: FrameStart) -> io::Result<Option<FrameStart>> {
        let mut bytes = [0; PREFIX_LEN + HEADER_LEN_MAX];
        let available = self.read(at.file, &mut bytes)?;
        let Some(found) = bytes.get(..available).filter(|found| found.len() > PREFIX_LEN) else { return Ok(None) };
        let magic = little_endian(found, 0, 4);
        if magic & 0xFFFF_FFF0 == u64::from(SKIPPABLE_MAGIC) {
            // Magic number and length.
            let end = at.file.saturating_add(8).saturating_add(little_endian(found, 4, 4));
            return Ok((found.len() >= 8).then_some(FrameStart { file: end, ..at }));
        }
        let header = Header::of(found.get(4).copied().unwrap_or_default());
        if magic != u64::from(MAGIC) || found.len() < PREFIX_LEN + header.len {
            return Ok(None);
        }
        let Some(contents) = header.contents(found) else { return Ok(None) };
        let mut end = at.file.saturating_add((PREFIX_LEN + header.len) as u64);
        loop {
            let mut block = [0; BLOCK_HEADER_LEN];
            if self.read(end, &mut block)? < BLOCK_HEADER_LEN {
                return Ok(None);
            }
            let block = little_endian(&block, 0, BLOCK_HEADER_LEN);
            // An RLE block contains only the repeated byte.
            let (is_last, kind, size) = (block & 1 == 1, block >> 1 & 3, block >> 3);
            end = end.saturating_add(BLOCK_HEADER_LEN as u64).saturating_add(if kind == 1 { 1 } else { size });
            if is_last {
                break;
            }
        }
        if header.checksum {
            end = end.saturating_add(CHECKSUM_LEN as u64);
        }
        let contents = at.contents.checked_add(contents);
        Ok(contents.filter(|_| end <= self.len).map(|contents| FrameStart { file: end, contents }))
    }

    /// Reads up to the length of the buffer; nothing once too many headers were read.
    fn read(&mut self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        self.left -= 1;
        let mut read = 0;
        while let Some(rest) = to.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, at.saturating_add(read as u64)) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn index(bytes: &[u8]) -> FrameIndex {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        FrameIndex::read(&file, bytes.len() as u64).unwrap()
    }

    fn frame(contents: &[u8], size: bool, checksum: bool) -> Vec<u8> {
        let mut context = zstd_safe::CCtx::create();
        context.set_parameter(zstd_safe::CParameter::ContentSizeFlag(size)).unwrap();
        context.set_parameter(zstd_safe::CParameter::ChecksumFlag(checksum)).unwrap();
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(contents.len()));
        context.compress2(&mut out, contents).unwrap();
        out
    }

    fn noise(length: usize) -> Vec<u8> {
        (0..length as u32 / 4 + 1).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).take(length).collect()
    }

    #[test]
    fn from_every_start_the_rest_is_decoded() {
        let parts = [noise(1_500_000), vec![0; 2_000_000], noise(300), vec![1; 900_000], noise(1_100_000)];
        let skippable = [&(SKIPPABLE_MAGIC + 3).to_le_bytes()[..], &[4, 0, 0, 0, 1, 2, 3, 4]].concat();
        let mut file = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            file.extend(frame(part, true, number % 2 == 0));
            file.extend(&skippable);
        }
        let (contents, index) = (parts.concat(), index(&file));
        assert_eq!(index.starts.len(), 4, "{index:?}");
        for start in &index.starts {
            let rest = zstd::decode_all(&file[start.file as usize..]).unwrap();
            assert!(rest == contents[start.contents as usize..], "{start:?}");
        }
        assert_eq!(index.before(3_499_999), index.starts[1]);
        assert_eq!(index.before(u64::MAX), index.starts[3]);
    }

    #[test]
    fn a_frame_without_a_size_ends_the_search() {
        let (known, unknown) = (frame(&noise(1_500_000), true, false), frame(&noise(1_500_000), false, false));
        assert_eq!(index(&[&known[..], &unknown, &known].concat()).starts.len(), 2);
        assert_eq!(index(&unknown).starts.len(), 1);
        assert_eq!(index(b"").starts.len(), 1);
    }

    #[test]
    fn many_empty_frames_are_not_all_looked_at() {
        let empty = frame(b"", true, false);
        let index = index(&empty.repeat(HEADERS_MAX / 2 + 100));
        assert_eq!(index.starts.len(), 1);
    }

    proptest! {
        #[test]
        fn no_file_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..200), as_frame in any::<bool>()) {
            if as_frame {
                bytes.splice(0..0, MAGIC.to_le_bytes());
            }
            let index = index(&bytes);
            prop_assert!(index.starts.iter().all(|start| start.file <= bytes.len() as u64));
        }
    }
}
