//! Errors of the index.

use thiserror::Error;

use super::schema::VERSION;
use crate::rejection::Rejection;

/// Why the index could not be read or changed.
#[derive(Debug, Clone, Error)]
pub enum IndexError {
    /// The database reports an error.
    #[error("the index '{index}' fails: {reason}")]
    Database {
        /// Its file, or its address without the password.
        index: String,
        /// The database's message.
        reason: String,
        /// Whether the disk is full.
        full: bool,
    },
    /// The database cannot be reached, or does not respond at the moment. Its contents are not in doubt.
    #[error("the index '{index}' cannot be reached: {reason}")]
    Unavailable {
        /// Its address without the password.
        index: String,
        /// The reason.
        reason: String,
    },
    /// Others commit or remove many paths at once, and hold a lock for longer than anybody waits. Nothing was done.
    #[error("the index '{index}' is busy: others commit or remove many paths at once; try again")]
    Busy {
        /// Its address without the password.
        index: String,
    },
    /// A NAR is recorded days after its upload began: its bytes may have been removed meanwhile.
    #[error("the index '{index}': the upload of the NAR took too long")]
    Late {
        /// Its file, or its address without the password.
        index: String,
    },
    /// It was created by another version, with other tables.
    #[error(
        "the index '{index}' has version {found}, and this narval works with version {VERSION}: use the narval that made it, or make the index \
         again from the files: 'narval cache fsck --rebuild'{with}"
    )]
    Version {
        /// Its file, or its address without the password.
        index: String,
        /// Its version.
        found: u32,
        /// What that command needs besides.
        with: &'static str,
    },
    /// The writer thread has ended.
    #[error("the index '{index}' is closed")]
    Closed {
        /// Its file.
        index: String,
    },
    /// A collection took longer than its lease, and another process has taken over.
    #[error("the index '{index}': another process has taken over the collection")]
    Superseded {
        /// Its file, or its address without the password.
        index: String,
    },
    /// The given database cannot be used.
    #[error("the database '{database}' cannot be used: {reason}")]
    Unusable {
        /// Its address without the password.
        database: String,
        /// The reason, and what to do.
        reason: String,
    },
}

impl IndexError {
    /// Whether the disk is full.
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Database { full: true, .. })
    }

    /// Whether it cannot be reached or used at the moment, but may be later.
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Busy { .. })
    }
}

impl From<IndexError> for Rejection {
    fn from(error: IndexError) -> Self {
        if matches!(error, IndexError::Busy { .. }) {
            tracing::debug!("{error}");
            let message = "the cache is busy: others commit or remove many paths at once; nothing was done, try again";
            return Self::unavailable(message);
        }
        if error.is_unavailable() {
            // The log has it already, once.
            tracing::debug!("{error}");
            let message = "the cache's database cannot be reached at the moment: nothing was done, try again";
            return Self::unavailable(message);
        }
        if matches!(error, IndexError::Late { .. }) {
            return Self::conflict("the upload took days: the NAR is not recorded any more; push again");
        }
        if matches!(error, IndexError::Superseded { .. }) {
            return Self::conflict("this took too long, and another process has taken over");
        }
        tracing::error!("{error}");
        if error.is_full() { Self::no_space() } else { Self::failed("the cache's index failed; see the server's log") }
    }
}
