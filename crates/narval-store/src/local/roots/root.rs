//! A root.

use std::path::PathBuf;

use narval_nix::StorePath;

/// A root and the path that it keeps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Root {
    /// A link, a file of temporary roots, or a process (`/proc/<id>`).
    pub source: PathBuf,
    /// The path that it keeps, with its closure.
    pub path: StorePath,
}
