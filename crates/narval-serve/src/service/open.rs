//! Puts a service together from its sources.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use narval_keep::CacheName;
use narval_nix::{HashPart, SecretKey, StoreDir};
use narval_store::{ReadAhead, Store};

use super::{Service, Shared, Sources, WritableCache};
use crate::config::{Config, Dialect};
use crate::metrics::Metrics;
use crate::nar::damaged::DamagedPaths;
use crate::nar::deltas::Deltas;
use crate::nar::memory::NarMemory;
use crate::nar::packed::PackedNars;
use crate::nar::plan::{Planner, Plans};
use crate::nar::zstd::{NarCache, NarCacheConfig};
use crate::narinfo::memo::Memo;
use crate::narinfo::sources::{LiveNarinfos, Narinfos};
use crate::narinfo::upstream::UpstreamNarinfos;
use crate::origins::{Live, Origins, Writable};
use crate::page::Page;
use crate::page::places::Places;
use crate::routes::nar::Nars;
use crate::routes::presence::Presence;
use crate::routes::{narinfo, nix_cache_info};
use crate::state::ServerState;
use crate::upload::receive::Uploads;

/// Memory for small files that are read ahead for all NARs, in bytes.
const READ_AHEAD_BYTES_MAX: usize = 8 * 1024 * 1024;

impl Service {
    /// A service with only a live store.
    ///
    /// # Errors
    /// See [`of`](Self::of).
    pub fn new(config: Config, store: Store) -> Result<Self, ServiceError> {
        Self::of(config, Sources { store: Some(store), ..Sources::default() }, &ServerState::new())
    }

    /// A service with these sources: one cache of a server. The state of that cache from an earlier service is reused
    /// from `state`.
    ///
    /// # Errors
    /// There is no source, or they have different store directories; no thread can be started, or the folder of the NAR cache cannot be
    /// used.
    pub fn of(config: Config, sources: Sources, state: &ServerState) -> Result<Self, ServiceError> {
        let name = sources.writable.as_ref().map(|writable| writable.cache.name().clone()).unwrap_or_default();
        let metrics = state.metrics(&name);
        let store_dir = store_dir_of(&sources)?;
        // What is absent in a cache may be in the live store or the upstreams that are served with it.
        let is_alone = sources.store.is_none() && sources.upstreams.is_none() && config.dialect == Dialect::Narval;
        let alone = sources.writable.as_ref().filter(|_| is_alone);
        let presence = alone.and_then(|one| Presence::of(&one.cache, &config, &store_dir)).map(Arc::new);
        let writable_cache = sources.writable.as_ref().map(|writable| &writable.cache);
        let cache_info = nix_cache_info::prepare(&config, &store_dir, writable_cache, presence.is_some());
        let (dialect, prefix) = (config.dialect, config.prefix.clone());
        let sign_keys: Vec<_> = config.sign_keys.iter().map(SecretKey::public_key).collect();
        let (wants_page, priority) = (config.page && dialect == Dialect::Narval, config.priority);
        let description = config.description.clone();
        let (memo_bytes, sign_secrets) = (config.narinfo_memo_bytes, config.sign_keys.clone());
        let mut writable_narinfos = None;
        let mut writable = None;
        let store = sources.store.map(Arc::new);
        if let Some(WritableCache { data, cache, public, oidc }) = sources.writable {
            writable_narinfos = Some(state.narinfos(&cache, memo_bytes));
            writable = Some(Writable {
                is_public: public,
                exchange: oidc,
                redirect: config.redirect,
                auth: state.auth(&data),
                uploads: Arc::new(Uploads::new(data.clone(), cache.clone(), state.uploads(), Arc::clone(&metrics))),
                data,
                cache,
            });
        }
        let (mut live, mut live_narinfos) = (None, None);
        let deltas = config.nar_cache.as_ref().filter(|_| config.sends_deltas());
        let deltas = deltas.map(|cache| open_deltas(cache, &name, &metrics)).transpose()?.flatten();
        if let Some(store) = store {
            let (nars, narinfos) = open_live((config, deltas.clone()), Arc::clone(&store), &metrics)?;
            live_narinfos = Some(narinfos);
            live = Some(Live { store, nars });
        }
        let upstream = sources.upstreams;
        let upstream_narinfos = upstream.clone().map(|upstreams| UpstreamNarinfos {
            upstreams,
            memo: Memo::new(memo_bytes),
            metrics: Arc::clone(&metrics),
        });
        let narinfos = Narinfos {
            live: live_narinfos,
            writable: writable_narinfos,
            upstream: upstream_narinfos,
            absent: narinfo::absent(dialect),
        };
        let narinfos = Arc::new(narinfos);
        let page = wants_page.then(|| {
            let places = Places {
                store_dir: store_dir.clone(),
                priority,
                sign_keys: sign_keys.clone(),
                narinfos: Arc::clone(&narinfos),
                store: live.as_ref().map(|live| Arc::clone(&live.store)),
                planner: live.as_ref().map(|live| Arc::clone(&live.nars.planner)),
                writable: writable.as_ref().map(|writable: &Writable| writable.cache.clone()),
                data: writable.as_ref().map(|writable| writable.data.clone()),
                description,
                has_upstreams: upstream.is_some(),
            };
            Page::new(places, state.clone(), Arc::clone(&metrics))
        });
        let shows_engine = name == CacheName::default();
        let origins = Arc::new(Origins { live, writable, upstream, metrics, shows_engine });
        Ok(Self {
            shared: Arc::new(Shared {
                dialect,
                prefix,
                store_dir,
                sign_keys,
                narinfos,
                origins,
                deltas,
                cache_info,
                presence,
                sign_secrets,
                page,
                state: state.clone(),
            }),
        })
    }
}

fn store_dir_of(sources: &Sources) -> Result<StoreDir, ServiceError> {
    let live = sources.store.as_ref().map(|store| store.store_dir().clone());
    let writable = sources.writable.as_ref().map(|writable| writable.cache.settings().store_dir.clone());
    match (live, writable) {
        (Some(live), Some(writable)) if live != writable => Err(ServiceError::StoreDirs { live, writable }),
        (Some(store_dir), _) | (None, Some(store_dir)) => Ok(store_dir),
        (None, None) => Err(ServiceError::NoSource),
    }
}

/// Opens everything that answers from a live store.
fn open_live(
    (config, deltas): (Config, Option<Arc<Deltas>>),
    store: Arc<Store>,
    metrics: &Arc<Metrics>,
) -> Result<(Nars, LiveNarinfos), ServiceError> {
    let (memo, plans) = (Arc::new(Memo::new(config.narinfo_memo_bytes)), Arc::new(Plans::new()));
    let damaged = {
        let (memo, plans) = (Arc::clone(&memo), Arc::clone(&plans));
        let forget = move |hash_part: &HashPart| {
            memo.forget(hash_part);
            plans.forget(hash_part);
        };
        Arc::new(DamagedPaths::new(forget, Arc::clone(metrics)))
    };
    let open = |cache| {
        NarCache::open(cache, Arc::clone(&damaged), Arc::clone(metrics))
            .map_err(|error| ServiceError::NarCache { folder: cache.folder.clone(), error })
    };
    let compressed = config.nar_cache.as_ref().map(open).transpose()?.map(Arc::new);
    let packed_bytes_max = config.nar_cache.as_ref().map_or(u64::MAX, |cache| cache.bytes_max);
    let pack = |folder: &PathBuf| {
        Arc::new(PackedNars::new(folder, packed_bytes_max, Arc::clone(&damaged), Arc::clone(metrics)))
    };
    let packed = config.scratch.as_ref().filter(|_| !config.verify_nars).map(pack);
    let ahead = ReadAhead::start(read_ahead_threads(), READ_AHEAD_BYTES_MAX).map_err(ServiceError::Threads)?;
    let planner = Arc::new(Planner {
        store: Arc::clone(&store),
        plans,
        ahead: Arc::new(ahead),
        damaged: Arc::clone(&damaged),
        metrics: Arc::clone(metrics),
    });
    let nars = Nars {
        dialect: config.dialect,
        verify: config.verify_nars,
        planner,
        memory: NarMemory::new(packed.clone(), compressed.clone(), Arc::clone(metrics)),
        packed,
        compressed: compressed.clone(),
        deltas,
        narinfos: Arc::clone(&memo),
        metrics: Arc::clone(metrics),
    };
    // Not an error: the daemon may be started and the disk mounted later.
    if let Err(error) = store.path_from_hash_part(&HashPart::from_digest(&[0; 20])) {
        tracing::warn!("{error}; requests are answered 500 until the store can be read");
    }
    let (dialect, sign_keys, metrics) = (config.dialect, config.sign_keys, Arc::clone(metrics));
    Ok((nars, LiveNarinfos { dialect, sign_keys, store, memo, damaged, compressed, metrics }))
}

fn open_deltas(
    cache: &NarCacheConfig,
    name: &CacheName,
    metrics: &Arc<Metrics>,
) -> Result<Option<Arc<Deltas>>, ServiceError> {
    let deltas = Deltas::open(cache, name, Arc::clone(metrics));
    let deltas = deltas.map_err(|error| ServiceError::NarCache { folder: cache.folder.clone(), error })?;
    Ok(deltas.map(Arc::new))
}

/// The number of threads that read small files ahead: they mostly wait for disks.
fn read_ahead_threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8)
}

/// Why a service cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// There is neither a store nor a cache.
    #[error("there is nothing to serve: neither a store nor a writable cache")]
    NoSource,
    /// The live store and the cache are for different store directories.
    #[error("the store is for '{live}' and the cache for '{writable}': serve them separately")]
    StoreDirs {
        /// The store's.
        live: StoreDir,
        /// The cache's.
        writable: StoreDir,
    },
    /// No thread can be started.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    /// The folder of the NAR cache cannot be used.
    #[error("cannot use the NAR cache '{}': {error}", folder.display())]
    NarCache {
        /// The folder.
        folder: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
}
