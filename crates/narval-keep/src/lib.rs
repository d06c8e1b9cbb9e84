//! The writable cache: a data folder with named caches, the tokens for them, and an index of it all.
//!
//! Knows nothing of HTTP. [`Data`] is an open folder, [`Cache`] one of its caches: [`Cache::begin_nar`] and
//! [`Cache::commit_narinfos`] write, [`Cache::narinfo`] and [`Cache::nar_file`] read. [`Tokens`] turns what a client presents
//! into a [`Grant`]; every write needs one. Errors are a [`Refusal`], with a message for the client.
//!
//! ```text
//! DIR/index.sqlite               the index (SQLite, WAL), unless it is in a database ([`Database`])
//! DIR/audit.jsonl                who wrote what
//! DIR/blobs/<xx>/                NARs by NarHash, each once for all caches
//! DIR/caches/<name>/             the standard layout of a binary cache: nginx can serve it
//! DIR/incoming/                  what is being received
//! ```
//! A narinfo is visible only when its NAR is durable and verified. The files are the truth: the index can be made from them.
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

mod audit;
mod batch;
mod cache;
mod commit;
mod contents;
mod data;
mod database;
mod elsewhere;
mod error;
mod export;
mod figures;
mod fsck;
mod grant;
mod growth;
mod in_use;
mod index;
mod join;
mod lost;
mod migrate;
mod name;
mod nodes;
pub mod oidc;
mod open;
mod oversized;
mod pending;
mod place;
mod publish;
mod rebuild;
mod receipt;
mod receipt_key;
mod receive;
mod recompress;
mod reconcile;
mod refusal;
mod retention;
mod rule;
mod settings;
mod shared;
mod sign;
mod small;
mod small_bytes;
mod storage;
mod store_first;
mod survey;
mod tokens;
mod tokens_used;
mod traces;
mod trust;
mod unrecorded;

pub use audit::{Audit, AuditLine};
pub use batch::{NARS_MAX, read_commit, read_nars};
pub use cache::{Cache, KeptNarinfo, Listed, NarFile, NarHead, Stamp};
pub use commit::{COMMIT_MAX, Committed, Outcome};
pub use data::Data;
pub use database::Database;
pub use elsewhere::Elsewhere;
pub use error::DataError;
pub use export::Imported;
pub use figures::CacheFigures;
pub use fsck::{FsckOptions, FsckReport};
pub use grant::{CachePatterns, Grant, PATTERNS_MAX, PatternError, Scope, Scopes, UnknownScope};
pub use growth::SizeOfDay;
pub use index::{IndexError, Usage};
pub use migrate::{MigrateError, Migrated};
pub use name::{
    CACHE_NAME_LEN_MAX, CacheName, CacheNameError, DEFAULT_CACHE, NarFileName, NarFileNameError, NarTarget,
};
pub use nodes::{PEER_PATH, PeerFigures};
pub use open::DataOptions;
pub use place::Place;
pub use receipt::RECEIPT_KEY;
#[doc(hidden)]
pub use receive::verify_anything;
pub use receive::{Begin, Receipts, Stored, Upload};
pub use recompress::RECOMPRESSED_GRACE;
pub use refusal::{MESSAGE_LEN_MAX, REFUSAL_REASONS, Refusal, RefusalKind};
pub use retention::{
    COLLECT_GRACE, CollectOptions, Collected, Deleted, Forgotten, Hold, LEASE_SECONDS, Pin, PinFor, PinSize,
    UNFINISHED_GRACE, Why,
};
pub use settings::{CacheSettings, NAR_SIZE_MAX, RETENTION_DAYS, RETENTION_DAYS_SAFE, SettingsError};
pub use sign::SignReport;
pub use small::{Put, SmallKind};
pub use storage::{NarBytes, Redirect};
pub use survey::{CollectionFigures, Fullness, Survey, TokenEnd};
pub use tokens::{EXCHANGED_FOR, LABEL_LEN_MAX, NewToken, TOKEN_PREFIX, TokenError, TokenInfo, Tokens};

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
