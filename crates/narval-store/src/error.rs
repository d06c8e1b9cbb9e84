//! The errors of reading a store.

use std::io;
use std::path::{Path, PathBuf};

use narval_nix::StorePath;
use thiserror::Error;

use crate::daemon::DaemonError;

/// Why a store could not be read. Absence of a path is a result, not an error.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The database cannot be read at all (missing, no permission, an unreadable write-ahead log). The daemon of the
    /// same store may still work.
    #[error("cannot read the Nix database '{}': {reason}", path.display())]
    DatabaseUnavailable {
        /// The database.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// SQLite returned an error.
    #[error("Nix database '{}': {source}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// A row has invalid contents.
    #[error("Nix database: {column} of '{path}' is invalid: {reason}")]
    Row {
        /// The path of the row.
        path: String,
        /// The column.
        column: &'static str,
        /// The reason.
        reason: String,
    },
    /// The daemon returned an error, failed, or cannot be reached.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// Neither the database nor the daemon is usable.
    #[error("{database}; and {daemon}")]
    NoWay {
        /// The error of the database.
        database: Box<StoreError>,
        /// The error of the daemon.
        daemon: Box<DaemonError>,
    },
    /// A file or directory cannot be used.
    #[error("cannot {action} '{}': {source}", path.display())]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The files of a path cannot be read as a NAR.
    #[error("cannot read {path}: {source}")]
    Nar {
        /// The path.
        path: StorePath,
        /// Why.
        source: io::Error,
    },
    /// The files of a path are not those that were registered.
    #[error("{path}: its files have been changed; see 'narval verify'")]
    Changed {
        /// The path.
        path: StorePath,
    },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}
