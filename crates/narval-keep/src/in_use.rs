//! Who has a data folder open, or the local folder of a bucket: many processes, or one that rebuilds its index.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{DataError, io_error};

/// Locked as long as the folder is open. It is never removed: others may have it open.
const LOCK: &str = "in-use.lock";

/// A folder that is open. The lock ends with this, or with the process.
pub(super) struct InUse {
    file: File,
}

impl Drop for InUse {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread has just started has the file open until it executes its program.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl InUse {
    /// By a server or a command.
    pub(super) fn by_many(folder: &Path) -> Result<Self, DataError> {
        let reason = "its index is being rebuilt: wait until that has ended";
        Self::lock(folder, FlockOperation::NonBlockingLockShared, reason)
    }

    /// By one that nobody else is beside.
    pub(super) fn alone(folder: &Path) -> Result<Self, DataError> {
        let reason = "a server or another command has it open: stop it first";
        Self::lock(folder, FlockOperation::NonBlockingLockExclusive, reason)
    }

    /// Of a folder for backups: by the one that is being made.
    pub(super) fn by_backup(folder: &Path) -> Result<Self, DataError> {
        let reason = "another backup is being made in it: wait until that has ended";
        Self::lock(folder, FlockOperation::NonBlockingLockExclusive, reason)
    }

    fn lock(folder: &Path, operation: FlockOperation, reason: &str) -> Result<Self, DataError> {
        let path = folder.join(LOCK);
        let open = || {
            // Private NARs, narinfos and hashes of tokens are in it. An existing folder keeps its mode.
            if let Some(parent) = folder.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            File::options().create(true).append(true).open(&path)
        };
        let file = open().map_err(|source| io_error("open", &path, source))?;
        match flock(&file, operation) {
            Ok(()) => Ok(Self { file }),
            Err(Errno::WOULDBLOCK) => {
                Err(DataError::IndexMismatch { folder: folder.to_owned(), reason: reason.to_owned() })
            }
            Err(error) => Err(io_error("lock", &path, io::Error::from(error))),
        }
    }
}
