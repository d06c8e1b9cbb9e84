//! The total size of a cache's small files.

use std::io;
use std::sync::{Mutex, PoisonError};

/// Bytes of small files: counted once, then kept in step. Other processes that write the same folder are seen with the next
/// collection.
#[derive(Debug, Default)]
pub(crate) struct SmallBytes(Mutex<Option<u64>>);

impl SmallBytes {
    pub(crate) fn get(&self, count: impl FnOnce() -> io::Result<u64>) -> io::Result<u64> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *bytes {
            Some(bytes) => Ok(bytes),
            None => Ok(*bytes.insert(count()?)),
        }
    }

    pub(crate) fn change(&self, old: u64, new: u64) {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *bytes = bytes.map(|bytes| bytes.saturating_sub(old).saturating_add(new));
    }

    /// Makes the next call count again.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
