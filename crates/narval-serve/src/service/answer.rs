//! Answers on a worker, or on a thread for streamed bodies: to requests that the shard has resolved, and to all that need more than memory.

use std::sync::Arc;
use std::time::Instant;

use narval_client::request_id::{self, Carried};
use narval_client::trace::{self, Work};
use narval_files::work_for;
use narval_http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use narval_keep::{CacheName, Scope};

use super::{Resolved, Service, Shared, TRACEPARENT};
use crate::api;
use crate::auth::oidc::OidcExchange;
use crate::auth::{client, is_read};
use crate::config::Dialect;
use crate::error::ServeError;
use crate::gate::{Allowed, Gate};
use crate::metrics::RouteLabel;
use crate::nar::deltas::{DeltaRequest, answer_on_a_thread};
use crate::origins::Writable;
use crate::page::visit::Visit;
use crate::page::{self, Page, session};
use crate::routes::cache_names::no_cache;
use crate::routes::pages::View;
use crate::routes::table::{self, PushRoute, Route};
use crate::writable::peer;

/// The type of [`Response::text`].
const TEXT: &str = "text/plain; charset=utf-8";

/// Answers of a server that failed say what its log calls the request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

impl Service {
    /// Answers a request that the shard has resolved, and all others as is said.
    pub(crate) fn answer_resolved(mut request: Request, otherwise: impl FnOnce(Request) -> Response) -> Response {
        let Some(resolved) = request.handed_over::<Resolved>() else { return otherwise(request) };
        let Resolved { service, route } = *resolved;
        service.with_room(request, move |service, request| {
            service.counted(route.label(), request, |shared, request| shared.read(route, request))
        })
    }

    /// [`Handler::handle`](narval_http::Handler::handle) of a request that was not resolved. The cache's own path begins at byte `at` of the
    /// request's.
    pub(crate) fn handle_at(&self, request: Request, at: usize) -> Response {
        self.with_room(request, move |this, request| this.answer_at(request, at))
    }

    /// A request below the prefix, or to no route.
    pub(crate) fn handle_unresolved(&self, request: Request) -> Response {
        match self.shared.below_prefix(request.path()) {
            Some(at) => self.handle_at(request, at),
            None => self.count(request, None, |shared, route, _, request| shared.answer(route, 0, request)),
        }
    }

    /// Answers here, or, if a delta may have to be waited for, on a thread of its own.
    fn with_room(
        &self,
        request: Request,
        answer: impl FnOnce(&Self, Request) -> Response + Send + 'static,
    ) -> Response {
        if self.shared.deltas.is_some() && DeltaRequest::is_possible(&request.head()) {
            let this = self.clone();
            return answer_on_a_thread(request, move |request| answer(&this, request));
        }
        answer(self, request)
    }

    fn answer_at(&self, request: Request, at: usize) -> Response {
        self.count(request, Some(at), |shared, route, is_own, request| match &shared.origins.writable {
            Some(writable) => shared.answer_with_tokens(writable, route, is_own, at, request),
            None => shared.answer(route, at, request),
        })
    }

    /// Answers a request for a cache that does not exist as a private one would answer it.
    pub(crate) fn handle_nobody(&self, request: Request, name: &CacheName) -> Response {
        self.count(request, Some(1 + name.as_str().len()), |shared, route, _, request| {
            let Some(writable) = &shared.origins.writable else { return Err(ServeError::NoRoute) };
            let gate =
                Gate { cache: name, is_public: false, is_root: false, ..writable.gate(&shared.origins.metrics, 0) };
            if route == Route::Api {
                return Ok(api::answer(&gate, &writable.uploads, request, &shared.origins.metrics));
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
            match writable.exchange(&route, &request) {
                Some(exchange) => exchange.answer(&writable.auth, request, &shared.origins.metrics),
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

    /// Resolves a request, answers it and counts the answer.
    fn count(
        &self,
        request: Request,
        at: Option<usize>,
        answer: impl FnOnce(&Shared, Route<'_>, bool, Request) -> Result<Response, ServeError>,
    ) -> Response {
        let shared = &*self.shared;
        let path = at.and_then(|at| request.path().get(at..)).map(str::to_owned);
        // Without a path below the prefix there is no route; `/team` is `/team/`.
        let path = path.map(|path| if path.is_empty() && at > Some(0) { "/".to_owned() } else { path });
        let path = path.as_deref().and_then(table::decode);
        let query = request.query().map(str::to_owned);
        let base = |path| shared.origins.writable.as_ref().and_then(|_| below_push(path));
        let own = path.as_deref().and_then(base);
        let path = own.or(path.as_deref());
        let route = path.map_or(Route::Unknown, |path| Route::parse(shared.dialect, path, query.as_deref()));
        self.counted(route.label(), request, |shared, request| answer(shared, route, own.is_some(), request))
    }

    /// Answers a request and counts the answer.
    fn counted(
        &self,
        label: RouteLabel,
        request: Request,
        answer: impl FnOnce(&Shared, Request) -> Result<Response, ServeError>,
    ) -> Response {
        let shared = &*self.shared;
        let started = Instant::now();
        // What is asked of upstreams and of other nodes carries the request's id, as do lines of the log about what the bucket was asked.
        let asks_others = shared.origins.upstream.is_some() || shared.origins.writable.is_some();
        let id = asks_others.then(|| request.id().to_string().into());
        let context = trace::accept(|| request.header_bytes(TRACEPARENT));
        let carries = id.is_some() || context.is_some();
        let entered = carries.then(|| request_id::enter(Carried::new(id, context)));
        let _entered = (entered, work_for(client(&request.head())));
        let mut span = trace::begin(Work::Request, || format!("{} {}", request.method(), label.name()));
        span.note("http.request.method", || request.method().to_string());
        span.note("url.path", || request.path().to_owned());
        // What the access log has of every request.
        span.note("request_id", || request.id().to_string());
        span.note("narval.cache", || shared.origins.name().to_string());
        let id = (shared.dialect == Dialect::Narval).then(|| request.id().clone());
        let is_of_page = request.header_bytes(page::FIELD).is_some();
        let nar = (label == RouteLabel::Nar).then(|| request.path().to_owned());
        let answer = answer(shared, request);
        let mut response = answer.unwrap_or_else(|error| error.into_response(&shared.origins.metrics));
        if shared.dialect == Dialect::NixServe
            && response.header_value(&header::CONTENT_TYPE).is_some_and(|is| is == TEXT)
        {
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
        if let Some(path) = nar {
            response = shared.downloading(response, &path);
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

impl Shared {
    /// Answers a request to a server that does not accept uploads.
    fn answer(&self, route: Route<'_>, at: usize, request: Request) -> Result<Response, ServeError> {
        // nix-serve and nix-serve-ng ignore the method.
        if self.dialect == Dialect::Narval && route != Route::Batch && !is_read(request.method()) {
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
        writable: &Writable,
        route: Route<'_>,
        is_own: bool,
        at: usize,
        request: Request,
    ) -> Result<Response, ServeError> {
        if let Some(exchange) = writable.exchange(&route, &request) {
            return exchange.answer(&writable.auth, request, &self.origins.metrics);
        }
        if let Some((page, view)) = self.view_of(&route, &request) {
            let visit = Visit::new(writable.cache.name().clone(), &request, at);
            return match writable.gate(&self.origins.metrics, at).visit(visit, &view, &request)? {
                Some(visit) => page.view(view, visit, request),
                None => Ok(Page::sign_in(&request.head())),
            };
        }
        if route == Route::Api {
            return Ok(api::answer(
                &writable.gate(&self.origins.metrics, at),
                &writable.uploads,
                request,
                &self.origins.metrics,
            ));
        }
        // Other nodes prove themselves in another way than clients.
        if let Route::Peer(peer_route) = route {
            return peer::answer(&writable.data, peer_route, &request.head(), &self.origins.metrics);
        }
        match writable.gate(&self.origins.metrics, at).pass(route, &request)? {
            Allowed::Put(route, grant) => writable.uploads.put(route, grant, request),
            Allowed::Post(push, grant) => writable.uploads.post(push, grant, request),
            Allowed::Progress(name, grant) => writable.uploads.progress(name, &grant),
            Allowed::Administer(operation, grant) => writable.uploads.administer(operation, grant, request),
            allowed @ (Allowed::SignIn(_) | Allowed::SignOut(_) | Allowed::SessionInfo { .. } | Allowed::Form(..))
                if self.page.is_none() =>
            {
                drop(allowed);
                Err(ServeError::NoRoute)
            }
            Allowed::SignIn(grant) => session::sign_in(&writable.auth, grant, &request, at),
            Allowed::SignOut(of) => Ok(session::sign_out(&writable.auth, &of, &request, at)),
            Allowed::SessionInfo { session, may_read } => {
                session::info(writable.cache.name(), session.as_ref(), may_read)
            }
            Allowed::Form(part, session) => {
                let page = self.page.as_ref().ok_or(ServeError::NoRoute)?;
                let visit = Visit::new(writable.cache.name().clone(), &request, at);
                let may_read = writable.is_public || session.grant.allows(writable.cache.name(), Scope::Pull);
                let visit = visit.with_tokens(writable.is_public, may_read, Some(&session));
                page.submit(part, visit, session, &writable.uploads, request)
            }
            Allowed::Read(route) if is_own => self.read_own(writable, route, request),
            Allowed::Read(route) => self.read(route, request),
        }
    }
}

impl Writable {
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
