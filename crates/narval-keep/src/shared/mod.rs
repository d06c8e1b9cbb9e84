//! The state shared by the handles of one data folder, and of one cache.

pub(crate) mod counts;
mod file_hashes;
pub(crate) mod growth;
mod losses;
pub(crate) mod other_sources;
mod seen_pending;
mod shortage;
mod small_bytes;
mod uses;
pub(crate) mod writing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, RwLock};

use narval_nix::{NarHash, SecretKey};

use crate::access::audit::Audit;
use crate::access::used::TokensUsed;
use crate::in_use::InUse;
use crate::index::Index;
use crate::name::CacheName;
use crate::options::Destination;
use crate::records::paths::CacheId;
use crate::settings::CacheSettings;
use crate::storage::{CacheStorage, Storage};
use narval_codec::decode::WindowMemory;

use self::counts::{Collections, Surveys};
pub(crate) use self::file_hashes::FileHashes;
use self::growth::Growth;
pub(crate) use self::losses::{Finder, LOSSES_MAX, Losses};
use self::other_sources::OtherSources;
pub(crate) use self::seen_pending::{Seen, SeenPending};
pub(crate) use self::shortage::Shortage;
pub(crate) use self::small_bytes::SmallBytes;
pub(crate) use self::uses::{RESOLUTION_SECONDS, Uses};
use self::writing::Writing;

/// Locks that uploads of one NAR to a cache share.
const NAR_LOCKS: usize = 64;

/// Shared by the handles of one folder.
pub(crate) struct Shared {
    pub(crate) storage: Box<dyn Storage>,
    /// The folder on this machine.
    pub(crate) local: PathBuf,
    pub(crate) seen_pending: SeenPending,
    /// Nobody rebuilds the index meanwhile.
    pub(crate) _in_use: Option<InUse>,
    pub(crate) index: Box<dyn Index>,
    pub(crate) audit: Audit,
    pub(crate) tokens_used: TokensUsed,
    pub(crate) uses: Uses,
    pub(crate) shortage: Shortage,
    pub(crate) losses: Losses,
    pub(crate) file_hashes: FileHashes,
    pub(crate) window_memory: Arc<WindowMemory>,
    pub(crate) surveys: Surveys,
    pub(crate) growth: Growth,
    pub(crate) unsafe_no_verify: bool,
    /// When this process collects next, in seconds since 1970; 0 if it does not.
    pub(crate) next_collection: AtomicU64,
    /// Whether caches that the API creates get keys in the index.
    pub(crate) makes_keys: AtomicBool,
    /// Where jobs may copy caches to.
    pub(crate) destinations: RwLock<Arc<BTreeMap<String, Destination>>>,
    /// The last change up to which files are consistent with the index.
    pub(crate) reconciled: AtomicI64,
    /// The last change that [`settle`](crate::Data::settle) has looked at.
    pub(crate) looked_at: AtomicI64,
    /// In one order, in which a simulation always does the same.
    pub(crate) caches: RwLock<BTreeMap<CacheName, Arc<CacheState>>>,
    /// Ends the maintenance thread.
    pub(crate) _stop: Sender<()>,
}

/// Shared by the handles of one cache.
pub(crate) struct CacheState {
    pub(crate) id: CacheId,
    pub(crate) name: CacheName,
    pub(crate) settings: RwLock<Arc<CacheSettings>>,
    pub(crate) sign_keys: RwLock<Arc<[SecretKey]>>,
    pub(crate) other_sources: RwLock<Option<Arc<dyn OtherSources>>>,
    pub(crate) files: Box<dyn CacheStorage>,
    pub(crate) small_bytes: SmallBytes,
    pub(crate) writing: Writing,
    pub(crate) collections: Collections,
    nar_locks: [Mutex<()>; NAR_LOCKS],
}

impl CacheState {
    pub(crate) fn new(id: CacheId, name: CacheName, settings: CacheSettings, files: Box<dyn CacheStorage>) -> Self {
        Self {
            id,
            name,
            settings: RwLock::new(Arc::new(settings)),
            sign_keys: RwLock::new(Arc::from([])),
            other_sources: RwLock::new(None),
            files,
            small_bytes: SmallBytes::default(),
            writing: Writing::default(),
            collections: Collections::default(),
            nar_locks: [const { Mutex::new(()) }; NAR_LOCKS],
        }
    }

    /// A lock for uploads of the same NAR, which are stored one after another.
    pub(crate) fn nar_lock(&self, nar_hash: &NarHash) -> &Mutex<()> {
        let [first, ..] = nar_hash.as_bytes();
        &self.nar_locks[usize::from(*first) % self.nar_locks.len()]
    }
}

impl Shared {
    /// Writes the collected uses of paths and tokens.
    pub(crate) fn record(&self) {
        self.keep_writers(false);
        let uses = self.uses.take();
        match if uses.is_empty() { Ok(()) } else { self.index.used(&uses) } {
            Ok(()) => {}
            // Later, so that nothing is collected that was used meanwhile.
            Err(error) if error.is_unavailable() => self.uses.put_back(uses),
            Err(error) => tracing::warn!("{error}"),
        }
        let used = self.tokens_used.take();
        if !used.is_empty()
            && let Err(error) = self.index.tokens_used(used)
            && !error.is_unavailable()
        {
            tracing::warn!("{error}");
        }
    }

    /// Writes what waits, because the process ends.
    pub(crate) fn end(&self) {
        self.record();
        self.keep_writers(true);
        self.audit.flush(&*self.index);
        self.index.leave();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end();
    }
}
