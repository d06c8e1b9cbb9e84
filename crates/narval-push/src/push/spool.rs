//! A file of a cache that must be complete before it is sent, because its name is its hash. Small ones are in memory.

use std::fs::File;
use std::io::{self, Write};

use narval_client::Payload;
use narval_nix::{Sha256, Sha256Hasher};

/// The maximum number of bytes in memory; more go to a file.
const MEMORY_LEN_MAX: usize = 4 * 1024 * 1024;

/// Collects bytes. Its file, if any, has no name, so nothing is left behind in any case.
#[derive(Default)]
pub(super) struct Spool {
    memory: Vec<u8>,
    file: Option<File>,
    hasher: Sha256Hasher,
    len: u64,
}

impl Spool {
    /// Hash and length in bytes.
    pub(super) fn finish(&mut self) -> (Sha256, u64) {
        (std::mem::take(&mut self.hasher).finish(), self.len)
    }

    /// The body to send.
    pub(super) fn payload(&self) -> Payload<'_> {
        match &self.file {
            Some(file) => Payload::File(file, self.len),
            None => Payload::Bytes(&self.memory),
        }
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.file.is_none() && self.memory.len() + bytes.len() > MEMORY_LEN_MAX {
            let mut file = tempfile::tempfile()?;
            file.write_all(&std::mem::take(&mut self.memory))?;
            self.file = Some(file);
        }
        match &mut self.file {
            Some(file) => file.write_all(bytes)?,
            None => self.memory.extend_from_slice(bytes),
        }
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
