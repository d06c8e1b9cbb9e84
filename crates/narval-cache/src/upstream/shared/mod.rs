//! What the clones of [`Upstreams`](super::Upstreams) share: what is known, kept, asked and fetched at the moment.
//!
//! The work is done above: `asking.rs`, `narinfos.rs`, `ahead.rs`, `nar/` and `neighbours/` add their verbs to [`Shared`].

pub(super) mod bases;
pub(super) mod known;
pub(super) mod nar_name;
pub(super) mod neighbours;
pub(super) mod question;
pub(super) mod walks;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Instant;

use narval_client::Budget;
use narval_files::{Background, DiskCache, Fetches, Permits};
use narval_nix::{HashPart, SecretKey, StoreDir};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache as Memory;

use self::bases::Bases;
use self::known::Known;
use self::neighbours::Neighbours;
use self::question::{Patience, Question};
use self::walks::Walks;
use super::options::Deadline;
use super::race::trace::Traces;
use super::remote::Remote;

pub(super) struct Shared {
    /// In order of priority.
    pub(super) remotes: RwLock<Arc<[Arc<Remote>]>>,
    pub(super) kept: DiskCache,
    /// Permits for threads of the server that wait.
    pub(super) waiting: Permits,
    pub(super) fetches: Permits,
    pub(super) store_dir: StoreDir,
    pub(super) sign_keys: RwLock<Vec<SecretKey>>,
    pub(super) narinfos: Memory<HashPart, Arc<Known>>,
    /// When absences were recorded, by name.
    pub(super) absent: Memory<Box<str>, Instant>,
    /// Names of paths that were seen, if some upstream is not asked for them.
    pub(super) names: Memory<HashPart, Box<str>>,
    pub(super) asking: Mutex<HashMap<(HashPart, Patience), Arc<Question>>>,
    pub(super) deadline: RwLock<Deadline>,
    pub(super) hedges: Budget,
    /// The NARs that are being fetched, by their names in `kept`.
    pub(super) running: Fetches,
    /// Threads that prefetch narinfos, and NARs.
    pub(super) narinfos_ahead: Arc<Background>,
    pub(super) nars_ahead: Arc<Background>,
    /// For their jobs, which do nothing once the upstreams are closed.
    pub(super) own: Weak<Self>,
    pub(super) walks: Walks,
    pub(super) bases: Bases,
    pub(super) traces: Traces,
    pub(super) neighbours: Neighbours,
    pub(super) forgotten: AtomicU64,
    pub(super) counted_absent: AtomicU64,
    pub(super) kept_hits: AtomicU64,
    pub(super) kept_misses: AtomicU64,
}
