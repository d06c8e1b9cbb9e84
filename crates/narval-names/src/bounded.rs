//! A reader with limits: on all of a stream, and on each of its entries.

use std::cell::Cell;
use std::io::{self, Read};

/// Fails after `left` bytes, and if `entry` bytes are read before the caller fills that up again. The limits are checked per buffer.
pub(crate) struct Bounded<'a, R> {
    pub(crate) reader: R,
    pub(crate) what: &'static str,
    pub(crate) left: u64,
    pub(crate) limit: u64,
    pub(crate) entry: &'a Cell<u64>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(out)?;
        let len = read as u64;
        if len > self.left {
            return Err(io::Error::other(format!("{} exceeds the limit of {} bytes", self.what, self.limit)));
        }
        self.left -= len;
        match self.entry.get().checked_sub(len) {
            Some(left) => self.entry.set(left),
            None => return Err(io::Error::other(format!("an entry of {} is too long", self.what))),
        }
        Ok(read)
    }
}
