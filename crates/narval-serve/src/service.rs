//! The service: a store and a face, as a handler for the engine.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use narval_http::{Handler, HeadRef, Method, Prepared, Request, Response, Snapshot};
use narval_nix::HashPart;
use narval_store::{ReadAhead, Store};

use crate::error::ServeError;
use crate::metrics::{Metrics, RouteLabel};
use crate::nar::damaged::DamagedPaths;
use crate::nar::memory::NarMemory;
use crate::nar::packed::{self, PackedNars};
use crate::nar::plan::{Planner, Plans};
use crate::nar::zstd::NarCache;
use crate::narinfo::memo::Memo;
use crate::routes::nar::Nars;
use crate::routes::narinfo::Narinfos;
use crate::routes::table::{self, Route};
use crate::routes::{batch, build_trace, health, log, ls, metrics, narinfo, nix_cache_info};
use crate::{Config, Face};

/// Memory for small files that are read ahead, over all NARs, in bytes.
const READ_AHEAD_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Threads that read small files ahead: they wait for disks more than they work.
fn read_ahead_threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8)
}

/// A Nix store as a binary cache.
///
/// Cheap to clone: clones share everything.
#[derive(Clone, Debug)]
pub struct Service {
    pub(crate) shared: Arc<Shared>,
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    face: Face,
    prefix: Option<String>,
    store: Arc<Store>,
    narinfos: Arc<Narinfos>,
    pub(crate) nars: Nars,
    metrics: Arc<Metrics>,
    /// `nix-cache-info`, which never changes.
    cache_info: Arc<Prepared>,
    /// Reads the counters of the engine, once it runs.
    engine: OnceLock<EngineCounters>,
}

/// See [`Service::show_engine`].
struct EngineCounters(Box<dyn Fn() -> Snapshot + Send + Sync>);

impl fmt::Debug for EngineCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineCounters")
    }
}

impl Service {
    /// A service of a store.
    ///
    /// # Errors
    /// No thread can be started, or the folder of the NAR cache cannot be used.
    pub fn new(config: Config, store: Store) -> Result<Self, ServiceError> {
        let (store, metrics) = (Arc::new(store), Arc::new(Metrics::new()));
        let cache_info = nix_cache_info::prepare(&config, &store);
        let (memo, plans) = (Arc::new(Memo::new(config.narinfo_memo_bytes)), Arc::new(Plans::new()));
        let damaged = {
            let (memo, plans) = (Arc::clone(&memo), Arc::clone(&plans));
            let forget = move |hash_part: &HashPart| {
                memo.forget(hash_part);
                plans.forget(hash_part);
            };
            Arc::new(DamagedPaths::new(forget, Arc::clone(&metrics)))
        };
        let open = |cache| {
            NarCache::open(cache, Arc::clone(&damaged), Arc::clone(&metrics))
                .map_err(|error| ServiceError::NarCache { folder: cache.folder.clone(), error })
        };
        let compressed = config.nar_cache.as_ref().map(open).transpose()?.map(Arc::new);
        let packed_bytes_max = config.nar_cache.as_ref().map_or(u64::MAX, |cache| cache.bytes_max);
        let pack = |folder: &PathBuf| {
            Arc::new(PackedNars::new(folder, packed_bytes_max, Arc::clone(&damaged), Arc::clone(&metrics)))
        };
        let packed = config.scratch.as_ref().filter(|_| !config.verify_nars).map(pack);
        let ahead = ReadAhead::start(read_ahead_threads(), READ_AHEAD_BYTES_MAX).map_err(ServiceError::Threads)?;
        let planner = Planner {
            store: Arc::clone(&store),
            plans,
            ahead: Arc::new(ahead),
            damaged: Arc::clone(&damaged),
            metrics: Arc::clone(&metrics),
        };
        let nars = Nars {
            face: config.face,
            verify: config.verify_nars,
            planner,
            memory: NarMemory::new(packed.clone(), compressed.clone(), Arc::clone(&metrics)),
            packed,
            compressed: compressed.clone(),
            narinfos: Arc::clone(&memo),
            metrics: Arc::clone(&metrics),
        };
        let narinfos = Arc::new(Narinfos {
            face: config.face,
            sign_keys: config.sign_keys,
            store: Arc::clone(&store),
            memo,
            damaged,
            compressed,
            absent: narinfo::absent(),
            metrics: Arc::clone(&metrics),
        });
        // Not an error: the daemon may be started and the disk mounted later.
        if let Err(error) = store.path_from_hash_part(&HashPart::from_digest(&[0; 20])) {
            tracing::warn!("{error}; requests are answered 500 until the store can be read");
        }
        let (face, prefix, engine) = (config.face, config.prefix, OnceLock::new());
        Ok(Self { shared: Arc::new(Shared { face, prefix, store, narinfos, nars, metrics, cache_info, engine }) })
    }

    /// The most files that the service keeps open beside those it sends: these descriptors are not available for connections.
    pub fn kept_files_max(&self) -> usize {
        if self.shared.nars.packed.is_some() { packed::kept_max() } else { 0 }
    }

    /// Shows the counters of the engine that runs this service at `/metrics`, too. Only the first call has an effect.
    pub fn show_engine(&self, counters: impl Fn() -> Snapshot + Send + Sync + 'static) {
        // One text cannot show two engines.
        let _ = self.shared.engine.set(EngineCounters(Box::new(counters)));
    }
}

/// Why a service cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// No thread can be started.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    /// The folder of the NAR cache cannot be used.
    #[error("cannot use the NAR cache '{}': {error}", folder.display())]
    NarCache {
        /// The folder.
        folder: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
}

impl Handler for Service {
    #[inline]
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        let shared = &*self.shared;
        if shared.face == Face::Narval && !is_read(head.method()) {
            return None;
        }
        // A path with %XX is parsed on a worker: no route below has any.
        let path = shared.below_prefix(head.path())?;
        let (label, response) = match Route::parse(shared.face, path, head.query()) {
            Route::NarInfo(hash_part) => (RouteLabel::NarInfo, shared.narinfos.inline(head, &hash_part)?),
            Route::Nar(route) => (RouteLabel::Nar, shared.nars.inline(head, &route)?),
            Route::CacheInfo => (RouteLabel::CacheInfo, Arc::clone(&shared.cache_info).into()),
            _ => return None,
        };
        shared.metrics.request(label, response.status().as_u16());
        Some(response)
    }

    fn handle(&self, request: Request) -> Response {
        let shared = &*self.shared;
        let started = Instant::now();
        let path = request.path().to_owned();
        let path = shared.below_prefix(&path).and_then(table::decode);
        let query = request.query().map(str::to_owned);
        let route = path.as_ref().map_or(Route::Unknown, |path| Route::parse(shared.face, path, query.as_deref()));
        let label = route.label();
        let answer = shared.answer(route, request);
        let response = answer.unwrap_or_else(|error| error.into_response(&shared.metrics));
        shared.metrics.request(label, response.status().as_u16());
        shared.metrics.latency(started.elapsed());
        response
    }
}

impl Shared {
    /// Answers a request, on a worker.
    fn answer(&self, route: Route<'_>, request: Request) -> Result<Response, ServeError> {
        // nix-serve and nix-serve-ng ignore the method.
        if self.face == Face::Narval && route != Route::Batch && !is_read(request.method()) {
            return Err(ServeError::Method("GET, HEAD"));
        }
        match route {
            Route::NarInfo(hash_part) => self.narinfos.answer(&request.head(), hash_part),
            Route::Nar(route) => self.nars.answer(&request.head(), &route),
            Route::CacheInfo => Ok(Arc::clone(&self.cache_info).into()),
            Route::Listing(hash_part) => ls::answer(&self.nars.planner, hash_part, &request.head()),
            Route::Log(path) => log::answer(&self.store, &path),
            Route::BuildTrace(key) => build_trace::answer(&self.store, &key),
            Route::Realisation(id) => build_trace::older(&self.store, id),
            Route::Batch => batch::answer(&self.narinfos, request),
            Route::Metrics => Ok(metrics::answer(&self.metrics, self.engine_text())),
            Route::Health => Ok(health::answer(&self.store)),
            Route::Index => Ok(health::index(&self.store, &self.narinfos.sign_keys)),
            Route::Invalid => Err(ServeError::Invalid),
            Route::Unknown => Err(ServeError::NoRoute),
        }
    }

    fn engine_text(&self) -> String {
        self.engine.get().map(|engine| (engine.0)().openmetrics()).unwrap_or_default()
    }

    fn below_prefix<'a>(&self, path: &'a str) -> Option<&'a str> {
        match &self.prefix {
            None => Some(path),
            Some(prefix) => path.strip_prefix(prefix.as_str()).filter(|rest| rest.starts_with('/')),
        }
    }
}

fn is_read(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}
