//! Errors of data folders.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::index::IndexError;
use crate::name::CacheName;
use crate::settings::SettingsError;

/// An error of a data folder.
#[derive(Debug, Error)]
pub enum DataError {
    /// A file cannot be used.
    #[error("cannot {action} '{}': {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The index fails.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The folder and the index do not belong together.
    #[error("the data folder '{}' cannot be used like this: {reason}", folder.display())]
    IndexMismatch {
        /// The folder.
        folder: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The settings of a cache cannot be read.
    #[error("cache '{cache}': {source}")]
    Settings {
        /// The cache.
        cache: CacheName,
        /// Why.
        source: SettingsError,
    },
}

pub(super) fn io_error(action: &'static str, path: &Path, source: io::Error) -> DataError {
    DataError::Io { action, path: path.to_owned(), source }
}
