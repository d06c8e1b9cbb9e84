//! What can go wrong when a store is asked.

use std::io;
use std::path::{Path, PathBuf};

use narval_nix::StorePath;
use thiserror::Error;

use crate::daemon::DaemonError;

/// Why a store gave no answer. Never means "not there": absence is an answer.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The database cannot be read from here at all (missing, no permission, an unreadable write-ahead log): another way to
    /// the same store, the daemon, may work.
    #[error("cannot read the Nix database '{}': {reason}", path.display())]
    DatabaseUnavailable {
        /// The database.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// SQLite reports an error.
    #[error("Nix database '{}': {source}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// A row holds what Nix would not write.
    #[error("Nix database: {column} of '{path}' is invalid: {reason}")]
    Row {
        /// The path the row is about.
        path: String,
        /// The column.
        column: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The daemon refuses, fails, or cannot be reached.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// Neither the database nor the daemon can be used.
    #[error("{database}; and {daemon}")]
    NoWay {
        /// Why not the database.
        database: Box<StoreError>,
        /// Why not the daemon.
        daemon: Box<DaemonError>,
    },
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
