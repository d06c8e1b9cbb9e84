//! `.ls` listings: the tree of a NAR without contents, and where in the NAR the contents are.
//!
//! Format: Nix `libutil/nar-listing.cc`. A listing is JSON, so names and targets must be UTF-8: of a NAR with others Nix
//! writes no listing (`nix copy` fails with "invalid UTF-8 byte"), and [`Listing::to_json`] is an error that names the
//! path. In memory, names are bytes as everywhere.

mod build;
mod json;
mod write;

use std::collections::BTreeMap;

use thiserror::Error;

use crate::nar::NarError;

pub use build::ListingBuilder;
pub use write::ListingWriter;

/// The largest listing that is parsed, in bytes.
pub const LISTING_LEN_MAX: usize = 256 * 1024 * 1024;

/// The most nodes in a listing. A NAR with so many is about 1 GB of framing alone.
pub const NODES_MAX: usize = 4 * 1024 * 1024;

/// The tree of a NAR without contents.
///
/// ```
/// use narval_nix::listing::Listing;
/// let json = r#"{"root":{"entries":{"bar":{"narOffset":232,"size":4,"type":"regular"}},"type":"directory"},"version":1}"#;
/// let listing = Listing::parse(json.as_bytes()).unwrap();
/// assert!(listing.get(b"/bar").is_some());
/// assert_eq!(listing.to_json().unwrap(), json);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The root.
    pub root: Node,
}

/// A file, symlink or directory in a [`Listing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    Regular {
        /// Whether it is executable.
        executable: bool,
        /// Bytes of its contents.
        size: u64,
        /// Where its contents begin in the uncompressed NAR, in bytes.
        nar_offset: Option<u64>,
    },
    /// A symlink.
    Symlink {
        /// Where it points.
        target: Box<[u8]>,
    },
    /// A directory: its entries by name.
    Directory(BTreeMap<Box<[u8]>, Node>),
}

/// Why there is no listing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ListingError {
    /// Longer than [`LISTING_LEN_MAX`].
    #[error("the listing has more than {LISTING_LEN_MAX} bytes")]
    TooLong,
    /// More nodes than [`NODES_MAX`].
    #[error("the listing has more than {NODES_MAX} nodes")]
    TooManyNodes,
    /// Not a listing in JSON; says what was wrong, in which line and column.
    #[error("invalid listing: {0}")]
    Json(String),
    /// The NAR to be listed is not one.
    #[error(transparent)]
    Nar(#[from] NarError),
    /// A name or target that JSON cannot express.
    #[error("a listing cannot have the name or target of '{path}', which is not UTF-8")]
    NotUtf8 {
        /// Where, with U+FFFD for what is not UTF-8.
        path: String,
    },
    /// Events that do not make a tree.
    #[error("these events do not make a listing")]
    Sequence,
}

impl Listing {
    /// The node at a path such as `bin/hello`; the root for an empty path or `/`. Symlinks are not followed.
    pub fn get(&self, path: &[u8]) -> Option<&Node> {
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).try_fold(&self.root, |node, name| match node {
            Node::Directory(entries) => entries.get(name),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
