//! The state shared by the handles of one data folder, and of one cache.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, RwLock};

use narval_nix::{NarHash, SecretKey};

use super::in_use::InUse;
use super::index::{CacheId, Index};
use super::lost::Losses;
use super::push::other_sources::OtherSources;
use super::push::pending::SeenPending;
use super::receive::contents::FileHashes;
use super::receive::writing::Writing;
use super::retention::{Shortage, Uses};
use super::small::bytes::SmallBytes;
use super::stats::growth::Growth;
use super::stats::survey::{Collections, Surveys};
use super::storage::{CacheStorage, Storage};
use super::tokens::used::TokensUsed;
use super::{Audit, CacheName, CacheSettings, Destination};
use narval_codec::decode::WindowMemory;

/// Locks that uploads of one NAR to a cache share.
const NAR_LOCKS: usize = 64;

/// Shared by the handles of one folder.
pub(super) struct Shared {
    pub(super) storage: Box<dyn Storage>,
    /// The folder on this machine.
    pub(super) local: PathBuf,
    pub(super) seen_pending: SeenPending,
    /// Nobody rebuilds the index meanwhile.
    pub(super) _in_use: Option<InUse>,
    pub(super) index: Box<dyn Index>,
    pub(super) audit: Audit,
    pub(super) tokens_used: TokensUsed,
    pub(super) uses: Uses,
    pub(super) shortage: Shortage,
    pub(super) losses: Losses,
    pub(super) file_hashes: FileHashes,
    pub(super) window_memory: Arc<WindowMemory>,
    pub(super) surveys: Surveys,
    pub(super) growth: Growth,
    pub(super) unsafe_no_verify: bool,
    /// When this process collects next, in seconds since 1970; 0 if it does not.
    pub(super) next_collection: AtomicU64,
    /// Whether caches that the API creates get keys in the index.
    pub(super) makes_keys: AtomicBool,
    /// Where jobs may copy caches to.
    pub(super) destinations: RwLock<Arc<BTreeMap<String, Destination>>>,
    /// The last change up to which files are consistent with the index.
    pub(super) reconciled: AtomicI64,
    /// The last change that [`settle`](crate::Data::settle) has looked at.
    pub(super) looked_at: AtomicI64,
    /// In one order, in which a simulation always does the same.
    pub(super) caches: RwLock<BTreeMap<CacheName, Arc<CacheState>>>,
    /// Ends the maintenance thread.
    pub(super) _stop: Sender<()>,
}

/// Shared by the handles of one cache.
pub(super) struct CacheState {
    pub(super) id: CacheId,
    pub(super) name: CacheName,
    pub(super) settings: RwLock<Arc<CacheSettings>>,
    pub(super) sign_keys: RwLock<Arc<[SecretKey]>>,
    pub(super) other_sources: RwLock<Option<Arc<dyn OtherSources>>>,
    pub(super) files: Box<dyn CacheStorage>,
    pub(super) small_bytes: SmallBytes,
    pub(super) writing: Writing,
    pub(super) collections: Collections,
    nar_locks: [Mutex<()>; NAR_LOCKS],
}

impl CacheState {
    pub(super) fn new(id: CacheId, name: CacheName, settings: CacheSettings, files: Box<dyn CacheStorage>) -> Self {
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
    pub(super) fn nar_lock(&self, nar_hash: &NarHash) -> &Mutex<()> {
        let [first, ..] = nar_hash.as_bytes();
        &self.nar_locks[usize::from(*first) % self.nar_locks.len()]
    }
}

impl Shared {
    /// Writes the collected uses of paths and tokens.
    pub(super) fn record(&self) {
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
    pub(super) fn end(&self) {
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
