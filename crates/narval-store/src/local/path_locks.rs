//! The locks of store paths.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use narval_nix::StorePath;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::LocalStore;
use super::error::LocalStoreError;
use super::locks::Waiting;

/// The lock of a store path, which excludes other processes, including Nix.
#[derive(Debug)]
pub struct PathLock {
    file: File,
    directory: Arc<File>,
    name: String,
}

impl LocalStore {
    /// Waits for the lock of a path. To hold several locks at once, take them in sorted order.
    ///
    /// # Errors
    /// The lock file cannot be created.
    pub fn lock(&self, path: &StorePath) -> Result<PathLock, LocalStoreError> {
        let (name, shown) = self.lock_name(path);
        loop {
            let file = self.open_lock(&name, &shown)?;
            Waiting::of(&self.config).wait_for(&file, &shown, FlockOperation::NonBlockingLockExclusive)?;
            if let Some(lock) = self.unless_stale(file, &name, &shown)? {
                return Ok(lock);
            }
        }
    }

    /// Locks a path, unless another process has locked it.
    ///
    /// # Errors
    /// The lock file cannot be created.
    pub(super) fn try_lock(&self, path: &StorePath) -> Result<Option<PathLock>, LocalStoreError> {
        let (name, shown) = self.lock_name(path);
        loop {
            let file = self.open_lock(&name, &shown)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(LocalStoreError::io("lock", &shown, error)),
            }
            if let Some(lock) = self.unless_stale(file, &name, &shown)? {
                return Ok(Some(lock));
            }
        }
    }

    fn lock_name(&self, path: &StorePath) -> (String, PathBuf) {
        let name = format!("{}.lock", path.base_name());
        let shown = self.config.real_store_dir.join(&name);
        (name, shown)
    }

    fn open_lock(&self, name: &str, shown: &Path) -> Result<File, LocalStoreError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&*self.directory, name, flags, Mode::RUSR | Mode::WUSR);
        opened.map(File::from).map_err(|error| LocalStoreError::io("open", shown, error))
    }

    /// The lock of a file that is locked, unless its previous owner has removed it and marked it as stale.
    fn unless_stale(&self, file: File, name: &str, shown: &Path) -> Result<Option<PathLock>, LocalStoreError> {
        let found = file.metadata().map_err(|error| LocalStoreError::io("read", shown, error))?;
        let lock = || PathLock { file, directory: Arc::clone(&self.directory), name: name.to_owned() };
        Ok((found.len() == 0).then(lock))
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        // A lock file that is left behind is harmless: the next process locks it. But one that is removed must be
        // marked as stale, so that waiting processes notice that they have locked the wrong file.
        if rustix::fs::unlinkat(&*self.directory, self.name.as_str(), AtFlags::empty()).is_ok() {
            self.file.write_all(b"d").ok();
        }
    }
}
