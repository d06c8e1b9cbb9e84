//! The locks of Nix: the whole store, the garbage collector, one path.

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

/// How long others are waited for, and that it is said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    limit: Duration,
}

/// The time between two looks at a lock that another process has.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A wait of this length is mentioned.
const MENTIONED_AFTER: Duration = Duration::from_secs(3);

impl Waiting {
    pub(super) fn of(config: &StoreConfig) -> Self {
        Self { limit: config.lock_timeout }
    }

    pub(super) fn begin(self, path: &Path) -> Wait<'_> {
        Wait { limit: self.limit, path, since: Instant::now(), mentioned: false }
    }

    /// Opens a lock file, making it if need be, and waits for the lock.
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
    /// Sleeps a little.
    ///
    /// # Errors
    /// [`LocalStoreError::Locked`] when this has lasted for too long.
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

/// What a process holds as long as it has a store open.
#[derive(Debug)]
pub(super) struct StoreLocks {
    /// Nix upgrades the schema only when nobody holds this.
    _big: File,
    /// Held by those who collect garbage. Those who add hold it only while they write a temporary root down.
    _collector: Option<File>,
}

impl StoreLocks {
    /// Waits for a schema upgrade to end, and before collecting for other collections too.
    pub(super) fn take(config: &StoreConfig, collect: bool) -> Result<Self, LocalStoreError> {
        let big = config.state_dir.join("db/big-lock");
        let gc = config.state_dir.join("gc.lock");
        let waiting = Waiting::of(config);
        let collector = collect.then(|| waiting.locked(&gc, FlockOperation::NonBlockingLockExclusive));
        let _big = waiting.locked(&big, FlockOperation::NonBlockingLockShared)?;
        Ok(Self { _big, _collector: collector.transpose()? })
    }
}

/// Waits for the lock of a file of its own, outside of a store; makes the file if there is none, for everybody to read and so
/// to lock. A symlink is not followed. The lock ends with the handle.
///
/// # Errors
/// [`LocalStoreError::Locked`] when another process has it for longer than `limit`.
pub fn lock_file(path: &Path, limit: Duration) -> Result<File, LocalStoreError> {
    let mut options = OpenOptions::new();
    options.read(true).mode(0o644).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    let file = match options.clone().write(true).create(true).truncate(false).open(path) {
        // Another user's, of whom this one takes turns with the administrator, say.
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

/// The lock of one store path, which excludes other processes, Nix included.
#[derive(Debug)]
pub struct PathLock {
    file: File,
    path: PathBuf,
}

impl LocalStore {
    /// Waits for the lock of a path. To hold several locks at once, take them in sorted order.
    ///
    /// # Errors
    /// If the lock file cannot be made.
    pub fn lock(&self, path: &StorePath) -> Result<PathLock, LocalStoreError> {
        let mut name = self.real_path(path).into_os_string();
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            let file = Waiting::of(&self.config).locked(&path, FlockOperation::NonBlockingLockExclusive)?;
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
