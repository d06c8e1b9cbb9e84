//! The service: a store and a face, as a handler for the engine.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use narval_http::{Handler, HeadRef, HeaderValue, Method, Prepared, Request, Response, Snapshot, StatusCode, header};
use narval_nix::HashPart;
use narval_store::{ReadAhead, Store};

use crate::error::ServeError;
use crate::metrics::{Metrics, RouteLabel};
use crate::nar::damaged::Corrupt;
use crate::nar::memory::{Form, ReadyNars, is_plain};
use crate::nar::packed::{self, FlatNars};
use crate::nar::plan::Layouts;
use crate::nar::zstd::NarCache;
use crate::narinfo::memo::Memo;
use crate::routes::nar::asks_for_zstd;
use crate::routes::table::{Route, nar_hashes, narinfo_hash_part};
use crate::routes::{self, narinfo};
use crate::{Config, Face};

/// What files read ahead may take, over all NARs, in bytes.
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
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) memo: Arc<Memo>,
    pub(crate) layouts: Arc<Layouts>,
    pub(crate) ready_nars: ReadyNars,
    /// Reads small files before they are asked for, for all NARs together.
    pub(crate) ahead: Arc<ReadAhead>,
    pub(crate) flat_nars: Option<Arc<FlatNars>>,
    pub(crate) nar_cache: Option<NarCache>,
    pub(crate) corrupt: Arc<Corrupt>,
    pub(crate) metrics: Arc<Metrics>,
    /// `nix-cache-info`, which never changes.
    pub(crate) cache_info: Arc<Prepared>,
    /// The answer for paths that are not there.
    pub(crate) no_such_path: Arc<Prepared>,
    /// What tells the counters of the engine, once it runs.
    pub(crate) engine: OnceLock<EngineCounters>,
}

/// See [`Service::show_engine`].
pub(crate) struct EngineCounters(pub(crate) Box<dyn Fn() -> Snapshot + Send + Sync>);

impl fmt::Debug for EngineCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineCounters")
    }
}

impl Service {
    /// A service of a store.
    ///
    /// # Errors
    /// No thread can be started, or the folder of the NAR cache can't be used.
    pub fn new(config: Config, store: Store) -> Result<Self, ServiceError> {
        let metrics = Arc::new(Metrics::new());
        let memo = Arc::new(Memo::new(config.narinfo_memo_bytes));
        let layouts = Arc::new(Layouts::new());
        let corrupt = Arc::new(Corrupt::new(Arc::clone(&memo), Arc::clone(&layouts), Arc::clone(&metrics)));
        let open = |cache| {
            NarCache::open(cache, Arc::clone(&corrupt), Arc::clone(&metrics))
                .map_err(|error| ServiceError::NarCache { folder: cache.folder.clone(), error })
        };
        let nar_cache = config.nar_cache.as_ref().map(open).transpose()?;
        let flat_bytes_max = config.nar_cache.as_ref().map_or(u64::MAX, |cache| cache.bytes_max);
        let flat_nars =
            config.scratch.as_ref().filter(|_| !config.verify_nars).map(|folder| {
                Arc::new(FlatNars::new(folder, flat_bytes_max, Arc::clone(&corrupt), Arc::clone(&metrics)))
            });
        let ahead = ReadAhead::start(read_ahead_threads(), READ_AHEAD_BYTES_MAX).map_err(ServiceError::Threads)?;
        let shared = Shared {
            cache_info: routes::nix_cache_info::prepare(&config, &store),
            no_such_path: narinfo::absent(),
            memo,
            layouts,
            ready_nars: ReadyNars::new(),
            ahead: Arc::new(ahead),
            corrupt,
            flat_nars,
            nar_cache,
            metrics,
            config,
            store,
            engine: OnceLock::new(),
        };
        // Not an error: a daemon may start later, and a disk may be mounted later.
        if let Err(error) = shared.store.path_from_hash_part(&HashPart::from_digest(&[0; 20])) {
            tracing::warn!("{error}; until that can be done, requests are answered with 500");
        }
        Ok(Self { shared: Arc::new(shared) })
    }

    /// How many files the service may keep open beside those that it sends: they are not there for connections.
    pub fn kept_files_max(&self) -> usize {
        if self.shared.flat_nars.is_some() { packed::kept_max() } else { 0 }
    }

    /// Shows the counters of the engine that runs this service at `/metrics`, too. The first one counts.
    pub fn show_engine(&self, counters: impl Fn() -> Snapshot + Send + Sync + 'static) {
        // A second engine has its own clients; one text can't speak of both.
        let _ = self.shared.engine.set(EngineCounters(Box::new(counters)));
    }
}

/// Why a service can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The system starts no thread.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    /// The NAR cache can't be used.
    #[error("cannot use the NAR cache '{}': {error}", folder.display())]
    NarCache {
        /// Its folder.
        folder: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
}

impl Handler for Service {
    #[inline]
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        let shared = &*self.shared;
        if shared.config.face == Face::Narval && !is_read(head.method()) {
            return None;
        }
        let path = shared.below_prefix(head.path())?;
        if path == "/nix-cache-info" {
            shared.metrics.request(RouteLabel::CacheInfo, 200);
            return Some(Arc::clone(&shared.cache_info).into());
        }
        if let Some(hash_part) = narinfo_hash_part(path) {
            let generation = shared.store.stamp()?;
            let answer = shared.memo.get(generation, &hash_part)?;
            shared.metrics.narinfo_memo_hits.inc();
            let response = narinfo::respond(shared, head, answer);
            shared.metrics.request(RouteLabel::NarInfo, response.status().as_u16());
            return Some(response);
        }
        let (hash_part, nar_hash, is_zstd) = nar_hashes(path).filter(|_| is_plain(head))?;
        let form = match is_zstd {
            true if shared.config.face == Face::Narval => Form::Zstd,
            false if shared.nar_cache.is_some() && asks_for_zstd(head) => Form::Coded,
            false => Form::Identity,
            true => return None,
        };
        let generation = shared.store.stamp()?;
        let response = shared.ready_nars.get(shared, generation, (hash_part, nar_hash, form))?;
        shared.metrics.request(RouteLabel::Nar, 200);
        Some(response)
    }

    fn handle(&self, request: Request) -> Response {
        let shared = &self.shared;
        let started = Instant::now();
        let route = shared.route(&request.head());
        let label = route.as_ref().map_or(RouteLabel::Other, Route::label);
        let answer = route.and_then(|route| routes::answer(shared, route, request));
        let response = answer.unwrap_or_else(|error| error.into_response(&shared.metrics));
        shared.metrics.request(label, response.status().as_u16());
        shared.metrics.latency(started.elapsed());
        response
    }
}

impl Shared {
    fn route(&self, head: &HeadRef<'_>) -> Result<Route, ServeError> {
        let path = self.below_prefix(head.path()).ok_or(ServeError::NoRoute)?;
        let route = Route::parse(self.config.face, path, head.query());
        // The originals don't look at the method.
        if self.config.face == Face::Narval && route != Route::Batch && !is_read(head.method()) {
            return Err(ServeError::Method("GET, HEAD"));
        }
        Ok(route)
    }

    fn below_prefix<'a>(&self, path: &'a str) -> Option<&'a str> {
        match &self.config.prefix {
            None => Some(path),
            Some(prefix) => path.strip_prefix(prefix.as_str()).filter(|rest| rest.starts_with('/')),
        }
    }
}

fn is_read(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

/// An answer from memory with a content type and further fields.
pub(crate) fn prepared(
    status: StatusCode,
    content_type: &'static str,
    fields: &[(narval_http::HeaderName, HeaderValue)],
    body: impl Into<narval_http::Bytes>,
) -> Prepared {
    let mut all = vec![(header::CONTENT_TYPE, HeaderValue::from_static(content_type))];
    all.extend_from_slice(fields);
    Prepared::new(status, &all, body.into())
}
