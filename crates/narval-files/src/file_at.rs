//! Reads a file that others read, too.

use std::borrow::Borrow;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Reads a file from an offset, without using the file's own position.
#[derive(Debug)]
pub struct FileAt<F> {
    file: F,
    offset: u64,
}

impl<F: Borrow<File>> FileAt<F> {
    /// Begins at an offset in bytes.
    pub const fn new(file: F, offset: u64) -> Self {
        Self { file, offset }
    }
}

impl<F: Borrow<File>> Read for FileAt<F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.borrow().read_at(out, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}
