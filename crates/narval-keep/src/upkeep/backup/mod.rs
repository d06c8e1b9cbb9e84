//! Backups: all of what a cache is, in another folder or bucket, from which it is restored onto any database and any storage.
//!
//! ```text
//! caches/<name>/nar/, log/, …                       bytes, as caches have them: written once, for all backups that need them
//! caches/default/_narval/rows/<SHA-256>.zst         paths with their NARs, settings, the audit log: JSON lines
//! caches/default/_narval/backups/<id>.json          a backup: which of these, written last
//! ```
//! In a bucket, without `caches/default/` and `caches/`. Files of rows are named by their contents, and cover ranges of rows in the order in which they
//! came: what has not changed since the last backup has the same name, and is not written again.
//!
//! All paths are read at one moment ([`each_saved`](crate::index::Index)); settings, tokens, pins and releases just before it, so the paths that they name are there.
//! From before that moment until the end, no collection removes NARs that paths had ([`hold_nars`](crate::index::Index)). What an operator
//! deletes meanwhile is gone, and the backup says so.
//!
//! Old backups are removed with what only they need (`prune.rs`).
//!
//! A backup is restored by copying it as [`migrate`](super::migrate) does, into an index that nobody uses before it is complete.

mod hold;
mod place;
mod prune;
mod restore;
mod rows;
mod write;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use restore::Restored;
pub(crate) use restore::refuse_unfinished;

/// The form of a backup.
const VERSION: u32 = 1;

/// What is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupOptions {
    /// Whether the bytes of NARs, logs and other files are. Otherwise a restore finds them where the cache has them.
    pub with_nars: bool,
    /// Whether the secrets are that caches sign with.
    pub with_keys: bool,
    /// Removes a backup, and what only it needs, when so many newer ones have been there for a day; `None`: never.
    pub keep: Option<NonZeroUsize>,
}

/// What was removed with old backups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Removed {
    /// Backups.
    pub backups: u64,
    /// NARs that no other one needs.
    pub nars: u64,
    /// Bytes of these.
    pub nar_bytes: u64,
}

/// A backup, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    id: String,
    /// In seconds since 1970.
    created: u64,
    /// The program that has made it.
    narval: String,
    nars: bool,
    keys: bool,
    /// Each of these is a file of rows.
    settings: String,
    audit: Vec<String>,
    caches: Vec<SavedCache>,
}

/// A cache of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedCache {
    name: String,
    paths: u64,
    /// Bytes of their NARs, each counted once for each path.
    bytes: u64,
    rows: Vec<String>,
    /// NARs that were deleted or lost before they could be copied: their paths are left out.
    absent: Vec<String>,
}

/// A backup of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupSummary {
    /// Its name. They are in the order of time.
    pub id: String,
    /// When it was begun, in seconds since 1970.
    pub created: u64,
    /// Whether it has the bytes of NARs.
    pub has_nars: bool,
    /// Whether it has keys.
    pub has_keys: bool,
    /// Paths of all caches.
    pub paths: u64,
    /// Bytes of their NARs.
    pub bytes: u64,
}

impl BackupSummary {
    /// As JSON.
    pub fn to_value(&self) -> Value {
        let Self { id, created, has_nars, has_keys, paths, bytes } = self;
        json!({"id": id, "created": created, "nars": has_nars, "keys": has_keys, "paths": paths, "bytes": bytes})
    }
}

impl From<&Manifest> for BackupSummary {
    fn from(manifest: &Manifest) -> Self {
        let sum = |of: fn(&SavedCache) -> u64| manifest.caches.iter().map(of).sum();
        Self {
            id: manifest.id.clone(),
            created: manifest.created,
            has_nars: manifest.nars,
            has_keys: manifest.keys,
            paths: sum(|cache| cache.paths),
            bytes: sum(|cache| cache.bytes),
        }
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackedUp {
    /// The whole.
    pub backup: BackupSummary,
    /// NARs that the place did not have.
    pub nars: u64,
    /// Bytes of these.
    pub nar_bytes: u64,
    /// Files of rows that it did not have.
    pub rows: u64,
    /// Logs and other small files that it did not have.
    pub files: u64,
    /// Paths that were deleted while this was running, and are left out.
    pub deleted: u64,
    /// Keys that are left out, because they were not wanted.
    pub keys_left_out: u64,
    /// Paths that are left out because their NAR is lost or damaged in the cache, and how.
    pub problems: Vec<String>,
    /// What was removed of older backups.
    pub removed: Removed,
}
