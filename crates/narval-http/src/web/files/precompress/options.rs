//! What to make, and what was made.

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use crate::http1::accept::Coding;

/// Options of [`precompress`](super::precompress()).
#[derive(Clone, Debug)]
pub struct PrecompressOptions {
    /// The folder for the encodings; `None` puts them beside the files.
    pub into: Option<PathBuf>,
    /// Which encodings to make; see [`SiteOptions::sidecars`](crate::files::SiteOptions::sidecars).
    pub codings: Vec<Coding>,
    /// How many files are compressed at the same time.
    pub threads: NonZero<usize>,
    /// The folders of previous releases: deltas are made from their files to those that differ, for clients that have them
    /// (RFC 9842). At most [`PREVIOUS_MAX`](super::PREVIOUS_MAX).
    pub previous: Vec<PathBuf>,
}

/// The counters of [`precompress`](super::precompress()).
#[derive(Debug, Default)]
pub struct Precompressed {
    /// Files of a compressible type.
    pub files: AtomicU64,
    /// Their size together, in bytes.
    pub file_bytes: AtomicU64,
    /// Encodings that were written.
    pub made: AtomicU64,
    /// Their size together, in bytes.
    pub made_bytes: AtomicU64,
    /// Deltas that were written.
    pub deltas: AtomicU64,
    /// Their size together, in bytes.
    pub delta_bytes: AtomicU64,
    /// Encodings that existed already and are as new as the file.
    pub fresh: AtomicU64,
    /// Encodings that would not have been smaller.
    pub larger: AtomicU64,
}
