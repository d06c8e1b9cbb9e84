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
//! open.rs            begin here: a data folder is opened, repaired and looked after. data.rs: all of it   options.rs, location.rs
//! cache.rs           a cache: reading. lost.rs: a file that is not there              settings.rs, name.rs, rejection.rs
//! jobs/              long work, done by one server at a time, whatever happens to it
//! keys/              keys that the index has
//! upkeep/            fsck, rebuild, backup, migrate, recompress, export
//! retention/         collect.rs, delete.rs hide paths and remove bytes; pins.rs, mark.rs say what stays
//! assembly/          a storage and an index are opened, and made one                  in_use.rs
//! push/              commit.rs makes paths visible; publish.rs, pending.rs write their narinfos; batch.rs: the protocol's bodies
//! receive/           a NAR arrives: one pass decodes, verifies and hashes it
//! small/             logs, realisations, listings
//! stats/             how large caches are
//! releases/          names that the cache gives to paths, signed
//! tokens/            tokens are made, verified and revoked
//! shared/            what a process remembers of its data, whoever opens it
//! access/            who may do what, and the audit log
//! index/             what is known of the bytes: sql/ the statements, tx.rs what runs them, sqlite/ and postgres/, memory/
//! storage/           where bytes are: folder.rs, bucket/
//! records/           what the index stores, as plain types
//! nodes/             several servers over one bucket
//! simulation/        tests: all of it from a seed, with killed nodes and late requests; rule.rs: what it takes out
//! simulator/         tests: the time, the turns and the faults of a simulation
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

mod access;
mod assembly;
mod cache;
mod data;
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
mod records;
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

pub use access::audit::Audit;
pub use access::grant::{CachePatterns, Grant, PATTERNS_MAX, PatternError, Scope, Scopes, UnknownScope};
pub use cache::{Cache, KeptNarinfo, NarFile, NarHead, Point, Stamp};
pub use data::Data;
pub use error::DataError;
pub use index::IndexError;
pub use jobs::JOBS_KEPT_FOR;
pub use keys::{CacheKey, OVERLAP_SECONDS, Rotated};
pub use location::{Database, StorageLocation};
pub use name::{
    CACHE_NAME_LEN_MAX, CacheName, CacheNameError, DEFAULT_CACHE, InvalidMachineName, MachineName, NarFileName,
    NarFileNameError, NarTarget,
};
pub use nodes::{PEER_PATH, PeerStats};
pub use options::{DataOptions, Destination};
pub use push::{COMMIT_MAX, Committed, NARS_MAX, Outcome, read_commit, read_nars};
#[doc(hidden)]
pub use receive::verify_anything;
pub use receive::{Begin, Stored, Upload};
pub use records::audit::AuditLine;
pub use records::jobs::{JOBS_LISTED_MAX, Job, JobKind, JobState};
pub use records::machines::{
    MACHINES_KEPT_FOR, MACHINES_LISTED_MAX, MACHINES_MAX, Machine, MachineCursor, MachineReport, MachineState,
    REPORT_LEN_MAX,
};
pub use records::paths::{Listed, Usage};
pub use records::pins::{Pin, PinFor};
pub use records::releases::{
    RELEASE_NAMES_MAX, RELEASE_SYSTEMS_MAX, RELEASES_LISTED_BYTES_MAX, RELEASES_LISTED_MAX, ReleaseCursor,
};
pub use rejection::{MESSAGE_LEN_MAX, REJECTION_REASONS, Rejection, RejectionKind};
pub use releases::{KeptRelease, MachinePage, NewRelease, Promotion, RELEASE_KEY_LEN_MAX, ReleasePage};
pub use retention::{
    COLLECT_GRACE, CollectOptions, Collected, Deleted, Forgotten, Hold, LEASE_SECONDS, PinSize, UNFINISHED_GRACE, Why,
};
pub use settings::{CacheSettings, KEEP_RELEASES, NAR_SIZE_MAX, RETENTION_DAYS, RETENTION_DAYS_SAFE, SettingsError};
pub use shared::counts::{CollectionStats, Fullness, Survey, TokenEnd};
pub use shared::growth::SizeOfDay;
pub use shared::other_sources::OtherSources;
pub use small::{PutOutcome, SmallKind};
pub use stats::CacheStats;
pub use storage::{NarBytes, Redirect};
pub use tokens::{EXCHANGED_FOR, LABEL_LEN_MAX, NewToken, TOKEN_PREFIX, TokenError, TokenInfo, Tokens};
pub use upkeep::{
    BackedUp, BackupOptions, BackupSummary, FsckOptions, FsckReport, Imported, MigrateError, Migrated,
    RECOMPRESSED_GRACE, Recompressed, Removed, Restored, SignReport,
};

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod simulator;

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
