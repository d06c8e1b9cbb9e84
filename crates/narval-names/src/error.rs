//! Why names cannot be read.

use std::io;

/// A file of names that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    /// A stream or file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The JSON is not what it should be.
    #[error("{what} is not valid: {source}")]
    Json {
        /// The file.
        what: &'static str,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// A limit is exceeded.
    #[error("{what} exceeds the limit of {limit} {unit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// Its unit.
        unit: &'static str,
    },
    /// A line or an entry is not what it should be.
    #[error("{what} is not valid: {reason}")]
    Invalid {
        /// The file and the place.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// An index file is damaged, or of another version.
    #[error("the index of names is damaged ({0})")]
    Damaged(&'static str),
}

impl NamesError {
    /// Whether an index file cannot be read, so that it must be made again.
    pub const fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged(_))
    }
}
