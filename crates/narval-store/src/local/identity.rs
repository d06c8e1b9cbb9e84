//! What a file is recognised by.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identifies a path in the store directory, to detect its replacement: replacing it, or even making it writable,
/// changes its ctime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Identity {
    pub(super) fn of(path: &Path) -> std::io::Result<Self> {
        let found = std::fs::symlink_metadata(path)?;
        let changed = (found.ctime(), found.ctime_nsec());
        Ok(Self { device: found.dev(), inode: found.ino(), changed })
    }
}
