//! The locks of Nix: the whole store, the garbage collector, one path.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use narval_nix::StorePath;
use rustix::fs::FlockOperation;

use super::{LocalStore, LocalStoreError};
use crate::config::StoreConfig;

/// What a process holds as long as it has a store open.
#[derive(Debug)]
pub(super) struct StoreLocks {
    /// Nix upgrades the schema only when nobody holds this.
    _big: File,
    /// Nix collects garbage only when nobody else holds this: what is unpacked stays until it is rooted. Shared by those
    /// who add, held alone by those who collect.
    _collector: File,
}

impl StoreLocks {
    /// Waits for a schema upgrade or a garbage collection to end.
    pub(super) fn take(config: &StoreConfig, collector: FlockOperation) -> Result<Self, LocalStoreError> {
        let big = config.state_dir.join("db/big-lock");
        let gc = config.state_dir.join("gc.lock");
        Ok(Self { _big: locked(&big, FlockOperation::LockShared)?, _collector: locked(&gc, collector)? })
    }
}

/// Opens a lock file, making it if need be, and waits for the lock.
fn locked(path: &Path, operation: FlockOperation) -> Result<File, LocalStoreError> {
    let file = open(path)?;
    loop {
        match rustix::fs::flock(&file, operation) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(LocalStoreError::io("lock", path, error)),
        }
    }
}

fn open(path: &Path) -> Result<File, LocalStoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    options.open(path).map_err(|error| LocalStoreError::io("open", path, error))
}

/// The right to write one store path, against other processes, Nix among them.
#[derive(Debug)]
pub struct PathLock {
    file: File,
    path: PathBuf,
}

impl LocalStore {
    /// Waits for the right to write a path. To hold several at once, take them in sorted order.
    ///
    /// # Errors
    /// When the lock file can't be made.
    pub fn lock(&self, path: &StorePath) -> Result<PathLock, LocalStoreError> {
        let mut name = self.real_path(path).into_os_string();
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            let file = locked(&path, FlockOperation::LockExclusive)?;
            let stat = file.metadata().map_err(|error| LocalStoreError::io("read", &path, error))?;
            // Whoever had it before has removed the file and marked it so.
            if stat.len() == 0 {
                return Ok(PathLock { file, path });
            }
        }
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        // A lock file that stays behind is harmless: the next one locks it. What matters is that one that is removed is
        // marked, so that those who wait for it see that they have the wrong one.
        if std::fs::remove_file(&self.path).is_ok() {
            self.file.write_all(b"d").ok();
        }
    }
}
