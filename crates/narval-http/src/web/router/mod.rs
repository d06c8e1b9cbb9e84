//! Routes: methods and paths to handlers.

mod pattern;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::header::ALLOW;
use http::{HeaderValue, Method, StatusCode};

pub use pattern::{Pattern, PatternError};

use crate::http1::ProtoError;
use crate::http1::path::percent_decode_text;
use crate::message::path_params::PathParams;
use crate::{Handler, HeadRef, IntoHandler, Middleware, Next, Request, Response};

/// Collects routes; [`build`](Router::build) makes a handler of them.
///
/// The first route added that matches a request's path (see [`Pattern`]) and method answers. A GET route also answers
/// HEAD, unless there is a HEAD route. A route that an earlier one hides completely is an error when the table is built. If routes match the path but not the method, the response is 405 with `Allow`;
/// `OPTIONS` is answered 204 with `Allow`.
///
/// ```
/// use narval_http::{Request, Response, Router, StatusCode};
///
/// let api = Router::new()
///     .get("/items/@id", |request: Request| format!("item {}\n", request.params().get("id").unwrap_or_default()))
///     .post("/items", || StatusCode::CREATED);
/// let app = Router::new()
///     .get("/", || "hello\n")
///     .get("/styles/*.css", || "body {}\n")
///     .nest("/api", api)
///     .not_found(|| Response::text(StatusCode::NOT_FOUND, "nothing here\n"))
///     .build()?;
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Default)]
pub struct Router {
    routes: Vec<Route>,
    layers: Vec<Arc<dyn Middleware>>,
    not_found: Option<Box<dyn Handler>>,
    method_not_allowed: Option<Box<dyn Handler>>,
    on_error: Option<Arc<OnError>>,
    error: Option<RouteError>,
}

type OnError = dyn Fn(&HeadRef<'_>, &(dyn Error + 'static)) -> Response + Send + Sync;

struct Route {
    method: Method,
    pattern: Pattern,
    text: String,
    handler: Box<dyn Handler>,
    /// The middlewares of the routers that this route was nested in, outermost first.
    layers: Vec<Arc<dyn Middleware>>,
    inline: bool,
}

/// Why a router cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// An invalid pattern.
    #[error("route '{pattern}': {error}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        error: PatternError,
    },
    /// A route that could never answer: one of the same method that was added before matches all its paths.
    #[error(
        "the route '{method} {pattern}' is never reached: '{method} {earlier}' comes before it and matches the same paths; add it first"
    )]
    Unreachable {
        /// The method of both.
        method: Method,
        /// The pattern that is never reached.
        pattern: String,
        /// The earlier one.
        earlier: String,
    },
    /// A router was nested under a prefix that ends with a slash.
    #[error("the prefix '{prefix}' of nested routes ends with a slash")]
    PrefixSlash {
        /// The prefix.
        prefix: String,
    },
    /// A nested router has handlers for not found, method not allowed or errors; only the outermost router can have
    /// them.
    #[error("the router nested under '{prefix}' has handlers that only the outermost router can have")]
    NestedFallback {
        /// The prefix.
        prefix: String,
    },
}

/// A handler panicked; passed to [`on_error`](Router::on_error).
#[derive(Clone, Debug, thiserror::Error)]
#[error("a handler panicked: {message}")]
pub struct HandlerPanicked {
    /// The panic message.
    pub message: String,
}

impl Router {
    /// A router without routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route for GET and HEAD.
    #[must_use]
    pub fn get<Form>(self, pattern: &str, handler: impl IntoHandler<Form>) -> Self {
        self.add(Method::GET, pattern, handler)
    }

    /// Adds a route for HEAD.
    #[must_use]
    pub fn head<Form>(self, pattern: &str, handler: impl IntoHandler<Form>) -> Self {
        self.add(Method::HEAD, pattern, handler)
    }

    /// Adds a route for POST.
    #[must_use]
    pub fn post<Form>(self, pattern: &str, handler: impl IntoHandler<Form>) -> Self {
        self.add(Method::POST, pattern, handler)
    }

    /// Adds a route for PUT.
    #[must_use]
    pub fn put<Form>(self, pattern: &str, handler: impl IntoHandler<Form>) -> Self {
        self.add(Method::PUT, pattern, handler)
    }

    /// Adds a route for DELETE.
    #[must_use]
    pub fn delete<Form>(self, pattern: &str, handler: impl IntoHandler<Form>) -> Self {
        self.add(Method::DELETE, pattern, handler)
    }

    /// Adds a route for OPTIONS; replaces the automatic answer.
    #[must_use]
    pub fn options<Form>(self, pattern: &str, handler: impl IntoHandler<Form>) -> Self {
        self.add(Method::OPTIONS, pattern, handler)
    }

    /// Adds a route for PATCH.
    #[must_use]
    pub fn patch<Form>(self, pattern: &str, handler: impl IntoHandler<Form>) -> Self {
        self.add(Method::PATCH, pattern, handler)
    }

    /// Adds a route for any method.
    #[must_use]
    pub fn add<Form>(self, method: Method, pattern: &str, handler: impl IntoHandler<Form>) -> Self {
        self.push(method, pattern.to_owned(), Box::new(handler.into_handler()), false)
    }

    /// Adds a route whose handler may answer [`inline`](Handler::inline).
    #[must_use]
    pub fn add_inline<Form>(self, method: Method, pattern: &str, handler: impl IntoHandler<Form>) -> Self {
        self.push(method, pattern.to_owned(), Box::new(handler.into_handler()), true)
    }

    /// Wraps everything that this router answers in a middleware, inside of those added before. In a nested router, it
    /// wraps all of its routes, whether they were added before or after.
    #[must_use]
    pub fn layer(mut self, middleware: impl Middleware) -> Self {
        self.layers.push(Arc::new(middleware));
        self
    }

    /// Adds the routes of `inner` under a prefix (itself a pattern), in their order, each within the middlewares of
    /// `inner`. Its route `/` answers the prefix itself.
    #[must_use]
    pub fn nest(mut self, prefix: &str, inner: Router) -> Self {
        if inner.not_found.is_some() || inner.method_not_allowed.is_some() || inner.on_error.is_some() {
            self.error.get_or_insert(RouteError::NestedFallback { prefix: prefix.to_owned() });
        }
        if prefix.ends_with('/') {
            self.error.get_or_insert(RouteError::PrefixSlash { prefix: prefix.to_owned() });
        }
        if let Some(error) = inner.error {
            self.error.get_or_insert(error);
        }
        for route in inner.routes {
            let text = if route.text == "/" { prefix.to_owned() } else { format!("{prefix}{}", route.text) };
            self = self.push(route.method, text, route.handler, route.inline);
            if let Some(added) = self.routes.last_mut() {
                added.layers = inner.layers.iter().chain(&route.layers).cloned().collect();
            }
        }
        self
    }

    /// Sets the handler for paths that no route matches. Default: 404.
    #[must_use]
    pub fn not_found<Form>(mut self, handler: impl IntoHandler<Form>) -> Self {
        self.not_found = Some(Box::new(handler.into_handler()));
        self
    }

    /// Sets the handler for paths that routes match, but with other methods. `Allow` is added to its response. Default:
    /// 405.
    #[must_use]
    pub fn method_not_allowed<Form>(mut self, handler: impl IntoHandler<Form>) -> Self {
        self.method_not_allowed = Some(Box::new(handler.into_handler()));
        self
    }

    /// Sets the handler of errors and panics ([`HandlerPanicked`]) of handlers. Default: 500.
    #[must_use]
    pub fn on_error<F>(mut self, answer: F) -> Self
    where
        F: Fn(&HeadRef<'_>, &(dyn Error + 'static)) -> Response + Send + Sync + 'static,
    {
        self.on_error = Some(Arc::new(answer));
        self
    }

    /// Makes the handler.
    ///
    /// # Errors
    /// The first invalid route, or one that can never be reached because of an earlier one.
    pub fn build(self) -> Result<RoutingTable, RouteError> {
        let Self { routes, layers, not_found, method_not_allowed, on_error, error } = self;
        if let Some(error) = error {
            return Err(error);
        }
        for (at, route) in routes.iter().enumerate() {
            let hides = |earlier: &&Route| earlier.method == route.method && earlier.pattern.covers(&route.pattern);
            if let Some(earlier) = routes.iter().take(at).find(hides) {
                let (pattern, earlier) = (route.text.clone(), earlier.text.clone());
                return Err(RouteError::Unreachable { method: route.method.clone(), pattern, earlier });
            }
        }
        let any_inline = routes.iter().any(|route| route.inline);
        let dispatch = Dispatch { routes, any_inline, not_found, method_not_allowed, on_error };
        Ok(RoutingTable { layers, dispatch })
    }

    fn push(mut self, method: Method, text: String, handler: Box<dyn Handler>, inline: bool) -> Self {
        match Pattern::parse(&text) {
            Ok(pattern) => {
                self.routes.push(Route { method, pattern, text, handler, layers: Vec::new(), inline });
            }
            Err(error) => {
                self.error.get_or_insert(RouteError::Pattern { pattern: text, error });
            }
        }
        self
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes.iter().map(|route| format!("{} {}", route.method, route.text));
        f.debug_list().entries(routes).finish()
    }
}

/// The handler built by a [`Router`].
pub struct RoutingTable {
    layers: Vec<Arc<dyn Middleware>>,
    dispatch: Dispatch,
}

impl Handler for RoutingTable {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        if !self.dispatch.any_inline {
            return None;
        }
        Next::new(&self.layers, &self.dispatch).inline(head)
    }

    fn handle(&self, request: Request) -> Response {
        Next::new(&self.layers, &self.dispatch).run(request)
    }
}

impl fmt::Debug for RoutingTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.dispatch.routes.iter().map(|route| format!("{} {}", route.method, route.text));
        f.debug_list().entries(routes).finish()
    }
}

/// The handler inside the outermost router's middlewares.
struct Dispatch {
    routes: Vec<Route>,
    any_inline: bool,
    not_found: Option<Box<dyn Handler>>,
    method_not_allowed: Option<Box<dyn Handler>>,
    on_error: Option<Arc<OnError>>,
}

/// The matching route, or why there is none.
enum Found<'r> {
    Route(&'r Route, PathParams),
    /// Routes with other methods: `Allow`, and the first of them.
    OtherMethods(HeaderValue, &'r Route),
    Nothing,
}

impl Handler for Dispatch {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        match self.find(head) {
            Ok(Found::Route(route, _)) if route.inline => Next::new(&route.layers, &*route.handler).inline(head),
            _ => None,
        }
    }

    fn handle(&self, request: Request) -> Response {
        let Some(on_error) = &self.on_error else {
            return self.route(request);
        };
        let (head, parts, remote) = request.head_parts();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.route(request)));
        match outcome {
            Ok(response) => {
                let on_error = on_error.clone();
                response.map(move |mut response| match response.take_failure() {
                    Some(error) => on_error(&HeadRef::new(&head, &parts, &remote), &*error),
                    None => response,
                })
            }
            Err(payload) => {
                let head = HeadRef::new(&head, &parts, &remote);
                let panicked = HandlerPanicked { message: panic_message(&*payload).to_owned() };
                tracing::error!(method = %head.method(), path = head.path(), "{panicked}");
                on_error(&head, &panicked)
            }
        }
    }
}

impl Dispatch {
    fn route(&self, mut request: Request) -> Response {
        match self.find(&request.head()) {
            Ok(Found::Route(route, params)) => {
                request.params = params;
                Next::new(&route.layers, &*route.handler).run(request)
            }
            Ok(Found::OtherMethods(allow, route)) if *request.method() == Method::OPTIONS => {
                let answer = move |_: Request| Response::new(StatusCode::NO_CONTENT).header(ALLOW, allow.clone());
                Next::new(&route.layers, &answer).run(request)
            }
            Ok(Found::OtherMethods(allow, route)) => {
                let handler = self.method_not_allowed.as_deref().unwrap_or(&default_method_not_allowed);
                Next::new(&route.layers, handler).run(request).map(|response| {
                    if response.header_value(&ALLOW).is_some() { response } else { response.header(ALLOW, allow) }
                })
            }
            Ok(Found::Nothing) => match &self.not_found {
                Some(handler) => handler.handle(request),
                None => Response::text(StatusCode::NOT_FOUND, "not found\n"),
            },
            Err(error) => Response::failure(error),
        }
    }

    fn find(&self, head: &HeadRef<'_>) -> Result<Found<'_>, ProtoError> {
        let Some(path) = head.path().strip_prefix('/') else {
            return Ok(self.find_asterisk(head));
        };
        let segments = path.split('/').map(percent_decode_text).collect::<Result<Vec<_>, _>>()?;
        let mut captures = Vec::new();
        let mut get_for_head = None;
        let mut others: Vec<&Route> = Vec::new();
        for route in &self.routes {
            if !route.pattern.matches(&segments, &mut captures) {
                continue;
            }
            if route.method == *head.method() {
                return Ok(Found::Route(route, params(&captures, &segments)));
            }
            if get_for_head.is_none() && *head.method() == Method::HEAD && route.method == Method::GET {
                get_for_head = Some((route, params(&captures, &segments)));
            }
            others.push(route);
        }
        Ok(match (get_for_head, others.first()) {
            (Some((route, params)), _) => Found::Route(route, params),
            (None, Some(first)) => Found::OtherMethods(allow(others.iter().map(|route| &route.method)), first),
            (None, None) => Found::Nothing,
        })
    }

    /// `OPTIONS *` is about the server as a whole (RFC 9110 section 9.3.7).
    fn find_asterisk(&self, head: &HeadRef<'_>) -> Found<'_> {
        match self.routes.first() {
            Some(first) if *head.method() == Method::OPTIONS => {
                Found::OtherMethods(allow(self.routes.iter().map(|route| &route.method)), first)
            }
            _ => Found::Nothing,
        }
    }
}

fn default_method_not_allowed(_: Request) -> Response {
    Response::text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n")
}

fn params(captures: &[(&Arc<str>, usize)], segments: &[Cow<'_, str>]) -> PathParams {
    let mut params = PathParams::default();
    for (name, index) in captures {
        if let Some(segment) = segments.get(*index) {
            params.push(Arc::clone(name), segment.clone().into_owned());
        }
    }
    params
}

/// The value of `Allow` for routes with these methods.
fn allow<'a>(methods: impl Iterator<Item = &'a Method>) -> HeaderValue {
    let mut names: Vec<&str> = Vec::new();
    for method in methods {
        let implied = (*method == Method::GET).then_some("HEAD");
        for name in [method.as_str()].into_iter().chain(implied) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if !names.contains(&"OPTIONS") {
        names.push("OPTIONS");
    }
    // Methods are tokens, which are always valid in a field value.
    HeaderValue::try_from(names.join(", ")).unwrap_or(HeaderValue::from_static("OPTIONS"))
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> &str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
