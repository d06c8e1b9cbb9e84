//! The service: sources and a face, as a handler for the engine.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use narval_cache::upstream::{Small, Upstreams};
use narval_cache::written::{Cache, CacheName, Data, Elsewhere, Redirect, Refusal, RefusalKind, Scope, SmallKind};
use narval_client::request_id;
use narval_http::{
    Handler, HeadRef, HeaderName, HeaderValue, Method, Prepared, Request, Response, Snapshot, StatusCode, header,
};
use narval_nix::{HashPart, PublicKey, SecretKey, StoreDir};
use narval_store::{ReadAhead, Store};

use crate::auth::Auth;
use crate::auth::oidc::OidcExchange;
use crate::error::ServeError;
use crate::gate::{Allowed, Gate, is_read};
use crate::metrics::{Metrics, RouteLabel};
use crate::nar::damaged::DamagedPaths;
use crate::nar::deltas::Deltas;
use crate::nar::memory::NarMemory;
use crate::nar::packed::{self, PackedNars};
use crate::nar::plan::{Planner, Plans};
use crate::nar::zstd::NarCache;
use crate::narinfo::memo::Memo;
use crate::page::{self, Counted, Page, PageRoute, Permit, Places, session};
use crate::routes::nar::Nars;
use crate::routes::narinfo::{LiveNarinfos, Narinfos};
use crate::routes::table::{self, NarRoute, PushRoute, Route};
use crate::routes::{batch, build_trace, health, log, ls, metrics, narinfo, nix_cache_info};
use crate::state::ServerState;
use crate::upload::Uploads;
use crate::upstream;
use crate::upstream::narinfo::UpstreamNarinfos;
use crate::written::{nar, small};
use crate::{Config, Face, NarCacheConfig};

/// Memory for small files that are read ahead for all NARs, in bytes.
const READ_AHEAD_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Answers of a server that failed say what its log calls the request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The number of threads that read small files ahead: they mostly wait for disks.
fn read_ahead_threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8)
}

/// Nix packages as a binary cache: of a live store, of a writable cache, or of both.
///
/// Cheap to clone: clones share everything.
#[derive(Clone, Debug)]
pub struct Service {
    pub(crate) shared: Arc<Shared>,
}

/// The sources to serve, queried in this order.
#[derive(Debug, Default)]
pub struct Sources {
    /// A live store.
    pub store: Option<Store>,
    /// A cache that accepts uploads; only with [`Face::Narval`].
    pub written: Option<WrittenCache>,
    /// The upstreams; only with a cache that accepts uploads.
    pub upstreams: Option<Upstreams>,
}

/// A cache that accepts uploads.
#[derive(Debug)]
pub struct WrittenCache {
    /// The data folder, which has the tokens.
    pub data: Data,
    /// The cache in the data folder.
    pub cache: Cache,
    /// Whether reading needs no token it.
    pub public: bool,
    /// The token exchange for jobs of CI platforms (OpenID Connect).
    pub oidc: Option<OidcExchange>,
}

/// Shared by all requests.
#[derive(Debug)]
pub(crate) struct Shared {
    face: Face,
    prefix: Option<String>,
    store_dir: StoreDir,
    sign_keys: Vec<PublicKey>,
    narinfos: Arc<Narinfos>,
    pub(crate) live: Option<Live>,
    written: Option<Written>,
    upstream: Option<Upstreams>,
    /// Deltas of NARs, if they are sent.
    pub(crate) deltas: Option<Arc<Deltas>>,
    metrics: Arc<Metrics>,
    /// `nix-cache-info`, which never changes.
    cache_info: Arc<Prepared>,
    /// See [`Service::take_effect`].
    sign_secrets: Vec<SecretKey>,
    /// The page for browsers, if enabled.
    page: Option<Page>,
    state: ServerState,
    /// Whether it is the cache at `/`, whose `/metrics` shows the engine's counters, too.
    shows_engine: bool,
}

/// The live store.
#[derive(Debug)]
pub(crate) struct Live {
    store: Arc<Store>,
    pub(crate) nars: Nars,
}

/// The writable cache.
#[derive(Debug)]
struct Written {
    cache: Cache,
    auth: Arc<Auth>,
    uploads: Arc<Uploads>,
    is_public: bool,
    exchange: Option<OidcExchange>,
    redirect: Redirect,
}

/// The counters that the page shows.
struct Figures {
    metrics: Arc<Metrics>,
    state: ServerState,
    upstreams: Option<Upstreams>,
}

impl Counted for Figures {
    fn sample(&self, uptime: u64) -> String {
        self.metrics.sample(uptime, self.state.engine(), self.upstreams.as_ref().map(Upstreams::available))
    }
}

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
        let name = sources.written.as_ref().map(|written| written.cache.name().clone()).unwrap_or_default();
        let metrics = state.metrics(&name);
        let store_dir = store_dir_of(&sources)?;
        let cache_info = nix_cache_info::prepare(&config, &store_dir, sources.written.is_some());
        let (face, prefix) = (config.face, config.prefix.clone());
        let sign_keys: Vec<_> = config.sign_keys.iter().map(SecretKey::public_key).collect();
        let (wants_page, priority) = (config.page && face == Face::Narval, config.priority);
        let (memo_bytes, sign_secrets) = (config.narinfo_memo_bytes, config.sign_keys.clone());
        let mut written_narinfos = None;
        let mut written = None;
        let store = sources.store.map(Arc::new);
        if let Some(WrittenCache { data, cache, public, oidc }) = sources.written {
            written_narinfos = Some(state.narinfos(&cache, memo_bytes));
            written = Some(Written {
                is_public: public,
                exchange: oidc,
                redirect: config.redirect,
                auth: state.auth(&data),
                uploads: Arc::new(Uploads::new(data, cache.clone(), state.uploads(), Arc::clone(&metrics))),
                cache,
            });
        }
        let (mut live, mut live_narinfos) = (None, None);
        let deltas = config.nar_cache.as_ref().filter(|_| config.sends_deltas());
        let deltas = deltas.map(|cache| open_deltas(cache, &metrics)).transpose()?.flatten();
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
            written: written_narinfos,
            upstream: upstream_narinfos,
            absent: narinfo::absent(),
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
                written: written.as_ref().map(|written: &Written| written.cache.clone()),
                has_upstreams: upstream.is_some(),
            };
            let (metrics, upstreams) = (Arc::clone(&metrics), upstream.clone());
            Page::new(places, Arc::new(Figures { metrics, state: state.clone(), upstreams }))
        });
        Ok(Self {
            shared: Arc::new(Shared {
                face,
                prefix,
                store_dir,
                sign_keys,
                narinfos,
                live,
                written,
                upstream,
                deltas,
                metrics,
                cache_info,
                sign_secrets,
                page,
                state: state.clone(),
                shows_engine: name == CacheName::default(),
            }),
        })
    }

    /// From now on, uploads are signed with this service's keys, and may refer to paths of its sources. Call this when
    /// it starts to answer requests: until then, the replaced service decides.
    pub fn take_effect(&self) {
        let shared = &*self.shared;
        if let Some(written) = &shared.written {
            let store = shared.live.as_ref().map(|live| Arc::clone(&live.store));
            written.cache.set_sign_keys(shared.sign_secrets.clone());
            written.cache.set_elsewhere(Some(Arc::new(OtherSources(store, shared.upstream.clone()))));
        }
        if let Some(upstreams) = &shared.upstream {
            upstreams.set_sign_keys(shared.sign_secrets.clone());
        }
    }

    /// The maximum number of files that the service keeps open besides those it sends: these descriptors are not
    /// available for connections.
    pub fn kept_files_max(&self) -> usize {
        let packs = self.shared.live.as_ref().is_some_and(|live| live.nars.packed.is_some());
        if packs { packed::kept_max() } else { 0 }
    }

    /// Shows the counters of the engine that runs this service at `/metrics`, too. Only the first call has an effect.
    pub fn show_engine(&self, counters: impl Fn() -> Snapshot + Send + Sync + 'static) {
        self.shared.state.show_engine(counters);
    }

    /// Whether reading needs no token.
    pub(crate) fn is_public(&self) -> bool {
        self.shared.written.as_ref().is_none_or(|written| written.is_public)
    }

    /// [`Handler::inline`] of a request. The cache's own path begins at byte `at` of the request's.
    #[inline]
    pub(crate) fn inline_at(&self, head: &HeadRef<'_>, at: usize) -> Option<Response> {
        let shared = &*self.shared;
        if shared.face == Face::Narval && !is_read(head.method()) {
            return None;
        }
        if shared.written.as_ref().is_some_and(|written| !written.gate(&shared.metrics, at).may_read_inline(head)) {
            return None;
        }
        // A path with %XX is parsed on a worker: no route below has any.
        let (label, response) = match Route::parse(shared.face, head.path().get(at..)?, head.query()) {
            Route::NarInfo(hash_part) => (RouteLabel::NarInfo, shared.narinfos.inline(head, &hash_part)?),
            Route::Nar(route) => (RouteLabel::Nar, shared.live.as_ref()?.nars.inline(head, &route)?),
            Route::CacheInfo => (RouteLabel::CacheInfo, Arc::clone(&shared.cache_info).into()),
            _ => return None,
        };
        shared.metrics.request(label, response.status().as_u16());
        Some(response)
    }

    /// [`Handler::handle`] of a request. The cache's own path begins at byte `at` of the request's.
    pub(crate) fn handle_at(&self, request: Request, at: usize) -> Response {
        self.count(request, Some(at), |shared, route, is_own, request| match &shared.written {
            Some(written) => shared.answer_with_tokens(written, route, is_own, at, request),
            None => shared.answer(route, request),
        })
    }

    /// Answers a request for a cache that does not exist as a private one would answer it.
    pub(crate) fn handle_nobody(&self, request: Request, name: &CacheName) -> Response {
        self.count(request, Some(1 + name.as_str().len()), |shared, route, _, request| {
            let Some(written) = &shared.written else { return Err(ServeError::NoRoute) };
            // As for a private cache: the document says nothing about it.
            if let Some(page) = shared.page_for(&route, &request) {
                return Ok(page);
            }
            let gate = Gate { cache: name, is_public: false, is_root: false, ..written.gate(&shared.metrics, 0) };
            match written.exchange(&route, &request) {
                Some(exchange) => exchange.answer(&written.auth, request, &shared.metrics),
                None => match gate.pass(route, &request)? {
                    Allowed::Read(_) => Err(ServeError::NoPath),
                    Allowed::SessionInfo(session) if shared.page.is_some() => session::info(name, session.as_ref()),
                    _ => Err(Refusal::new(RefusalKind::NotFound, format!("there is no cache '{name}' here")).into()),
                },
            }
        })
    }

    /// Answers on a worker, or on a thread for streamed bodies, and counts the answer.
    fn count(
        &self,
        request: Request,
        at: Option<usize>,
        answer: impl FnOnce(&Shared, Route<'_>, bool, Request) -> Result<Response, ServeError>,
    ) -> Response {
        let shared = &*self.shared;
        let started = Instant::now();
        // What is asked of upstreams carries the request's id.
        let id = shared.upstream.is_some().then(|| request.id().to_string().into());
        let _entered = id.map(|id| request_id::enter(Some(id)));
        let id = (shared.face == Face::Narval).then(|| request.id().clone());
        let path = at.and_then(|at| request.path().get(at..)).map(str::to_owned);
        // Without a path below the prefix there is no route; `/team` is `/team/`.
        let path = path.map(|path| if path.is_empty() && at > Some(0) { "/".to_owned() } else { path });
        let path = path.as_deref().and_then(table::decode);
        let query = request.query().map(str::to_owned);
        let base = |path| shared.written.as_ref().and_then(|_| below_push(path));
        let own = path.as_deref().and_then(base);
        let path = own.or(path.as_deref());
        let route = path.map_or(Route::Unknown, |path| Route::parse(shared.face, path, query.as_deref()));
        let label = route.label();
        let is_of_page = request.header_bytes(page::FIELD).is_some();
        let answer = answer(shared, route, own.is_some(), request);
        let mut response = answer.unwrap_or_else(|error| error.into_response(&shared.metrics));
        if is_of_page && response.status() == StatusCode::UNAUTHORIZED {
            // The page asks for a token itself: for Basic credentials, the browser would.
            response = response.replace_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        shared.metrics.latency(started.elapsed());
        // An upload may be answered later.
        let metrics = Arc::clone(&shared.metrics);
        response.map(move |response| {
            metrics.request(label, response.status().as_u16());
            match id.filter(|_| response.status().is_server_error()) {
                Some(id) => response.header(REQUEST_ID, id.to_string()),
                None => response,
            }
        })
    }
}

fn store_dir_of(sources: &Sources) -> Result<StoreDir, ServiceError> {
    let live = sources.store.as_ref().map(|store| store.store_dir().clone());
    let written = sources.written.as_ref().map(|written| written.cache.settings().store_dir.clone());
    match (live, written) {
        (Some(live), Some(written)) if live != written => Err(ServiceError::StoreDirs { live, written }),
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
        face: config.face,
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
    let (face, sign_keys, metrics) = (config.face, config.sign_keys, Arc::clone(metrics));
    Ok((nars, LiveNarinfos { face, sign_keys, store, memo, damaged, compressed, metrics }))
}

fn open_deltas(cache: &NarCacheConfig, metrics: &Arc<Metrics>) -> Result<Option<Arc<Deltas>>, ServiceError> {
    let deltas = Deltas::open(cache, Arc::clone(metrics));
    let deltas = deltas.map_err(|error| ServiceError::NarCache { folder: cache.folder.clone(), error })?;
    Ok(deltas.map(Arc::new))
}

/// The paths of the live store and of the upstreams: uploads may refer to them, because clients of this cache can get
/// them.
struct OtherSources(Option<Arc<Store>>, Option<Upstreams>);

impl Elsewhere for OtherSources {
    fn have(&self, cache: &CacheName, hash_parts: &[HashPart]) -> Vec<bool> {
        let live = |store: &Store, hash_part: &HashPart| match store.path_from_hash_part(hash_part) {
            Ok(path) => path.is_some(),
            Err(error) => {
                tracing::error!("{error}");
                false
            }
        };
        let has = |hash_part| self.0.as_ref().is_some_and(|store| live(store, hash_part));
        let mut have: Vec<_> = hash_parts.iter().map(has).collect();
        if let Some(upstreams) = &self.1 {
            let missing = std::iter::zip(hash_parts, &have).filter(|(_, has)| !**has).map(|(part, _)| *part);
            let missing: Vec<_> = missing.collect();
            let found = upstreams.have(cache, &missing);
            std::iter::zip(have.iter_mut().filter(|has| !**has), found).for_each(|(has, found)| *has = found);
        }
        have
    }
}

/// Why a service cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// There is neither a store nor a cache.
    #[error("there is nothing to serve: neither a store nor a writable cache")]
    NoSource,
    /// The live store and the cache are for different store directories.
    #[error("the store is for '{live}' and the cache for '{written}': serve them separately")]
    StoreDirs {
        /// The store's.
        live: StoreDir,
        /// The cache's.
        written: StoreDir,
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

impl Handler for Service {
    #[inline]
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        self.inline_at(head, self.shared.below_prefix(head.path())?)
    }

    fn handle(&self, request: Request) -> Response {
        match self.shared.below_prefix(request.path()) {
            Some(at) => self.handle_at(request, at),
            None => self.count(request, None, |shared, route, _, request| shared.answer(route, request)),
        }
    }

    /// Only the page has one.
    fn accepts_websockets(&self) -> bool {
        self.shared.page.is_some()
    }
}

impl Shared {
    /// Answers a request to a server that does not accept uploads.
    fn answer(&self, route: Route<'_>, request: Request) -> Result<Response, ServeError> {
        // nix-serve and nix-serve-ng ignore the method.
        if self.face == Face::Narval && route != Route::Batch && !is_read(request.method()) {
            return Err(match *request.method() {
                Method::PUT => ServeError::NotWritable,
                _ => ServeError::Method("GET, HEAD"),
            });
        }
        match self.page_for(&route, &request) {
            Some(page) => Ok(page),
            None => self.read(route, request),
        }
    }

    /// The page, for a browser that requests `/`.
    fn page_for(&self, route: &Route<'_>, request: &Request) -> Option<Response> {
        let is_shown = self.page.is_some() && *route == Route::Index && is_read(request.method());
        (is_shown && Page::is_wanted(&request.head())).then(|| Page::document(&request.head()))
    }

    /// Answers a request to a server that accepts uploads. Access control comes first.
    fn answer_with_tokens(
        &self,
        written: &Written,
        route: Route<'_>,
        is_own: bool,
        at: usize,
        request: Request,
    ) -> Result<Response, ServeError> {
        if let Some(exchange) = written.exchange(&route, &request) {
            return exchange.answer(&written.auth, request, &self.metrics);
        }
        if let Some(page) = self.page_for(&route, &request) {
            return Ok(page);
        }
        match written.gate(&self.metrics, at).pass(route, &request)? {
            Allowed::Put(route, grant) => written.uploads.put(route, grant, request),
            Allowed::Post(push, grant) => written.uploads.post(push, grant, request),
            Allowed::Progress(name, grant) => written.uploads.progress(name, &grant),
            Allowed::Administer(asked, grant) => written.uploads.administer(asked, grant, request),
            allowed @ (Allowed::SignIn(_) | Allowed::SignOut(_) | Allowed::SessionInfo(_) | Allowed::Manage(..))
                if self.page.is_none() =>
            {
                drop(allowed);
                Err(ServeError::NoRoute)
            }
            Allowed::SignIn(grant) => session::sign_in(&written.auth, grant, &request, at),
            Allowed::SignOut(of) => Ok(session::sign_out(&written.auth, &of, &request, at)),
            Allowed::SessionInfo(session) => session::info(written.cache.name(), session.as_ref()),
            Allowed::Manage(asked, grant) => {
                let command = asked.into_command();
                written.uploads.run(request, move |data, cache, body| command.run(data, cache, &grant, body))
            }
            Allowed::Read(Route::Page(PageRoute::Now)) => {
                let permit = written.permit(&request.head())?;
                self.page.as_ref().ok_or(ServeError::NoRoute)?.live(&request, permit)
            }
            Allowed::Read(route) if is_own => self.read_own(written, route, request),
            Allowed::Read(route) => self.read(route, request),
        }
    }

    /// Answers only from the writable cache: below [`PUSH_BASE`].
    fn read_own(&self, written: &Written, route: Route<'_>, request: Request) -> Result<Response, ServeError> {
        let small = |kind, name: &str| small::answer(&written.cache, kind, name);
        match route {
            Route::NarInfo(hash_part) => self.narinfos.answer_own(&request.head(), hash_part),
            Route::Listing(hash_part) => small(SmallKind::Listing, hash_part.as_str()),
            Route::Log(path) => small(SmallKind::Log, path.base_name()),
            Route::BuildTrace(key) => {
                small(SmallKind::BuildTrace, &format!("{}/{}.doi", key.drv_path, key.output_name))
            }
            Route::Realisation(id) => small(SmallKind::Realisation, &format!("{id}.doi")),
            Route::Nar(_) | Route::UpstreamNar(_) | Route::Batch => Err(ServeError::NoPath),
            route => self.read(route, request),
        }
    }

    /// Answers from the sources in order.
    fn read(&self, route: Route<'_>, request: Request) -> Result<Response, ServeError> {
        let head = request.head();
        match route {
            Route::NarInfo(hash_part) => self.narinfos.answer(&head, hash_part),
            Route::Nar(route) => self.nar(&route, &head),
            Route::UpstreamNar(name) => {
                upstream::nar::answer(self.upstream.as_ref().ok_or(ServeError::NoRoute)?, name, &head, &self.metrics)
            }
            Route::NarFile(name) => match &self.written {
                Some(written) => {
                    let how = (self.deltas.as_deref(), written.redirect);
                    nar::answer(&written.cache, name, &head, how, &self.metrics)
                }
                None if name.ends_with(".nar") || name.ends_with(".nar.zst") => Err(ServeError::Invalid),
                None => Err(ServeError::NoRoute),
            },
            Route::CacheInfo => Ok(Arc::clone(&self.cache_info).into()),
            Route::Listing(hash_part) => self
                .first(
                    |live| ls::answer(&live.nars.planner, hash_part, &head),
                    SmallKind::Listing,
                    || hash_part.to_string(),
                )
                .or_else(|error| self.small_of_upstreams(error, &Small::Listing(hash_part))),
            Route::Log(path) => self
                .first(|live| log::answer(&live.store, &path), SmallKind::Log, || path.base_name().to_owned())
                .or_else(|error| self.small_of_upstreams(error, &Small::Log(path.clone()))),
            Route::BuildTrace(key) => self
                .first(
                    |live| build_trace::answer(&live.store, &key),
                    SmallKind::BuildTrace,
                    || format!("{}/{}.doi", key.drv_path, key.output_name),
                )
                .or_else(|error| self.small_of_upstreams(error, &Small::BuildTrace(key.clone()))),
            Route::Realisation(id) => self
                .first(
                    |live| build_trace::older(&live.store, id.clone()),
                    SmallKind::Realisation,
                    || format!("{id}.doi"),
                )
                .or_else(|error| self.small_of_upstreams(error, &Small::Realisation(id.clone()))),
            Route::DebugInfo(name) => {
                let written = self.written.as_ref().ok_or(ServeError::NoRoute)?;
                small::answer(&written.cache, SmallKind::DebugInfo, name).or_else(|error| {
                    match Small::debug_info(name) {
                        Some(small) => self.small_of_upstreams(error, &small),
                        None => Err(error),
                    }
                })
            }
            Route::Other(name) => {
                let written = self.written.as_ref().ok_or(ServeError::NoRoute)?;
                small::answer(&written.cache, SmallKind::Other, name).map_err(|error| match error {
                    ServeError::NoPath => ServeError::NoRoute,
                    error => error,
                })
            }
            Route::Batch => batch::answer(&self.narinfos, self.deltas.as_deref(), request),
            Route::Metrics => {
                let engine = if self.shows_engine { self.state.engine_text() } else { String::new() };
                Ok(metrics::answer(&self.metrics, engine))
            }
            Route::Health => Ok(health::answer(
                self.live.as_ref().map(|live| &*live.store),
                self.written.as_ref().map(|written| &written.cache),
            )),
            Route::Ready => Ok(health::ready(
                self.live.as_ref().map(|live| &*live.store),
                self.written.as_ref().map(|written| &written.cache),
            )),
            Route::Page(route) => self.page.as_ref().ok_or(ServeError::NoRoute)?.answer(route, &request),
            Route::Index => Ok(health::index(&self.store_dir, &self.sign_keys, self.written.is_some())),
            Route::Invalid => Err(ServeError::Invalid),
            Route::Push(_) | Route::Unknown => Err(ServeError::NoRoute),
        }
    }

    /// A NAR of the live store, or else of the upstreams, whose names may look the same.
    fn nar(&self, route: &NarRoute<'_>, head: &HeadRef<'_>) -> Result<Response, ServeError> {
        let answer = self.live.as_ref().map_or(Err(ServeError::NoPath), |live| live.nars.answer(head, route));
        match (answer, &self.upstream, route.nar_hash) {
            (Err(ServeError::NoPath | ServeError::OtherNarHash), Some(upstreams), Some(hash)) => {
                let extension = if route.zstd { ".nar.zst" } else { ".nar" };
                let name = format!("{}-{hash}{extension}", route.hash_part);
                upstream::nar::answer(upstreams, &name, head, &self.metrics)
            }
            (answer, ..) => answer,
        }
    }

    /// A small file from the upstreams, if the error is that it is absent.
    fn small_of_upstreams(&self, error: ServeError, small: &Small) -> Result<Response, ServeError> {
        match (&error, &self.upstream) {
            (ServeError::NoPath, Some(upstreams)) => upstream::small::answer(upstreams, small),
            (ServeError::Refused(refusal), Some(upstreams)) if refusal.kind == RefusalKind::NotFound => {
                upstream::small::answer(upstreams, small)
            }
            _ => Err(error),
        }
    }

    /// A small file from the live store, else from the writable cache.
    fn first(
        &self,
        live: impl FnOnce(&Live) -> Result<Response, ServeError>,
        kind: SmallKind,
        name: impl FnOnce() -> String,
    ) -> Result<Response, ServeError> {
        let answer = self.live.as_ref().map_or(Err(ServeError::NoPath), live);
        match (answer, &self.written) {
            (Err(ServeError::NoPath), Some(written)) => small::answer(&written.cache, kind, &name()),
            (answer, _) => answer,
        }
    }

    /// The offset of our path in a path; `None` if it is not below our prefix.
    fn below_prefix(&self, path: &str) -> Option<usize> {
        match &self.prefix {
            None => Some(0),
            Some(prefix) => {
                path.strip_prefix(prefix.as_str()).filter(|rest| rest.starts_with('/')).map(|_| prefix.len())
            }
        }
    }
}

impl Written {
    /// The access control of this cache. The cache's own path begins at byte `at` of the request's.
    #[inline]
    fn gate<'a>(&'a self, metrics: &'a Metrics, at: usize) -> Gate<'a> {
        Gate { auth: &self.auth, cache: self.cache.name(), is_public: self.is_public, is_root: at == 0, metrics }
    }

    /// For a WebSocket of a private cache: whether its sender may still read.
    fn permit(&self, head: &HeadRef<'_>) -> Result<Option<Permit>, ServeError> {
        if self.is_public {
            return Ok(None);
        }
        let bearer = self.auth.bearer(head)?.ok_or(ServeError::NoPath)?;
        let (auth, cache) = (Arc::clone(&self.auth), self.cache.name().clone());
        let bearer = Mutex::new(bearer);
        Ok(Some(Box::new(move || {
            let mut bearer = bearer.lock().unwrap_or_else(PoisonError::into_inner);
            auth.still_allows(&mut bearer, &cache, Scope::Pull)
        })))
    }

    /// Returns the OIDC exchange if this request asks for it. Its callers have no token of this server yet.
    fn exchange(&self, route: &Route<'_>, request: &Request) -> Option<&OidcExchange> {
        let is_asked = *request.method() == Method::POST && *route == Route::Push(PushRoute::Oidc);
        self.exchange.as_ref().filter(|_| is_asked)
    }
}

/// Below this path, the writable cache answers as if it were the only source. So a push uploads paths that only the live store or an upstream
/// has, and its presence checks cause no fetches.
const PUSH_BASE: &str = "/push";

fn below_push(path: &str) -> Option<&str> {
    path.strip_prefix(PUSH_BASE).filter(|rest| rest.starts_with('/'))
}
