//! A NAR as a plain stream of bytes: for hashing, dumping and uploading.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use super::{FilePart, NarIoError, NarLayout, NarStream, Step};

/// Size of the buffer.
const BUFFER_LEN: usize = 128 * 1024;

/// Reads the NAR of a path, without additional threads.
#[derive(Debug)]
pub struct NarReader {
    stream: NarStream,
    buffer: Vec<u8>,
    at: usize,
    file: Option<FilePart>,
}

impl NarReader {
    /// Plans the NAR of the file, directory or symlink at this path.
    ///
    /// # Errors
    /// See [`NarLayout::scan`].
    pub fn open(path: &Path) -> Result<Self, NarIoError> {
        let layout = Arc::new(NarLayout::scan(path)?);
        let range = 0..layout.size_bytes();
        Ok(Self::of(NarStream::open(layout, path, range, None)?))
    }

    /// Reads from a stream.
    pub fn of(stream: NarStream) -> Self {
        Self { stream, buffer: Vec::new(), at: 0, file: None }
    }
}

impl Read for NarReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let ready = self.buffer.get(self.at..).unwrap_or_default();
            if !ready.is_empty() {
                let len = ready.len().min(out.len());
                if let (Some(to), Some(from)) = (out.get_mut(..len), ready.get(..len)) {
                    to.copy_from_slice(from);
                }
                self.at += len;
                return Ok(len);
            }
            if let Some(part) = self.file.as_mut().filter(|part| part.length > 0) {
                let wanted = usize::try_from(part.length).unwrap_or(usize::MAX).min(out.len());
                let to = out.get_mut(..wanted).unwrap_or_default();
                let read = rustix::io::pread(part.file.as_fd(), to, part.offset)?;
                if read == 0 {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a file became shorter while it was read"));
                }
                part.offset += read as u64;
                part.length -= read as u64;
                return Ok(read);
            }
            self.file = None;
            self.buffer.clear();
            self.at = 0;
            match self.stream.fill(&mut self.buffer, BUFFER_LEN)? {
                Step::More => {}
                Step::File(part) => self.file = Some(part),
                Step::Done if self.buffer.is_empty() => return Ok(0),
                Step::Done => {}
            }
        }
    }
}
