//! The largest inputs, and a reader with limits: on all of a stream, and on each of its entries.

use std::cell::Cell;
use std::io::{self, Read};

/// The largest decoded `packages.json`: six times that of 2026.
pub const PACKAGES_LEN_MAX: u64 = 1 << 30;
/// The largest entry of one attribute. Long descriptions have some kilobytes.
pub const ENTRY_LEN_MAX: u64 = 1 << 20;
/// The most attributes of an index.
pub const ATTRIBUTES_MAX: usize = 2_000_000;
/// The largest decoded list of store paths.
pub const STORE_PATHS_LEN_MAX: u64 = 1 << 30;
/// The most store paths of an index.
pub const STORE_PATHS_MAX: usize = 8_000_000;
/// The longest line of a list of store paths.
pub const LINE_LEN_MAX: usize = 4096;
/// The longest attribute path, in bytes.
pub const ATTRIBUTE_LEN_MAX: usize = 512;
/// The longest text of an index, such as a description, in bytes; longer ones are cut.
pub const TEXT_LEN_MAX: usize = 1000;
/// The most outputs of one package.
pub const OUTPUTS_MAX: usize = 64;
/// What all tables of an index may hold before they are written, in bytes.
pub const TABLES_LEN_MAX: usize = 1 << 30;

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
