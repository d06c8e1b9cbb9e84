//! The writable cache: a data folder with named caches, the tokens for them, and an index of it all.
//!
//! Knows nothing of HTTP. [`Data`] is an open folder or bucket, [`Cache`] one of its caches: [`Cache::begin_nar`] and
//! [`Cache::commit_narinfos`] write, [`Cache::narinfo`] and [`Cache::nar_file`] read. [`Tokens`] turns what a client presents
//! into a [`Grant`]; every write needs one. Errors are a [`Rejection`], with a message for the client.
//!
//! It promises: a narinfo is visible only when its NAR is durable and verified and its references are visible. What was
//! answered with success stays until it is deleted or collected, also if processes are killed at any moment. The files are the
//! truth: the index can be made from them.
//!
//! ```text
//! open.rs, data.rs   begin here: a data folder is opened, repaired and looked after   options.rs, location.rs, database.rs, in_use.rs
//! cache.rs           a cache: reading. lost.rs: a file that is not there              settings.rs, name.rs, rejection.rs
//! shared/            what a process remembers of its data, whoever opens it
//! receive/           a NAR arrives: one pass decodes, verifies and hashes it          writing.rs: what is stored and not recorded
//! push/              commit.rs makes paths visible; publish.rs, pending.rs write their narinfos; batch.rs: the protocol's bodies
//! small/             logs, realisations, listings
//! storage/           where bytes are: folder.rs, bucket/
//! index/             what is known of them: sql/ the statements, tx.rs what runs them, sqlite/ and postgres/, memory/
//! releases/          names that the cache gives to paths, signed
//! retention/         collect.rs, delete.rs hide paths and remove bytes; pins.rs, used.rs say what stays
//! tokens/            who may do what, and the audit log
//! nodes/             several servers over one bucket
//! stats/             how large caches are
//! upkeep/            fsck, rebuild, backup, migrate, recompress, export
//! jobs/              such work, done by one server at a time, whatever happens to it
//! simulation/        tests: all of it from a seed, with killed nodes and late requests; rule.rs: what it takes out
//! ```
//! ```text
//! DIR/index.sqlite               the index (SQLite, WAL), unless it is in a database ([`Database`])
//! DIR/audit.jsonl                who wrote what
//! DIR/caches/<name>/             the standard layout of a binary cache: nginx can serve it
//! DIR/incoming/                  what is being received
//! ```
//!
//! ```
//! use narval_keep::{Begin, CacheName, CacheSettings, Data, DataOptions, Grant};
//!
//! # let folder = tempfile::tempdir()?;
//! let data = Data::open(folder.path(), DataOptions::default())?;
//! let cache = data.create_cache(&CacheName::default(), &CacheSettings::default())?;
//! let grant = Grant::administrator("an example");
//! let nar = [&narval_nix::nar::wire::HEAD[..], &narval_nix::nar::wire::DIRECTORY, &narval_nix::nar::wire::CLOSE].concat();
//! let name = format!("{}.nar", narval_nix::Sha256::of(&nar).to_nix32());
//! let Begin::Receive(upload) = cache.begin_nar(&name, Some(nar.len() as u64), &grant)? else { unreachable!() };
//! assert_eq!(upload.receive(&mut &nar[..])?.nar_size, 96);
//! assert!(matches!(cache.begin_nar(&name, None, &grant)?, Begin::Known(_)));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

// Tests share files with those of other crates.
#[cfg(test)]
extern crate self as narval_keep;

mod cache;
mod data;
mod database;
mod error;
mod in_use;
mod index;
mod jobs;
mod keys;
mod location;
mod lost;
mod name;
mod nodes;
mod open;
mod options;
mod push;
mod receive;
mod rejection;
mod releases;
mod retention;
mod rule;
mod settings;
mod shared;
mod small;
mod stats;
mod storage;
mod tokens;
mod upkeep;

pub use cache::{Cache, KeptNarinfo, NarFile, NarHead, Point, Stamp};
pub use data::Data;
pub use database::Database;
pub use error::DataError;
pub use index::{IndexError, Listed, Usage};
pub use jobs::{JOBS_KEPT_FOR, JOBS_LISTED_MAX, Job, JobKind, JobState};
pub use keys::{CacheKey, OVERLAP_SECONDS, Rotated};
pub use location::StorageLocation;
pub use name::{
    CACHE_NAME_LEN_MAX, CacheName, CacheNameError, DEFAULT_CACHE, InvalidMachineName, MachineName, NarFileName,
    NarFileNameError, NarTarget,
};
pub use nodes::{PEER_PATH, PeerStats};
pub use options::{DataOptions, Destination};
pub use push::{COMMIT_MAX, Committed, NARS_MAX, OtherSources, Outcome, read_commit, read_nars};
#[doc(hidden)]
pub use receive::verify_anything;
pub use receive::{Begin, Stored, Upload};
pub use rejection::{MESSAGE_LEN_MAX, REJECTION_REASONS, Rejection, RejectionKind};
pub use releases::{
    KeptRelease, MACHINES_KEPT_FOR, MACHINES_LISTED_MAX, MACHINES_MAX, Machine, MachineCursor, MachinePage,
    MachineReport, MachineState, NewRelease, Promotion, RELEASE_KEY_LEN_MAX, RELEASE_NAMES_MAX, RELEASE_SYSTEMS_MAX,
    RELEASES_LISTED_BYTES_MAX, RELEASES_LISTED_MAX, REPORT_LEN_MAX, ReleaseCursor, ReleasePage,
};
pub use retention::{
    COLLECT_GRACE, CollectOptions, Collected, Deleted, Forgotten, Hold, LEASE_SECONDS, Pin, PinFor, PinSize,
    UNFINISHED_GRACE, Why,
};
pub use settings::{CacheSettings, KEEP_RELEASES, NAR_SIZE_MAX, RETENTION_DAYS, RETENTION_DAYS_SAFE, SettingsError};
pub use small::{PutOutcome, SmallKind};
pub use stats::{CacheStats, CollectionStats, Fullness, SizeOfDay, Survey, TokenEnd};
pub use storage::{NarBytes, Redirect};
pub use tokens::{
    Audit, AuditLine, CachePatterns, EXCHANGED_FOR, Grant, LABEL_LEN_MAX, NewToken, PATTERNS_MAX, PatternError, Scope,
    Scopes, TOKEN_PREFIX, TokenError, TokenInfo, Tokens, UnknownScope,
};
pub use upkeep::{
    BackedUp, BackupOptions, BackupSummary, FsckOptions, FsckReport, Imported, MigrateError, Migrated,
    RECOMPRESSED_GRACE, Recompressed, Removed, Restored, SignReport,
};

use narval_client::clock::now;

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests;

#[cfg(test)]
#[cfg(feature = "postgres")]
#[allow(clippy::duplicate_mod, reason = "the same tests with the index in a database")]
#[path = "tests/mod.rs"]
mod tests_on_postgres;

#[cfg(test)]
#[allow(clippy::duplicate_mod, reason = "the same tests in a bucket")]
#[path = "tests/mod.rs"]
mod tests_in_bucket;

#[cfg(test)]
#[cfg(feature = "postgres")]
#[allow(clippy::duplicate_mod, reason = "the same tests in a bucket, with the index in a database")]
#[path = "tests/mod.rs"]
mod tests_in_bucket_on_postgres;
