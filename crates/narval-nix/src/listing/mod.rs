//! `.ls` listings: the tree of a NAR with the offsets of file contents, but not the contents themselves.
//!
//! Format: Nix `libutil/nar-listing.cc`. A listing is JSON, so names and symlink targets must be UTF-8. Nix cannot
//! write the listing of any other NAR (`nix copy` fails with "invalid UTF-8 byte"), and [`Listing::to_json`] returns an
//! error that names the path. In memory, names are bytes.

mod build;
mod json;
mod write;

use std::collections::BTreeMap;

use thiserror::Error;

use crate::nar::NarError;

pub use build::ListingBuilder;
pub use write::ListingWriter;

/// The maximum size of a listing, in bytes.
pub const LISTING_LEN_MAX: usize = 256 * 1024 * 1024;

/// The maximum number of nodes in a listing. A NAR with this many has about 1 GB of framing alone.
pub const NODES_MAX: usize = 4 * 1024 * 1024;

/// The tree of a NAR without file contents.
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
        /// Size of its contents in bytes.
        size: u64,
        /// Offset of its contents in the uncompressed NAR, in bytes.
        nar_offset: Option<u64>,
    },
    /// A symlink.
    Symlink {
        /// Its target.
        target: Box<[u8]>,
    },
    /// A directory: its entries by name.
    Directory(BTreeMap<Box<[u8]>, Node>),
}

/// Why a listing cannot be read, built or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ListingError {
    /// Longer than [`LISTING_LEN_MAX`].
    #[error("the listing has more than {LISTING_LEN_MAX} bytes")]
    TooLong,
    /// More nodes than [`NODES_MAX`].
    #[error("the listing has more than {NODES_MAX} nodes")]
    TooManyNodes,
    /// Not a valid listing; the error gives the line and column.
    #[error("invalid listing: {0}")]
    Json(String),
    /// The NAR is invalid.
    #[error(transparent)]
    Nar(#[from] NarError),
    /// A name or target that cannot be represented in JSON.
    #[error("a listing cannot have the name or target of '{path}', which is not UTF-8")]
    NotUtf8 {
        /// Its path, with U+FFFD in place of invalid UTF-8.
        path: String,
    },
    /// The events do not describe a tree.
    #[error("the events are not those of a NAR")]
    Sequence,
}

impl Listing {
    /// Returns the node at a path such as `bin/hello`. The root is the empty path or `/`. Symlinks are not followed.
    pub fn get(&self, path: &[u8]) -> Option<&Node> {
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).try_fold(&self.root, |node, name| match node {
            Node::Directory(entries) => entries.get(name),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
