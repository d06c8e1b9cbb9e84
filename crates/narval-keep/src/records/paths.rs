//! Caches, their paths and their NARs.

use narval_nix::{Compression, HashPart, NarHash, Sha256};

use crate::name::CacheName;

/// The number of a cache in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CacheId(pub(crate) i64);

/// A cache as recorded in the index.
#[derive(Debug, Clone)]
pub(crate) struct CacheRecord {
    pub(crate) id: CacheId,
    pub(crate) name: CacheName,
    /// JSON.
    pub(crate) settings: String,
}

/// A stored NAR, with the name of its file below `nar/`.
pub(crate) type NamedNar = (String, NarRecord);

/// A stored file of a NAR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NarRecord {
    pub(crate) nar_hash: NarHash,
    pub(crate) nar_size: u64,
    pub(crate) compression: Compression,
    pub(crate) file_hash: Sha256,
    pub(crate) file_size: u64,
    /// Bytes of its listing, if there is one.
    pub(crate) listing_size: Option<u64>,
    /// Hash parts that the scan for references found in its contents.
    pub(crate) found: Vec<HashPart>,
}

/// A path of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathRecord {
    pub(crate) hash_part: HashPart,
    /// Base name.
    pub(crate) path: String,
    pub(crate) nar_hash: NarHash,
    /// The file of its NAR, below `nar/`.
    pub(crate) file: String,
    /// The text of the narinfo that is served.
    pub(crate) narinfo: Vec<u8>,
    /// Hash parts of its references, without itself.
    pub(crate) references: Vec<HashPart>,
    /// Bytes of its listing.
    pub(crate) listing_size: Option<u64>,
    /// Incremented with every change of the row; 0 for a new one.
    pub(crate) version: i64,
}

/// A path as a backup has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedPath {
    /// Base name.
    pub(crate) path: String,
    /// The file of its NAR, below `nar/`.
    pub(crate) file: String,
    pub(crate) narinfo: Vec<u8>,
    pub(crate) nar: NarRecord,
}

/// The result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commit {
    /// All of it is visible, and durable.
    Done,
    /// Another writer has changed one of these paths meanwhile: nothing was done.
    Changed,
}

/// The totals of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Paths with a narinfo.
    pub paths: u64,
    /// Files of NARs.
    pub files: u64,
    /// Bytes of NARs as they are stored, and of their listings, each counted once.
    pub bytes: u64,
    /// Bytes of logs, realisations, debug information and files of unknown kinds. They are not in the index, which returns 0 here.
    pub small_bytes: u64,
}

/// A path as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its hash part.
    pub hash_part: HashPart,
    /// Base name.
    pub path: String,
    /// When it was pushed first, in seconds since 1970.
    pub added: u64,
    /// When it was last pushed or requested, in seconds since 1970.
    pub used: u64,
    /// The size of its stored NAR in bytes.
    pub file_size: u64,
}

/// Records that a path, or all paths with this NAR, were requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cache: CacheId,
    pub(crate) path: Option<HashPart>,
    pub(crate) file: Option<String>,
    pub(crate) time: u64,
}

/// Which NARs without a path are old enough to be removed: all conditions must hold. In seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cutoff {
    /// No narinfo has named it since then.
    pub(crate) orphaned: u64,
    /// It was not uploaded or requested since then.
    pub(crate) used: u64,
}

/// A path that was removed because its NAR was not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostPath {
    pub(crate) hash_part: HashPart,
    pub(crate) narinfo: Vec<u8>,
    /// The file of its NAR, below `nar/`.
    pub(crate) file: String,
    pub(crate) nar: NarRecord,
}

/// How long a path is remembered whose NAR was not there, in seconds: a day.
pub(crate) const LOST_FOR: u64 = 24 * 60 * 60;

/// The most of them that are returned at a time.
pub(crate) const LOST_MAX: u32 = 1000;

/// Totals of some paths, as the index counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PathTotals {
    pub(crate) paths: u64,
    /// Those whose narinfos lack one of the lines.
    pub(crate) unsigned: u64,
    pub(crate) listing_bytes: u64,
    pub(crate) oldest_use: Option<u64>,
}
