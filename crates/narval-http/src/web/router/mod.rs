//! Routes: methods and paths to handlers.

mod errors;
mod pattern;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use http::Method;

pub use errors::{Failure, HandlerPanicked, Problems};
pub use pattern::{Pattern, PatternError};
pub use table::RoutingTable;

use crate::message::handler::{Handler, IntoHandler};
use crate::message::response::Response;
use crate::web::middleware::Middleware;
use errors::Errors;
use table::{Dispatch, Route, Scope};

/// Collects routes; [`build`](Router::build) makes a handler of them.
///
/// Of the routes that match a request's path (see [`Pattern`]) and method, the most precise one answers, in whatever order they
/// were added. A GET route also answers HEAD, unless there is a HEAD route. If routes match the path but not the method, the
/// response is 405 with `Allow`; `OPTIONS` is answered 204 with `Allow`.
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
///
/// Its handlers may share a value: see [`with`](Router::with).
pub struct Router<S = ()> {
    state: Arc<S>,
    parts: Parts,
}

/// What does not depend on the state.
#[derive(Default)]
struct Parts {
    routes: Vec<Route>,
    layers: Vec<Arc<dyn Middleware>>,
    not_found: Option<Box<dyn Handler>>,
    errors: Option<Errors>,
    /// The routers that were nested, innermost first.
    scopes: Vec<Scope>,
    redirects_slashes: bool,
    error: Option<RouteError>,
}

impl Default for Router {
    fn default() -> Self {
        Self { state: Arc::new(()), parts: Parts::default() }
    }
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
    /// Two routes of the same method that match the same paths.
    #[error("the routes '{method} {first}' and '{method} {second}' match the same paths")]
    Conflict {
        /// The method of both.
        method: Method,
        /// The pattern that was added first.
        first: String,
        /// The other.
        second: String,
    },
    /// A router was nested under a prefix that ends with a slash.
    #[error("the prefix '{prefix}' of nested routes ends with a slash")]
    PrefixSlash {
        /// The prefix.
        prefix: String,
    },
}

impl Router {
    /// A router without routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the routes that are added from now on a value that they share: their handlers may be functions of it and the
    /// request. It is used by many threads at a time.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use narval_http::{Request, Router};
    ///
    /// #[derive(Default)]
    /// struct Counter {
    ///     visits: AtomicU64,
    /// }
    ///
    /// fn count(counter: &Counter, _: Request) -> String {
    ///     format!("you are visitor {}\n", counter.visits.fetch_add(1, Ordering::Relaxed) + 1)
    /// }
    ///
    /// let app = Router::new().with(Arc::new(Counter::default())).get("/", count).get("/ping", || "pong").build()?;
    /// # Ok::<(), narval_http::RouteError>(())
    /// ```
    #[must_use]
    pub fn with<S>(self, state: Arc<S>) -> Router<S> {
        Router { state, parts: self.parts }
    }
}

impl<S: Send + Sync + 'static> Router<S> {
    /// Adds a route for GET and HEAD.
    #[must_use]
    pub fn get<Form>(self, pattern: &str, handler: impl IntoHandler<Form, S>) -> Self {
        self.add(Method::GET, pattern, handler)
    }

    /// Adds a route for HEAD.
    #[must_use]
    pub fn head<Form>(self, pattern: &str, handler: impl IntoHandler<Form, S>) -> Self {
        self.add(Method::HEAD, pattern, handler)
    }

    /// Adds a route for POST.
    #[must_use]
    pub fn post<Form>(self, pattern: &str, handler: impl IntoHandler<Form, S>) -> Self {
        self.add(Method::POST, pattern, handler)
    }

    /// Adds a route for PUT.
    #[must_use]
    pub fn put<Form>(self, pattern: &str, handler: impl IntoHandler<Form, S>) -> Self {
        self.add(Method::PUT, pattern, handler)
    }

    /// Adds a route for DELETE.
    #[must_use]
    pub fn delete<Form>(self, pattern: &str, handler: impl IntoHandler<Form, S>) -> Self {
        self.add(Method::DELETE, pattern, handler)
    }

    /// Adds a route for OPTIONS; replaces the automatic answer.
    #[must_use]
    pub fn options<Form>(self, pattern: &str, handler: impl IntoHandler<Form, S>) -> Self {
        self.add(Method::OPTIONS, pattern, handler)
    }

    /// Adds a route for PATCH.
    #[must_use]
    pub fn patch<Form>(self, pattern: &str, handler: impl IntoHandler<Form, S>) -> Self {
        self.add(Method::PATCH, pattern, handler)
    }

    /// Adds a route for any method.
    #[must_use]
    pub fn add<Form>(mut self, method: Method, pattern: &str, handler: impl IntoHandler<Form, S>) -> Self {
        let handler = Box::new(handler.into_handler(self.state.clone()));
        self.push(method, pattern.to_owned(), handler, false, Vec::new());
        self
    }

    /// Adds a route whose handler may answer [`inline`](Handler::inline).
    #[must_use]
    pub fn add_inline<Form>(mut self, method: Method, pattern: &str, handler: impl IntoHandler<Form, S>) -> Self {
        let handler = Box::new(handler.into_handler(self.state.clone()));
        self.push(method, pattern.to_owned(), handler, true, Vec::new());
        self
    }

    /// Wraps everything that this router answers in a middleware, inside of those added before. In a nested router, that is all
    /// of its routes, whether they were added before or after, and what is not found below its prefix.
    #[must_use]
    pub fn layer(mut self, middleware: impl Middleware) -> Self {
        self.parts.layers.push(Arc::new(middleware));
        self
    }

    /// Adds the routes of `inner` under a prefix (itself a pattern), each within the middlewares of `inner`. Its route `/`
    /// answers the prefix itself.
    #[must_use]
    pub fn nest<T: Send + Sync + 'static>(mut self, prefix: &str, inner: Router<T>) -> Self {
        if prefix.ends_with('/') {
            self.parts.error.get_or_insert(RouteError::PrefixSlash { prefix: prefix.to_owned() });
        }
        let (layers, inner) = (inner.all_layers(), inner.parts);
        if let Some(error) = inner.error {
            self.parts.error.get_or_insert(error);
        }
        let within = |outer: &[Arc<dyn Middleware>]| layers.iter().chain(outer).cloned().collect::<Vec<_>>();
        for route in inner.routes {
            let text = if route.text == "/" { prefix.to_owned() } else { format!("{prefix}{}", route.text) };
            let wrapped = within(&route.layers);
            self.push(route.method, text, route.handler, route.inline, wrapped);
        }
        for scope in inner.scopes {
            let wrapped = within(&scope.layers);
            self.parts.scopes.push(Scope::new(format!("{prefix}{}", scope.prefix), wrapped, scope.not_found));
        }
        self.parts.scopes.push(Scope::new(prefix.to_owned(), layers, inner.not_found));
        self.parts.redirects_slashes |= inner.redirects_slashes;
        self
    }

    /// Sets the handler for paths without a route: of all such paths, or in a nested router of those below its prefix.
    /// Default: 404.
    #[must_use]
    pub fn not_found<Form>(mut self, handler: impl IntoHandler<Form, S>) -> Self {
        self.parts.not_found = Some(Box::new(handler.into_handler(self.state.clone())));
        self
    }

    /// Makes the responses for everything that goes wrong: a [`Reject`](crate::Reject), also those of the library (404, 405,
    /// 413, 400, …), errors that handlers return, and panics. Default: the reason as text.
    ///
    /// In a nested router, it is about what is below its prefix. In the outermost one, it is about the rest, and what the server
    /// itself rejects before it knows the path: malformed and oversized heads, and requests it has no room for; `answer` must not
    /// block then. Field lines that belong to the failure (`Allow`, `Retry-After`) are added to its response.
    ///
    /// ```
    /// use narval_http::{Failure, Problems, Response, Router};
    ///
    /// fn page(failure: &Failure<'_>) -> Response {
    ///     if failure.status().is_server_error() {
    ///         eprintln!("{}", failure.error());
    ///     }
    ///     Response::html(failure.status(), format!("<!doctype html><title>Sorry</title>{}", failure.status()))
    /// }
    ///
    /// let api = Router::new().get("/notes", || "none").errors(Problems::json());
    /// let app = Router::new().get("/", || "hello").nest("/api", api).errors(page).build()?;
    /// # Ok::<(), narval_http::RouteError>(())
    /// ```
    #[must_use]
    pub fn errors(mut self, answer: impl Fn(&Failure<'_>) -> Response + Send + Sync + 'static) -> Self {
        self.parts.errors = Some(Errors::new(answer));
        self
    }

    /// Redirects paths without a route to the same with a slash more, or less, at their end, if that has one. The redirect (308)
    /// keeps method and body.
    #[must_use]
    pub fn redirect_slashes(mut self) -> Self {
        self.parts.redirects_slashes = true;
        self
    }

    /// Makes the handler.
    ///
    /// # Errors
    /// The first invalid route, or two routes that match the same paths.
    pub fn build(self) -> Result<RoutingTable, RouteError> {
        let layers = self.all_layers();
        let Parts { mut routes, not_found, errors, mut scopes, redirects_slashes, error, .. } = self.parts;
        if let Some(error) = error {
            return Err(error);
        }
        routes.sort_by(|one, other| one.pattern.compare(&other.pattern));
        for (at, first) in routes.iter().enumerate() {
            let is_same = |other: &&Route| other.method == first.method && other.pattern.is_like(&first.pattern);
            if let Some(second) = routes.iter().skip(at + 1).find(is_same) {
                let (first, second) = (first.text.clone(), second.text.clone());
                return Err(RouteError::Conflict { method: routes.swap_remove(at).method, first, second });
            }
        }
        let any_inline = routes.iter().any(|route| route.inline);
        scopes.push(Scope { prefix: String::new(), below: vec![Pattern::everything()], layers: Vec::new(), not_found });
        Ok(RoutingTable { layers, errors, dispatch: Dispatch { routes, any_inline, scopes, redirects_slashes } })
    }

    /// Its middlewares, within and around which its errors are answered: middlewares may change these answers, and fail
    /// themselves.
    fn all_layers(&self) -> Vec<Arc<dyn Middleware>> {
        let errors = || self.parts.errors.iter().map(|errors| Arc::new(errors.clone()) as Arc<dyn Middleware>);
        let outer = errors().filter(|_| !self.parts.layers.is_empty());
        outer.chain(self.parts.layers.iter().cloned()).chain(errors()).collect()
    }

    fn push(
        &mut self,
        method: Method,
        text: String,
        handler: Box<dyn Handler>,
        inline: bool,
        layers: Vec<Arc<dyn Middleware>>,
    ) {
        match Pattern::parse(&text) {
            Ok(pattern) => self.parts.routes.push(Route { method, pattern, text, handler, layers, inline }),
            Err(error) => {
                self.parts.error.get_or_insert(RouteError::Pattern { pattern: text, error });
            }
        }
    }
}

impl<S> fmt::Debug for Router<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.parts.routes.iter().map(|route| format!("{} {}", route.method, route.text));
        f.debug_list().entries(routes).finish()
    }
}
