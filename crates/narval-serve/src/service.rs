//! The service: sources and a face, as a handler for the engine.

mod measured;
pub(crate) mod open;
pub(crate) mod origins;
mod other_sources;
mod read;
pub(crate) mod watched;

use std::sync::Arc;
use std::time::Instant;

use narval_cache::upstream::Upstreams;
use narval_client::request_id::{self, Carried};
use narval_client::trace::{self, Work};
use narval_files::work_for;
use narval_http::{
    Handler, HeadRef, HeaderName, HeaderValue, Method, Prepared, Request, Response, Snapshot, StatusCode, header,
};
use narval_keep::{Cache, CacheName, Data, Scope};
use narval_nix::{PublicKey, SecretKey, StoreDir};
use narval_store::Store;

use self::origins::{Origins, Written};
use self::other_sources::OtherSources;
use crate::Face;
use crate::api;
use crate::auth::client;
use crate::auth::oidc::OidcExchange;
use crate::caches::no_cache;
use crate::error::ServeError;
use crate::gate::{Allowed, Gate, is_read};
use crate::metrics::{LARGE_BYTES_MIN, Metrics, RouteLabel};
use crate::nar::deltas::{Asked, Deltas, answer_on_a_thread};
use crate::nar::packed;
use crate::page::visit::Visit;
use crate::page::{self, Page, session};
use crate::routes::narinfo::Narinfos;
use crate::routes::pages::View;
use crate::routes::presence::Presence;
use crate::routes::table::{self, PushRoute, Route};
use crate::state::ServerState;
use crate::written::peer;

/// The type of [`Response::text`].
const TEXT: &str = "text/plain; charset=utf-8";

/// The context of a request (W3C Trace Context).
const TRACEPARENT: &str = "traceparent";

/// Answers of a server that failed say what its log calls the request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

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
    pub(crate) origins: Arc<Origins>,
    /// Deltas of NARs, if they are sent.
    pub(crate) deltas: Option<Arc<Deltas>>,
    /// `nix-cache-info`, which never changes.
    cache_info: Arc<Prepared>,
    /// The filter of the paths that it has, if it publishes one.
    presence: Option<Arc<Presence>>,
    /// See [`Service::take_effect`].
    sign_secrets: Vec<SecretKey>,
    /// The page for browsers, if enabled.
    page: Option<Page>,
    state: ServerState,
}

impl Service {
    /// From now on, uploads are signed with this service's keys, and may refer to paths of its sources. Call this when
    /// it starts to answer requests: until then, the replaced service decides.
    pub fn take_effect(&self) {
        let shared = &*self.shared;
        shared.state.serves(&shared.origins);
        if let Some(written) = &shared.origins.written {
            let store = shared.origins.live.as_ref().map(|live| Arc::clone(&live.store));
            written.cache.set_sign_keys(shared.sign_secrets.clone());
            written.cache.set_elsewhere(Some(Arc::new(OtherSources(store, shared.origins.upstream.clone()))));
        }
        if let Some(upstreams) = &shared.origins.upstream {
            upstreams.set_sign_keys(shared.sign_secrets.clone());
        }
    }

    /// The maximum number of files that the service keeps open besides those it sends: these descriptors are not
    /// available for connections.
    pub fn kept_files_max(&self) -> usize {
        let packs = self.shared.origins.live.as_ref().is_some_and(|live| live.nars.packed.is_some());
        if packs { packed::kept_max() } else { 0 }
    }

    /// Shows the counters of the engine that runs this service at `/metrics`, too. Only the first call has an effect.
    pub fn show_engine(&self, counters: impl Fn() -> Snapshot + Send + Sync + 'static) {
        self.shared.state.show_engine(counters);
    }

    /// Whether reading needs no token.
    pub(crate) fn is_public(&self) -> bool {
        self.shared.origins.written.as_ref().is_none_or(|written| written.is_public)
    }

    /// [`Handler::inline`] of a request. The cache's own path begins at byte `at` of the request's.
    #[inline]
    pub(crate) fn inline_at(&self, head: &HeadRef<'_>, at: usize) -> Option<Response> {
        if trace::is_on() { self.inline_traced(head, at) } else { self.inline_untraced(head, at) }
    }

    /// The same, as a span if the request is sampled. What is not answered is a span of the worker.
    #[cold]
    fn inline_traced(&self, head: &HeadRef<'_>, at: usize) -> Option<Response> {
        let Some(context) = trace::accept(|| head.header_bytes(TRACEPARENT)) else {
            return self.inline_untraced(head, at);
        };
        let _entered = request_id::enter(Carried::new(None, Some(context)));
        let mut span = trace::begin(Work::Request, || format!("{} from memory", head.method()));
        let Some(response) = self.inline_untraced(head, at) else {
            span.cancel();
            return None;
        };
        span.note("url.path", || head.path().to_owned());
        span.note("http.response.status_code", || response.status().as_u16().to_string());
        Some(response)
    }

    #[inline]
    fn inline_untraced(&self, head: &HeadRef<'_>, at: usize) -> Option<Response> {
        let shared = &*self.shared;
        if shared.face == Face::Narval && !is_read(head.method()) {
            return None;
        }
        if shared
            .origins
            .written
            .as_ref()
            .is_some_and(|written| !written.gate(&shared.origins.metrics, at).may_read_inline(head))
        {
            return None;
        }
        // A path with %XX is parsed on a worker: no route below has any.
        let (label, response) = match Route::parse(shared.face, head.path().get(at..)?, head.query()) {
            Route::NarInfo(hash_part) => (RouteLabel::NarInfo, shared.narinfos.inline(head, &hash_part)?),
            Route::Nar(route) => (
                RouteLabel::Nar,
                shared.downloading(shared.origins.live.as_ref()?.nars.inline(head, &route)?, head.path()),
            ),
            Route::CacheInfo => (RouteLabel::CacheInfo, Arc::clone(&shared.cache_info).into()),
            _ => return None,
        };
        shared.origins.metrics.request(label, response.status().as_u16());
        Some(response)
    }

    /// [`Handler::handle`] of a request. The cache's own path begins at byte `at` of the request's.
    pub(crate) fn handle_at(&self, request: Request, at: usize) -> Response {
        if self.shared.deltas.is_some() && Asked::is_possible(&request.head()) {
            let this = self.clone();
            return answer_on_a_thread(request, move |request| this.answer_at(request, at));
        }
        self.answer_at(request, at)
    }

    fn answer_at(&self, request: Request, at: usize) -> Response {
        self.count(request, Some(at), |shared, route, is_own, request| match &shared.origins.written {
            Some(written) => shared.answer_with_tokens(written, route, is_own, at, request),
            None => shared.answer(route, at, request),
        })
    }

    /// Answers a request for a cache that does not exist as a private one would answer it.
    pub(crate) fn handle_nobody(&self, request: Request, name: &CacheName) -> Response {
        self.count(request, Some(1 + name.as_str().len()), |shared, route, _, request| {
            let Some(written) = &shared.origins.written else { return Err(ServeError::NoRoute) };
            let gate =
                Gate { cache: name, is_public: false, is_root: false, ..written.gate(&shared.origins.metrics, 0) };
            if route == Route::Api {
                return Ok(api::answer(&gate, &written.uploads, request, &shared.origins.metrics));
            }
            if let Some((page, view)) = shared.view_of(&route, &request) {
                let visit = Visit::new(name.clone(), &request, 1 + name.as_str().len());
                let answer = gate.visit(visit, &view, &request)?;
                // As for a private cache: the documents of those who may not read say nothing about it.
                return match answer {
                    Some(visit) if visit.may_read => page.view(View::Absent, visit, request),
                    Some(visit) => page.view(view, visit, request),
                    None => Ok(Page::sign_in(&request.head())),
                };
            }
            match written.exchange(&route, &request) {
                Some(exchange) => exchange.answer(&written.auth, request, &shared.origins.metrics),
                None => match gate.pass(route, &request)? {
                    Allowed::Read(_) => Err(ServeError::NoPath),
                    Allowed::SessionInfo { session, may_read } if shared.page.is_some() => {
                        session::info(name, session.as_ref(), may_read)
                    }
                    _ => Err(no_cache(name.as_str()).into()),
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
        // What is asked of upstreams and of other nodes carries the request's id, as do lines of the log about what the bucket was asked.
        let asks_others = shared.origins.upstream.is_some() || shared.origins.written.is_some();
        let id = asks_others.then(|| request.id().to_string().into());
        let context = trace::accept(|| request.header_bytes(TRACEPARENT));
        let carries = id.is_some() || context.is_some();
        let entered = carries.then(|| request_id::enter(Carried::new(id, context)));
        let _entered = (entered, work_for(client(&request.head())));
        let mut span = trace::begin(Work::Request, || request.method().to_string());
        span.note("http.request.method", || request.method().to_string());
        span.note("url.path", || request.path().to_owned());
        // What the access log has of every request.
        span.note("request_id", || request.id().to_string());
        let id = (shared.face == Face::Narval).then(|| request.id().clone());
        let path = at.and_then(|at| request.path().get(at..)).map(str::to_owned);
        // Without a path below the prefix there is no route; `/team` is `/team/`.
        let path = path.map(|path| if path.is_empty() && at > Some(0) { "/".to_owned() } else { path });
        let path = path.as_deref().and_then(table::decode);
        let query = request.query().map(str::to_owned);
        let base = |path| shared.origins.written.as_ref().and_then(|_| below_push(path));
        let own = path.as_deref().and_then(base);
        let path = own.or(path.as_deref());
        let route = path.map_or(Route::Unknown, |path| Route::parse(shared.face, path, query.as_deref()));
        let label = route.label();
        span.rename(|method| format!("{method} {}", label.name()));
        span.note("narval.cache", || shared.origins.name().to_string());
        let is_of_page = request.header_bytes(page::FIELD).is_some();
        let answer = answer(shared, route, own.is_some(), request);
        let mut response = answer.unwrap_or_else(|error| error.into_response(&shared.origins.metrics));
        if shared.face == Face::NixServe && response.header_value(&header::CONTENT_TYPE).is_some_and(|is| is == TEXT) {
            // The original has no charset.
            response = response.replace_header(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        }
        if is_of_page && response.status() == StatusCode::UNAUTHORIZED {
            // The page asks for a token itself: for Basic credentials, the browser would.
            response = response.replace_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        shared.origins.metrics.latency(started.elapsed());
        span.note("http.response.status_code", || response.status().as_u16().to_string());
        if response.status().is_server_error() {
            span.fail();
        }
        // An upload may be answered later.
        let metrics = Arc::clone(&shared.origins.metrics);
        if label == RouteLabel::Nar {
            response = shared.downloading(response, path.unwrap_or_default());
        }
        response.map(move |response| {
            metrics.request(label, response.status().as_u16());
            match id.filter(|_| response.status().is_server_error()) {
                Some(id) => response.header(REQUEST_ID, id.to_string()),
                None => response,
            }
        })
    }
}

impl Handler for Service {
    #[inline]
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        self.inline_at(head, self.shared.below_prefix(head.path())?)
    }

    fn handle(&self, request: Request) -> Response {
        match self.shared.below_prefix(request.path()) {
            Some(at) => self.handle_at(request, at),
            None => self.count(request, None, |shared, route, _, request| shared.answer(route, 0, request)),
        }
    }
}

impl Shared {
    /// Answers a request to a server that does not accept uploads.
    fn answer(&self, route: Route<'_>, at: usize, request: Request) -> Result<Response, ServeError> {
        // nix-serve and nix-serve-ng ignore the method.
        if self.face == Face::Narval && route != Route::Batch && !is_read(request.method()) {
            return Err(match *request.method() {
                Method::PUT => ServeError::NotWritable,
                _ => ServeError::Method("GET, HEAD"),
            });
        }
        match self.view_of(&route, &request) {
            // Without tokens, nobody manages anything.
            Some((page, view)) => {
                let view = if view.needs_session() { View::Absent } else { view };
                page.view(view, Visit::new(self.origins.name(), &request, at), request)
            }
            None => self.read(route, request),
        }
    }

    /// The view that a browser requests.
    fn view_of(&self, route: &Route<'_>, request: &Request) -> Option<(&Page, View)> {
        let page = self.page.as_ref().filter(|_| is_read(request.method()))?;
        match route {
            Route::View(view) => Some((page, view.clone())),
            Route::Releases(route) if Page::is_wanted(&request.head()) => {
                View::of_releases(route).map(|view| (page, view))
            }
            // Other clients get a text.
            Route::Index if Page::is_wanted(&request.head()) => Some((page, View::of_index(request.query()))),
            _ => None,
        }
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
            return exchange.answer(&written.auth, request, &self.origins.metrics);
        }
        if let Some((page, view)) = self.view_of(&route, &request) {
            let visit = Visit::new(written.cache.name().clone(), &request, at);
            return match written.gate(&self.origins.metrics, at).visit(visit, &view, &request)? {
                Some(visit) => page.view(view, visit, request),
                None => Ok(Page::sign_in(&request.head())),
            };
        }
        if route == Route::Api {
            return Ok(api::answer(
                &written.gate(&self.origins.metrics, at),
                &written.uploads,
                request,
                &self.origins.metrics,
            ));
        }
        // Other nodes prove themselves in another way than clients.
        if let Route::Peer(asked) = route {
            return peer::answer(&written.data, asked, &request.head(), &self.origins.metrics);
        }
        match written.gate(&self.origins.metrics, at).pass(route, &request)? {
            Allowed::Put(route, grant) => written.uploads.put(route, grant, request),
            Allowed::Post(push, grant) => written.uploads.post(push, grant, request),
            Allowed::Progress(name, grant) => written.uploads.progress(name, &grant),
            Allowed::Administer(asked, grant) => written.uploads.administer(asked, grant, request),
            allowed @ (Allowed::SignIn(_) | Allowed::SignOut(_) | Allowed::SessionInfo { .. } | Allowed::Form(..))
                if self.page.is_none() =>
            {
                drop(allowed);
                Err(ServeError::NoRoute)
            }
            Allowed::SignIn(grant) => session::sign_in(&written.auth, grant, &request, at),
            Allowed::SignOut(of) => Ok(session::sign_out(&written.auth, &of, &request, at)),
            Allowed::SessionInfo { session, may_read } => {
                session::info(written.cache.name(), session.as_ref(), may_read)
            }
            Allowed::Form(part, session) => {
                let page = self.page.as_ref().ok_or(ServeError::NoRoute)?;
                let visit = Visit::new(written.cache.name().clone(), &request, at);
                let may_read = written.is_public || session.grant.allows(written.cache.name(), Scope::Pull);
                let visit = visit.with_tokens(written.is_public, may_read, Some(&session));
                page.submit(part, visit, session, &written.uploads, request)
            }
            Allowed::Read(route) if is_own => self.read_own(written, route, request),
            Allowed::Read(route) => self.read(route, request),
        }
    }

    /// Counts a response with a large NAR while it is sent.
    fn downloading(&self, response: Response, path: &str) -> Response {
        let length = response.content_length();
        // The size of a NAR that is being compressed is not known.
        if length.is_some_and(|length| length < LARGE_BYTES_MIN) {
            return response;
        }
        let transfer = self.origins.metrics.downloads.begin(path.rsplit('/').next().unwrap_or_default(), length);
        let sent = Arc::clone(&transfer.done);
        response.keep_counted(transfer, sent)
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

    /// Returns the OIDC exchange if this request is for it. Its callers have no token of this server yet.
    fn exchange(&self, route: &Route<'_>, request: &Request) -> Option<&OidcExchange> {
        let is_asked =
            *route == Route::Push(PushRoute::Oidc) && (*request.method() == Method::POST || is_read(request.method()));
        self.exchange.as_ref().filter(|_| is_asked)
    }
}

/// Below this path, the writable cache answers as if it were the only source. So a push uploads paths that only the live store or an upstream
/// has, and its presence checks cause no fetches.
const PUSH_BASE: &str = "/push";

fn below_push(path: &str) -> Option<&str> {
    path.strip_prefix(PUSH_BASE).filter(|rest| rest.starts_with('/'))
}
