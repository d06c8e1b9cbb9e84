//! The index of a data folder: what there is, and who may do what with it.
//!
//! A trait, because one machine has it in SQLite and many share one in PostgreSQL. Each method is one transaction: done as a
//! whole when it returns, or not at all. What is said to be durable then survives a loss of power, too.

#[cfg(feature = "postgres")]
mod postgres;
mod sqlite;

use std::time::Duration;

use narval_nix::{Compression, HashPart, NarHash, Sha256};
use thiserror::Error;

use super::CacheName;

#[cfg(feature = "postgres")]
pub(crate) use postgres::{Postgres, check_address};
pub(crate) use sqlite::Sqlite;

/// Why the index could not be asked or changed.
#[derive(Debug, Clone, Error)]
pub enum IndexError {
    /// The database fails.
    #[error("the index '{index}' fails: {reason}")]
    Database {
        /// Its file, or its address without the password.
        index: String,
        /// What it says.
        reason: String,
        /// Whether there is no room for it.
        full: bool,
    },
    /// The database cannot be reached, or does nothing at the moment. Nothing is wrong with what is in it.
    #[error("the index '{index}' cannot be reached: {reason}")]
    Away {
        /// Its address without the password.
        index: String,
        /// Why.
        reason: String,
    },
    /// It was made by a later version.
    #[error(
        "the index '{index}' has version {found}; this narval knows up to {known}: use the narval that made it, or a later one"
    )]
    Newer {
        /// Its file, or its address without the password.
        index: String,
        /// Its version.
        found: u32,
        /// The version that is known.
        known: u32,
    },
    /// The thread that writes it is gone.
    #[error("the index '{index}' is closed")]
    Closed {
        /// Its file.
        index: String,
    },
    /// What names the database cannot be used.
    #[error("the database '{database}' cannot be used: {reason}")]
    Unusable {
        /// Its address without the password.
        database: String,
        /// Why, and what to do.
        reason: String,
    },
}

impl IndexError {
    /// Whether there is no room for it.
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Database { full: true, .. })
    }

    /// Whether it cannot be reached, and may be reached later.
    pub const fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. })
    }
}

/// The number of a cache in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CacheId(pub(crate) i64);

/// A cache as it is recorded.
#[derive(Debug, Clone)]
pub(crate) struct CacheRecord {
    pub(crate) id: CacheId,
    pub(crate) name: CacheName,
    /// JSON.
    pub(crate) settings: String,
}

/// One stored form of a NAR: there is one file for each NarHash and compression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NarRecord {
    pub(crate) nar_hash: NarHash,
    pub(crate) nar_size: u64,
    pub(crate) compression: Compression,
    pub(crate) file_hash: Sha256,
    pub(crate) file_size: u64,
    /// Bytes of its listing, if there is one.
    pub(crate) listing_size: Option<u64>,
    /// Hash parts that the scan of its contents found.
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
    /// The text that is served.
    pub(crate) narinfo: Vec<u8>,
    /// Hash parts of what it refers to, without itself.
    pub(crate) references: Vec<HashPart>,
    /// Bytes of its listing.
    pub(crate) listing_size: Option<u64>,
    /// Changes with every change of the row; 0 for one that is new.
    pub(crate) version: i64,
}

/// What came of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commit {
    /// All of it is visible, and durable.
    Done,
    /// Somebody else changed one of these paths meanwhile: nothing was done.
    Changed,
}

/// A token as it is recorded.
#[derive(Debug, Clone)]
pub(crate) struct TokenRecord {
    pub(crate) id: String,
    /// SHA-256 of the whole token.
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

/// How much is in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Paths with a narinfo.
    pub paths: u64,
    /// Names of NARs, aliases among them.
    pub files: u64,
    /// Bytes of NARs as they are stored, and of their listings, each counted once.
    pub bytes: u64,
    /// Bytes of logs, realisations, debug information and files of kinds that are not known. Not in the index: 0 from there.
    pub small_bytes: u64,
}

/// A path as collections see it.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotPath {
    pub(crate) hash_part: HashPart,
    /// Base name.
    pub(crate) path: String,
    pub(crate) used: u64,
    /// Which stored NAR it has, and the bytes of that.
    pub(crate) nar: i64,
    pub(crate) file_size: u64,
    /// Bytes of its listing.
    pub(crate) listing_size: u64,
    pub(crate) references: Vec<HashPart>,
}

/// A cache at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) paths: Vec<SnapshotPath>,
    pub(crate) pins: Vec<PinRecord>,
    pub(crate) leases: Vec<(HashPart, u64)>,
}

/// A pin as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinRecord {
    pub(crate) name: String,
    pub(crate) hash_part: HashPart,
    /// Base name.
    pub(crate) path: String,
    pub(crate) created: u64,
    pub(crate) until: Option<u64>,
    pub(crate) keep: Option<u32>,
}

/// That a path, or whatever has this NAR, was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cache: CacheId,
    pub(crate) path: Option<HashPart>,
    pub(crate) file: Option<String>,
    pub(crate) time: u64,
}

/// Which NARs that no path has are old enough to be removed: both must be true. In seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cutoff {
    /// No narinfo has named it since then.
    pub(crate) orphaned: u64,
    /// It was not uploaded or requested since then.
    pub(crate) used: u64,
}

/// Something about files that the index says and that files may not show yet, if a process was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pending {
    /// The narinfo and the listing of this hash part.
    Path(HashPart),
    /// The file of this name below `nar/`.
    File(String),
    /// The file of a NAR, and its listing, that no cache may have any more.
    Blob(NarHash, Compression),
}

/// The index. Times are seconds since 1970.
pub(crate) trait Index: Send + Sync {
    /// A number that changes with every change that a reader can see: at once by this process, within
    /// [`Index::noticed_after`] by others. It stays while the index cannot be reached.
    fn stamp(&self) -> u64;
    /// How long it takes until other processes notice a change by this one.
    fn noticed_after(&self) -> Duration;
    /// Whether other processes may add paths at any time, so that it must be asked again for what was not there.
    fn is_shared(&self) -> bool;

    /// All caches.
    fn caches(&self) -> Result<Vec<CacheRecord>, IndexError>;
    /// Makes a cache; one of this name that is there stays as it is, and is returned.
    fn create_cache(&self, name: &CacheName, settings: &str, now: u64) -> Result<CacheRecord, IndexError>;
    /// Changes the settings of a cache.
    fn set_settings(&self, cache: CacheId, settings: &str) -> Result<(), IndexError>;
    /// How much is in a cache.
    fn usage(&self, cache: CacheId) -> Result<Usage, IndexError>;

    /// The stored form of a NAR, in whichever cache.
    fn nar(&self, nar_hash: &NarHash, compression: Compression) -> Result<Option<NarRecord>, IndexError>;
    /// What a name below `nar/` means in a cache.
    fn file(&self, cache: CacheId, name: &str) -> Result<Option<NarRecord>, IndexError>;
    /// All names below `nar/`.
    fn files(&self, cache: CacheId) -> Result<Vec<(String, NarRecord)>, IndexError>;
    /// The names of a NAR in a cache, in whichever form.
    fn files_of(&self, cache: CacheId, nar_hash: &NarHash) -> Result<Vec<(String, NarRecord)>, IndexError>;
    /// Gives a name to a stored NAR. Durable with the next commit.
    fn add_file(&self, cache: CacheId, name: &str, nar: &NarRecord, now: u64) -> Result<(), IndexError>;
    /// Forgets a name below `nar/`, whose file is gone.
    fn remove_file(&self, cache: CacheId, name: &str) -> Result<(), IndexError>;

    /// The narinfo of a path.
    fn narinfo(&self, cache: CacheId, hash_part: &HashPart) -> Result<Option<Vec<u8>>, IndexError>;
    /// The narinfos of paths, in the order of the question.
    fn narinfos(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<Vec<Option<Vec<u8>>>, IndexError>;
    /// What is recorded of a path.
    fn path(&self, cache: CacheId, hash_part: &HashPart) -> Result<Option<PathRecord>, IndexError>;
    /// Which of these paths exist.
    fn present(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<Vec<bool>, IndexError>;
    /// For each path that exists, the name of its NAR's file and the length that the file must have.
    fn located(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<Vec<Option<(String, u64)>>, IndexError>;
    /// Makes paths visible, all at once and durably, or none: each must still have the version of its record.
    fn commit(&self, cache: CacheId, paths: Vec<PathRecord>, now: u64) -> Result<Commit, IndexError>;
    /// Has paths name another file of their NAR, all at once and durably, or none: each must still have the version of its record.
    /// It is no use of them. Nothing names the old file then, and it counts as orphaned since `orphaned`.
    fn rename(&self, cache: CacheId, paths: Vec<PathRecord>, old: &str, orphaned: u64) -> Result<Commit, IndexError>;
    /// The paths whose narinfo names this file.
    fn paths_of_file(&self, cache: CacheId, name: &str) -> Result<Vec<HashPart>, IndexError>;
    /// Files of NARs that paths have and that are not zstd, by name, so many of those after this one.
    fn not_zstd(&self, cache: CacheId, after: &str, max: usize) -> Result<Vec<String>, IndexError>;
    /// Keeps these paths until then, whatever collects garbage.
    fn lease(&self, cache: CacheId, hash_parts: &[HashPart], until: u64) -> Result<(), IndexError>;

    /// Notes when paths were last used.
    fn used(&self, used: Vec<Used>) -> Result<(), IndexError>;
    /// All paths, pins and leases of a cache, at one moment.
    fn snapshot(&self, cache: CacheId) -> Result<Snapshot, IndexError>;
    /// Hides those of these paths, in their order, that were not used later than is said, and that no path, pin or lease holds.
    /// Says which. Their NARs stay.
    fn hide(&self, cache: CacheId, paths: &[(HashPart, u64)], now: u64) -> Result<Vec<HashPart>, IndexError>;
    /// Forgets paths, their pins and leases, and the names of NARs that were theirs alone. Says which names, and the bytes of
    /// those NARs.
    fn delete(&self, cache: CacheId, paths: &[HashPart], now: u64) -> Result<Vec<(String, u64)>, IndexError>;
    /// Names of NARs that [`Index::sweep_files`] would forget, with the bytes of those NARs.
    fn orphans(&self, cache: CacheId, cutoff: Cutoff) -> Result<Vec<(String, u64)>, IndexError>;
    /// Forgets up to so many names of NARs that no path has, and leases and pins that are over. Says which names, and the bytes
    /// of those NARs.
    fn sweep_files(
        &self,
        cache: CacheId,
        cutoff: Cutoff,
        max: usize,
        now: u64,
    ) -> Result<Vec<(String, u64)>, IndexError>;
    /// What refers to a path, itself left out.
    fn referrers(&self, cache: CacheId, hash_part: &HashPart) -> Result<Vec<HashPart>, IndexError>;
    /// Pins a path, and removes the pins of this name that are surplus then.
    fn pin(&self, cache: CacheId, pin: PinRecord) -> Result<(), IndexError>;
    /// Removes pins of a name, of all paths or one. Says how many.
    fn unpin(&self, cache: CacheId, name: &str, hash_part: Option<HashPart>) -> Result<usize, IndexError>;
    /// All pins, by name, the newest first.
    fn pins(&self, cache: CacheId) -> Result<Vec<PinRecord>, IndexError>;

    /// What may not be as the index says and has a greater number than this, the oldest first.
    fn pending(&self, after: i64) -> Result<Vec<(i64, CacheId, Pending)>, IndexError>;
    /// What was pending up to this number is durable.
    fn settle(&self, up_to: i64) -> Result<(), IndexError>;
    /// The greatest number that is pending.
    fn pending_max(&self) -> Result<Option<i64>, IndexError>;

    /// Records a token.
    fn add_token(&self, token: TokenRecord) -> Result<(), IndexError>;
    /// A token.
    fn token(&self, id: &str) -> Result<Option<TokenRecord>, IndexError>;
    /// All tokens, the oldest first.
    fn tokens(&self) -> Result<Vec<TokenRecord>, IndexError>;
    /// Revokes a token; false when there is none of this id.
    fn revoke_token(&self, id: &str, now: u64) -> Result<bool, IndexError>;
    /// Forgets tokens that ended before this.
    fn forget_tokens(&self, before: u64) -> Result<(), IndexError>;
    /// Notes when tokens were last used.
    fn tokens_used(&self, used: Vec<(String, u64)>) -> Result<(), IndexError>;
}
