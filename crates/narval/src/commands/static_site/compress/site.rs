//! What to make of a site, and what was made.

use std::num::NonZero;
use std::path::PathBuf;

use narval_http::semantics::accept::Coding;

/// What to make.
pub(in crate::commands::static_site) struct Site {
    pub(in crate::commands::static_site) root: PathBuf,
    /// The folder for the encodings; `None` puts them beside the files.
    pub(in crate::commands::static_site) into: Option<PathBuf>,
    pub(in crate::commands::static_site) codings: Vec<Coding>,
    /// How many files are compressed at the same time.
    pub(in crate::commands::static_site) threads: NonZero<usize>,
    /// The folders of previous releases: deltas are made from their files to those that differ, for clients that have them
    /// (RFC 9842).
    pub(in crate::commands::static_site) previous: Vec<PathBuf>,
}

/// What was made, in files, encodings and bytes.
#[derive(Debug, Default)]
pub(in crate::commands::static_site) struct Summary {
    /// Files of a compressible type.
    pub(in crate::commands::static_site) files: u64,
    pub(in crate::commands::static_site) file_bytes: u64,
    /// Encodings that were written.
    pub(in crate::commands::static_site) made: u64,
    pub(in crate::commands::static_site) made_bytes: u64,
    /// Deltas that were written.
    pub(in crate::commands::static_site) deltas: u64,
    pub(in crate::commands::static_site) delta_bytes: u64,
    /// Encodings that existed already and are as new as the file.
    pub(in crate::commands::static_site) fresh: u64,
    /// Encodings that would not have been smaller.
    pub(in crate::commands::static_site) larger: u64,
}
