//! What the index has: a record for each kind of row, and what is said about rows.

use std::time::Duration;

use narval_client::clock;
use narval_nix::release::{ReleaseName, ReleaseSystem};
use narval_nix::{Compression, HashPart, NarHash, Sha256};
use serde::{Deserialize, Serialize};

use crate::CacheName;
use crate::receive::receipt_key::ReceiptKey;
use crate::rule::holds;

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

/// One stored format of a NAR: a cache has one file for each NarHash and compression.
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
pub(crate) struct ReleaseAsked {
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
    /// Names of NARs, including aliases.
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
    /// It has been doomed since then. `None`: it need not be doomed.
    pub(crate) doomed: Option<u64>,
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

/// What becomes of the names of a NAR's file that another one replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// They are removed: the file is lost.
    Removed,
    /// A collection removes them.
    Kept,
}

/// How it is known that a file below `nar/` is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Nobody else can have stored it: the storage is locked.
    Certainly,
    /// It was not there after [`Index::note_pending`] had made this pending entry. It is lost if this is its only entry. Its paths are
    /// remembered ([`Index::lost`]), in case the storage was wrong.
    Doubted(i64),
    /// As [`Doubted`](Self::Doubted), but it is there with other contents.
    Damaged(i64),
    /// It was not there, and this is the pending entry of its upload. It is lost if that is the last entry and no narinfo names the file.
    Unplaced(i64),
}

impl Lost {
    /// The pending entry, and whether narinfos may name the file; `None` if nothing has to be checked.
    pub(super) fn entry(self) -> Option<(i64, bool)> {
        match self {
            Self::Certainly => None,
            _ if !holds!(Doubted) => None,
            Self::Doubted(entry) | Self::Damaged(entry) => Some((entry, true)),
            Self::Unplaced(entry) => Some((entry, false)),
        }
    }
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

/// A change in the index that the files may not reflect yet, if a process was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pending {
    /// The narinfo and the listing of this hash part.
    Path(HashPart),
    /// The file of this name below `nar/`.
    File(String),
}

impl Pending {
    /// The path that it is of.
    pub(crate) fn path(&self) -> Option<&HashPart> {
        match self {
            Self::Path(part) => Some(part),
            Self::File(_) => None,
        }
    }

    /// Its kind and name in a table.
    pub(super) fn row(&self) -> (&'static str, String) {
        match self {
            Self::Path(part) => ("path", part.to_string()),
            Self::File(name) => ("file", name.clone()),
        }
    }
}

/// Whether the file of a name below `nar/` is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placing {
    /// Nothing is pending.
    Done,
    /// This process has stored it; the entry with this number is still pending.
    Stored(i64),
    /// It may be on its way. The number of the oldest entry.
    Pending(i64),
}

/// A file below `nar/` that was looked for and found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) name: String,
    /// The number of its oldest pending entry then; 0 if none was pending. A collection removes all entries of a name that it condemns,
    /// so if only later ones are there, the file may be gone.
    pub(crate) entry: i64,
}

/// How long ago a writer may have said that it is alive, in seconds, when it stores something: what it has stored later is not looked for when
/// it is dead.
pub(crate) const WRITER_FRESH_FOR: u64 = 90 * 60;

/// A process that stores objects of a cache before it records their names.
#[derive(Clone)]
pub(crate) struct NarWriter {
    pub(crate) number: i64,
    /// Authenticates its receipts.
    pub(crate) key: ReceiptKey,
    /// How long ago it has begun.
    pub(crate) begun: Duration,
    /// How long ago it has last said that it is alive.
    pub(crate) seen: Duration,
}

/// Whether NARs may be stored before their names are recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MayStore {
    /// The number of the last collection; `None` while one is at work.
    pub(crate) epoch: Option<Fence>,
    /// Whether the writer is known, and has said lately that it is alive ([`WRITER_FRESH_FOR`]).
    pub(crate) has_writer: bool,
    /// For each NAR, whether the index has nothing that is in the way.
    pub(crate) are_new: Vec<bool>,
}

/// Totals of some paths, as the index counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
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
