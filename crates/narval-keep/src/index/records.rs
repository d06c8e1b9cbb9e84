//! What the index has: a record for each kind of row, and what is said about rows.

use std::time::Duration;

use narval_client::clock;
use narval_nix::release::{ReleaseName, ReleaseSystem};
use narval_nix::{Compression, HashPart, NarHash, Sha256};
use serde::{Deserialize, Serialize};

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

/// A release as recorded in the index: one row for each of its systems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReleaseRecord {
    pub(crate) name: String,
    pub(crate) revision: u64,
    pub(crate) system: String,
    pub(crate) version: Option<String>,
    pub(crate) created: u64,
    /// Whether it keeps its paths whatever comes after it.
    #[serde(rename = "pinned")]
    pub(crate) is_pinned: bool,
    /// The name of the pins that keep its paths for this system.
    pub(crate) hold: String,
    /// As it was signed, with all systems.
    #[serde(rename = "record")]
    pub(crate) json: String,
    /// Whether there are such pins.
    #[serde(skip)]
    pub(crate) is_kept: bool,
    /// The share of machines that it is for; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) percent: Option<u32>,
}

/// What is recorded of a new release.
#[derive(Debug, Clone)]
pub(crate) struct ReleaseToRecord {
    pub(crate) version: Option<String>,
    pub(crate) percent: Option<u8>,
    pub(crate) json: String,
    /// System, hash part and base name of each path.
    pub(crate) paths: Vec<(ReleaseSystem, HashPart, String)>,
}

/// A request for a release. One that is sent again, because its answer was lost, has the same key.
#[derive(Debug, Clone)]
pub(crate) struct ReleaseRequest {
    pub(crate) name: ReleaseName,
    pub(crate) key: Option<String>,
    /// The id that the cache gets if it has none.
    pub(crate) new_uid: String,
}

/// What became of a request for a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Recorded<T> {
    New(T),
    /// The record that the request with this key has made before.
    Again(String),
}

/// Why a release was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseRefused {
    /// This path is not there, or one with another name.
    Absent(Option<HashPart>),
    /// The cache has as many names as it may have.
    Names,
    /// The name has as many systems as it may have.
    Systems,
}

/// A token as recorded in the index.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    pub(crate) id: String,
    /// SHA-256 of the whole token.
    #[serde(rename = "sha256")]
    pub(crate) hash: [u8; 32],
    pub(crate) label: String,
    /// Names of scopes, separated by commas.
    pub(crate) scopes: String,
    /// Patterns, separated by blanks.
    pub(crate) caches: String,
    pub(crate) created: u64,
    pub(crate) expires: Option<u64>,
    pub(crate) last_used: Option<u64>,
    pub(crate) revoked: Option<u64>,
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

/// The number of a lease for collections: greater than those of all leases before it. A transaction with a number that is no longer
/// the latest fails ([`IndexError::Superseded`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fence(pub(crate) i64);

/// How long a collection may take between two of its transactions. Then another process may take over. Half of it is for clocks that differ:
/// by up to a minute.
pub(crate) fn collection_lease() -> Duration {
    // Tests with real time wait for its end.
    Duration::from_secs(if cfg!(test) && clock::has_threads() { 20 } else { 120 })
}

/// What a backup has so that no collection removes its NARs.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(super) name: String,
    /// When it began, in seconds since 1970.
    pub(super) fence: i64,
}

/// The lease of collections.
pub(super) const COLLECTION: &str = "collection";

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

/// A key that a cache signs with, as recorded in the index.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SignKeyRecord {
    /// The name of the cache.
    #[serde(skip)]
    pub(crate) cache: String,
    pub(crate) name: String,
    /// In the format of Nix's files.
    pub(crate) secret: String,
    pub(crate) created: u64,
    pub(crate) ends: Option<u64>,
}
