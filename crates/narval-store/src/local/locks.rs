//! Nix's locks: of the whole store, of the garbage collector, and of a path.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use narval_nix::StorePath;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{LocalStore, LocalStoreError};
use crate::config::StoreConfig;

/// How long to wait for other processes, and whether that was logged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    limit: Duration,
}

/// The polling interval for a lock that another process holds.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A wait of this length is logged.
const MENTIONED_AFTER: Duration = Duration::from_secs(3);

impl Waiting {
    pub(super) fn of(config: &StoreConfig) -> Self {
        Self { limit: config.lock_timeout }
    }

    pub(super) fn begin(self, path: &Path) -> Wait<'_> {
        Wait { limit: self.limit, path, since: Instant::now(), mentioned: false }
    }

    /// Opens a lock file, creating it if necessary, and waits for the lock.
    fn locked(self, path: &Path, operation: FlockOperation) -> Result<File, LocalStoreError> {
        let file = open(path)?;
        self.wait_for(&file, path, operation)?;
        Ok(file)
    }

    fn wait_for(self, file: &File, path: &Path, operation: FlockOperation) -> Result<(), LocalStoreError> {
        let mut wait = self.begin(path);
        loop {
            match rustix::fs::flock(file, operation) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => wait.pause()?,
                Err(error) => return Err(LocalStoreError::io("lock", path, error)),
            }
        }
    }
}

/// One wait for a lock.
#[derive(Debug)]
pub(super) struct Wait<'a> {
    limit: Duration,
    path: &'a Path,
    since: Instant,
    mentioned: bool,
}

impl Wait<'_> {
    /// Sleeps for an interval.
    ///
    /// # Errors
    /// [`LocalStoreError::Locked`] if the timeout has expired.
    pub(super) fn pause(&mut self) -> Result<(), LocalStoreError> {
        let waited = self.since.elapsed();
        if waited >= self.limit {
            return Err(LocalStoreError::Locked { path: self.path.to_owned(), waited_s: waited.as_secs() });
        }
        if waited >= MENTIONED_AFTER && !std::mem::replace(&mut self.mentioned, true) {
            tracing::warn!("waiting for another process to unlock '{}'", self.path.display());
        }
        std::thread::sleep(LOOK_AGAIN_AFTER.min(self.limit.saturating_sub(waited)));
        Ok(())
    }
}

/// The locks that a process holds while it has a store open.
#[derive(Debug)]
pub(super) struct StoreLocks {
    /// Nix upgrades the schema only when nobody holds this.
    _big: File,
    /// Held during a garbage collection. Processes that add paths hold it only while they write a temporary root.
    _collector: Option<File>,
}

impl StoreLocks {
    /// Waits for a schema upgrade to end, and before a collection also for other collections.
    pub(super) fn take(config: &StoreConfig, collect: bool) -> Result<Self, LocalStoreError> {
        let big = config.state_dir.join("db/big-lock");
        let gc = config.state_dir.join("gc.lock");
        let waiting = Waiting::of(config);
        let collector = collect.then(|| waiting.locked(&gc, FlockOperation::NonBlockingLockExclusive));
        let _big = waiting.locked(&big, FlockOperation::NonBlockingLockShared)?;
        Ok(Self { _big, _collector: collector.transpose()? })
    }
}

/// Waits for the lock of a file outside of a store. Creates the file if it does not exist, readable for everyone so that
/// everyone can lock it. Symlinks are not followed. Dropping the handle releases the lock.
///
/// # Errors
/// [`LocalStoreError::Locked`] if another process holds it for longer than `limit`.
pub fn lock_file(path: &Path, limit: Duration) -> Result<File, LocalStoreError> {
    let mut options = OpenOptions::new();
    options.read(true).mode(0o644).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    let file = match options.clone().write(true).create(true).truncate(false).open(path) {
        // The file may belong to another user, such as the administrator.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => options.open(path),
        file => file,
    };
    let file = file.map_err(|error| LocalStoreError::io("open", path, error))?;
    Waiting { limit }.wait_for(&file, path, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

pub(super) fn open(path: &Path) -> Result<File, LocalStoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    options.open(path).map_err(|error| LocalStoreError::io("open", path, error))
}

/// The lock of a store path, which excludes other processes, including Nix.
#[derive(Debug)]
pub struct PathLock {
    file: File,
    path: PathBuf,
}

impl LocalStore {
    /// Waits for the lock of a path. To hold several locks at once, take them in sorted order.
    ///
    /// # Errors
    /// The lock file cannot be created.
    pub fn lock(&self, path: &StorePath) -> Result<PathLock, LocalStoreError> {
        let mut name = self.real_path(path).into_os_string();
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            let file = Waiting::of(&self.config).locked(&path, FlockOperation::NonBlockingLockExclusive)?;
            let stat = file.metadata().map_err(|error| LocalStoreError::io("read", &path, error))?;
            // The previous owner has removed the file and marked it as stale.
            if stat.len() == 0 {
                return Ok(PathLock { file, path });
            }
        }
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        // A lock file that is left behind is harmless: the next process locks it. But one that is removed must be
        // marked as stale, so that waiting processes notice that they have locked the wrong file.
        if std::fs::remove_file(&self.path).is_ok() {
            self.file.write_all(b"d").ok();
        }
    }
}
