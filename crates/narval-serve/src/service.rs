//! The service: sources and a dialect, as a handler for the engine.

mod answer;
mod measured;
pub(crate) mod open;
mod other_sources;
mod read;
pub(crate) mod watched;

use std::sync::Arc;

use narval_cache::upstream::Upstreams;
use narval_client::request_id::{self, Carried};
use narval_client::trace::{self, Work};
use narval_http::{Handler, HeadRef, Prepared, Request, Response, Snapshot};
use narval_keep::{Cache, Data};
use narval_nix::{PublicKey, SecretKey, StoreDir};
use narval_store::Store;

use self::other_sources::StoreAndUpstreams;
use crate::auth::is_read;
use crate::auth::oidc::OidcExchange;
use crate::config::Dialect;
use crate::gate::Gate;
use crate::metrics::{LARGE_BYTES_MIN, Metrics, RouteLabel};
use crate::nar::deltas::Deltas;
use crate::nar::packed;
use crate::narinfo::sources::Narinfos;
use crate::origins::{Origins, Writable};
use crate::page::Page;
use crate::routes::presence::Presence;
use crate::routes::table::Route;
use crate::state::ServerState;

/// The context of a request (W3C Trace Context).
const TRACEPARENT: &str = "traceparent";

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
    /// A cache that accepts uploads; only with [`Dialect::Narval`].
    pub writable: Option<WritableCache>,
    /// The upstreams; only with a cache that accepts uploads.
    pub upstreams: Option<Upstreams>,
}

/// A cache that accepts uploads.
#[derive(Debug)]
pub struct WritableCache {
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
    dialect: Dialect,
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
        if let Some(writable) = &shared.origins.writable {
            let store = shared.origins.live.as_ref().map(|live| Arc::clone(&live.store));
            writable.cache.set_sign_keys(shared.sign_secrets.clone());
            writable.cache.set_other_sources(Some(Arc::new(StoreAndUpstreams(store, shared.origins.upstream.clone()))));
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
        self.shared.origins.writable.as_ref().is_none_or(|writable| writable.is_public)
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
        if shared.dialect == Dialect::Narval && !is_read(head.method()) {
            return None;
        }
        if shared
            .origins
            .writable
            .as_ref()
            .is_some_and(|writable| !writable.gate(&shared.origins.metrics, at).may_read_inline(head))
        {
            return None;
        }
        // A path with %XX is parsed on a worker: no route below has any.
        let route = Route::frequent(shared.dialect, head.path().get(at..)?, head.query())?;
        let response = match &route {
            Route::NarInfo(hash_part) => shared.narinfos.inline(head, hash_part),
            Route::Nar(route) => shared.origins.live.as_ref().and_then(|live| live.nars.inline(head, route)),
            Route::CacheInfo => Some(Arc::clone(&shared.cache_info).into()),
            _ => None,
        };
        let label = route.label();
        let Some(mut response) = response else {
            self.hand_over(head, route);
            return None;
        };
        if label == RouteLabel::Nar {
            response = shared.downloading(response, head.path());
        }
        shared.origins.metrics.request(label, response.status().as_u16());
        Some(response)
    }

    /// Leaves a request that its caller may make, but which memory cannot answer, to a worker.
    fn hand_over(&self, head: &HeadRef<'_>, route: Route<'_>) {
        let route = match route {
            Route::NarInfo(hash_part) => Route::NarInfo(hash_part),
            Route::Nar(route) => Route::Nar(route.into_owned()),
            _ => return,
        };
        head.hand_over(Resolved { service: self.clone(), route });
    }
}

/// A request that was resolved on the shard: which cache it is for, what it asks for, and that its caller may read that.
#[derive(Debug)]
struct Resolved {
    service: Service,
    route: Route<'static>,
}

impl Handler for Service {
    #[inline]
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        self.inline_at(head, self.shared.below_prefix(head.path())?)
    }

    fn handle(&self, request: Request) -> Response {
        Self::answer_resolved(request, |request| self.handle_unresolved(request))
    }
}

impl Shared {
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

impl Writable {
    /// The access control of this cache. The cache's own path begins at byte `at` of the request's.
    #[inline]
    pub(crate) fn gate<'a>(&'a self, metrics: &'a Metrics, at: usize) -> Gate<'a> {
        Gate { auth: &self.auth, cache: self.cache.name(), is_public: self.is_public, is_root: at == 0, metrics }
    }
}
