//! Nix's locks: of the whole store and of the garbage collector, and how long is waited for any.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::error::LocalStoreError;
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

    pub(super) fn wait_for(self, file: &File, path: &Path, operation: FlockOperation) -> Result<(), LocalStoreError> {
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

/// Waits for a schema upgrade to end. The lock is held as long as the store is open: Nix upgrades the schema only when
/// nobody holds it.
pub(super) fn lock_schema(config: &StoreConfig) -> Result<File, LocalStoreError> {
    let path = config.state_dir.join("db/big-lock");
    Waiting::of(config).locked(&path, FlockOperation::NonBlockingLockShared)
}

/// Waits for other garbage collections to end. Processes that add paths hold this lock only while they write a temporary
/// root.
pub(super) fn lock_collector(config: &StoreConfig) -> Result<File, LocalStoreError> {
    let path = config.state_dir.join("gc.lock");
    Waiting::of(config).locked(&path, FlockOperation::NonBlockingLockExclusive)
}

/// Waits for the lock of a file outside of a store. Creates the file if it does not exist, readable for everyone so that
/// everyone can lock it. Symlinks are not followed. Dropping the handle releases the lock.
///
/// # Errors
/// [`LocalStoreError::Locked`] if another process holds it for longer than `limit`.
pub fn lock_file(path: &Path, limit: Duration) -> Result<File, LocalStoreError> {
    let mut options = OpenOptions::new();
    options.read(true).mode(0o644).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
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
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options.open(path).map_err(|error| LocalStoreError::io("open", path, error))
}
