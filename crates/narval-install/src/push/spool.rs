//! A file of a cache that is complete before it is sent, since its name is its hash: small ones in memory.

use std::fs::File;
use std::io::{self, Write};

use narval_client::Payload;
use narval_nix::{Sha256, Sha256Hasher};

/// Bytes that are kept in memory; what is longer goes to a file.
const MEMORY_LEN_MAX: usize = 4 * 1024 * 1024;

/// Bytes that are being collected. Its file, if it has one, has no name, so that nothing is left of it whatever happens.
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

    /// What is to be sent.
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
