//! The files of a store path as a NAR: planned once, then produced from any offset.

mod ahead;
mod batch;
mod layout;
mod open;
mod packed;
mod plan;
mod reader;
mod stream;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use ahead::ReadAhead;
pub use layout::{NarEntry, NarLayout, NarNode};
pub use open::{open_beneath, open_in_folder};
pub use packed::PackedNar;
pub use reader::NarReader;
pub use stream::{FilePart, NarStream, Step};

/// The maximum number of files, directories and symlinks in one store path.
pub(crate) const ENTRIES_MAX: usize = 1 << 26;

/// The maximum length of all names and symlink targets in one store path, in bytes.
pub(crate) const TEXT_LEN_MAX: usize = u32::MAX as usize;

/// Files of at least this size are passed on as descriptors, to be sent without a copy. Smaller ones are read.
pub const WHOLE_FILE_MIN: u64 = 128 * 1024;

/// Why the files of a store path cannot be read as a NAR.
#[derive(Debug, Error)]
pub enum NarIoError {
    /// An operation of the operating system failed.
    #[error("cannot {action} '{}': {source}", path.display())]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Neither a regular file, nor a directory, nor a symlink.
    #[error("'{}' is neither a regular file, nor a directory, nor a symlink: it cannot be in a NAR", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// A limit of the format, or of this program.
    #[error("'{}' {rule}", path.display())]
    Limit {
        /// The file.
        path: PathBuf,
        /// The limit, as the rest of a sentence.
        rule: &'static str,
    },
    /// Something has changed since the NAR was planned.
    #[error("'{}' changed while it was read: {change}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What has changed.
        change: &'static str,
    },
    /// A range that exceeds the NAR.
    #[error("a range beyond the end of the NAR")]
    Range,
}

impl NarIoError {
    /// Whether the files cannot be in a NAR, so that the path can neither be served nor copied. Old versions of Nix
    /// registered such paths.
    pub const fn is_not_a_nar(&self) -> bool {
        matches!(self, Self::Limit { .. })
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}

impl From<NarIoError> for io::Error {
    fn from(error: NarIoError) -> Self {
        let kind = match &error {
            NarIoError::Io { source, .. } => source.kind(),
            NarIoError::Range => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}
