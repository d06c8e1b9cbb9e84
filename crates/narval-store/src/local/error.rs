//! Why a store could not be written.

use std::io;
use std::path::{Path, PathBuf};

use narval_nix::{NarHash, StorePath};
use thiserror::Error;

use crate::database;
use crate::error::StoreError;
use crate::nar::NarIoError;
use crate::unpack::UnpackError;

/// Why a store could not be written.
#[derive(Debug, Error)]
pub enum LocalStoreError {
    /// A file or directory cannot be used.
    #[error("cannot {action} '{}': {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// SQLite returned an error.
    #[error("Nix database '{}': {source}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The store's schema is not 10.
    #[error("the store '{}' has schema {found}; only 10 (Nix 2.0 and newer) can be written", path.display())]
    Schema {
        /// The file `schema`.
        path: PathBuf,
        /// Its contents.
        found: String,
    },
    /// The NAR is invalid, or cannot be written.
    #[error("cannot unpack '{path}': {source}")]
    Unpack {
        /// The store path.
        path: StorePath,
        /// Why.
        source: UnpackError,
    },
    /// The NAR has the wrong hash.
    #[error("the NAR of '{path}' has hash sha256:{}, but sha256:{} was expected", found.to_nix32(), expected.to_nix32())]
    Hash {
        /// The store path.
        path: StorePath,
        /// The expected hash.
        expected: Box<NarHash>,
        /// The actual hash.
        found: Box<NarHash>,
    },
    /// A path to be registered is not on disk.
    #[error("'{path}' cannot become valid: it is not in the store directory")]
    Missing {
        /// The store path.
        path: StorePath,
    },
    /// A path to be registered refers to one that is not valid.
    #[error("'{path}' cannot become valid: it refers to '{reference}', which is not valid")]
    Reference {
        /// The store path.
        path: StorePath,
        /// The reference.
        reference: StorePath,
    },
    /// Paths have cyclic references.
    #[error("'{path}' cannot become valid: it refers to itself through others")]
    Cycle {
        /// One of them.
        path: StorePath,
    },
    /// A derivation that cannot be read.
    #[error("'{path}' is not a derivation: {reason}")]
    Derivation {
        /// The store path.
        path: StorePath,
        /// Why.
        reason: String,
    },
    /// A path to be deleted is in use.
    #[error("'{path}' cannot be deleted: {reason}")]
    Alive {
        /// The store path.
        path: StorePath,
        /// What uses it.
        reason: String,
    },
    /// Another process replaced a path before it could be registered.
    #[error("'{path}' cannot become valid: another process has changed it")]
    Changed {
        /// The store path.
        path: StorePath,
    },
    /// A root cannot be followed, so it is unknown what it keeps.
    #[error(
        "cannot follow the root '{}' to '{}': {source}; run the same command as root or as its owner, or remove that link",
        link.display(),
        target.display()
    )]
    Root {
        /// The root's own link.
        link: PathBuf,
        /// Where it points.
        target: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no store.
    #[error("there is no store at '{}'; check --store", path.display())]
    NoStore {
        /// Its store directory.
        path: PathBuf,
    },
    /// The store directory is mounted read-only.
    #[error(
        "the store directory '{}' is read-only ({reason}); use '--store daemon' if the Nix daemon runs, or mount it \
         writable",
        path.display()
    )]
    ReadOnly {
        /// The store directory.
        path: PathBuf,
        /// Why it cannot be made writable.
        reason: String,
    },
    /// The database has a write-ahead log although the settings exclude that.
    #[error(
        "the database '{}' has a write-ahead log, but Nix's setting 'use-sqlite-wal' is false; remove the setting, or \
         convert the database ('pragma journal_mode = delete' in sqlite3)",
        path.display()
    )]
    WriteAheadLog {
        /// The database.
        path: PathBuf,
    },
    /// Another process holds a lock, or the database, for too long.
    #[error("'{}' is still locked by another process after {waited_s} s", path.display())]
    Locked {
        /// The lock file, or the database.
        path: PathBuf,
        /// The time waited, in seconds.
        waited_s: u64,
    },
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A path in the store cannot be read.
    #[error(transparent)]
    Nar(#[from] NarIoError),
}

impl LocalStoreError {
    /// Whether a disk or a quota is full.
    pub fn is_disk_full(&self) -> bool {
        let source = match self {
            Self::Io { source, .. } => source,
            Self::Unpack { source: UnpackError::Io { source, .. }, .. } => source,
            Self::Database { source, .. } => return database::is_disk_full(source),
            Self::Store(StoreError::Database { source, .. }) => return database::is_disk_full(source),
            _ => return false,
        };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    pub(super) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}
