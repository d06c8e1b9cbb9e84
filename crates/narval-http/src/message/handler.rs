use std::sync::Arc;

use crate::http1::head_parts::HeadRef;
use crate::message::into_response::IntoResponse;
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::response::Response;

/// Answers requests.
///
/// Every `Fn(Request) -> R + Send + Sync` is a handler if `R` is a [`Response`] or can become one ([`IntoResponse`]); so is,
/// where a handler is passed to the engine, every `Fn() -> R` (see [`IntoHandler`]). Implement the trait yourself to answer some
/// requests [`inline`](Handler::inline).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    note = "a handler is an `Fn(Request) -> R + Send + Sync + 'static` where `R: IntoResponse`, or implements `Handler`"
)]
pub trait Handler: Send + Sync + 'static {
    /// Answers on the shard's own thread, before the request is handed to a worker. Only called for requests without a body.
    ///
    /// It may only read memory: no lock that can block, no system call, at most about 20 µs. All other connections of the shard
    /// wait meanwhile. `None` (the default) hands the request to a worker.
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        let _ = head;
        None
    }

    /// Answers on a worker thread. It may block.
    fn handle(&self, request: Request) -> Response;

    /// Answers what the server rejects before a handler runs: malformed and oversized heads, bodies that are too large, and
    /// requests it has no room for. Called on the shard's own thread: see [`inline`](Self::inline).
    fn rejected(&self, reject: Reject) -> Response {
        Response::failure(reject)
    }

    /// Whether WebSockets over HTTP/2 are offered to clients (RFC 8441), which then open them on their existing connection.
    /// Asked once per connection. A handler without WebSockets returns `false`.
    fn accepts_websockets(&self) -> bool {
        true
    }
}

impl<F, R> Handler for F
where
    F: Fn(Request) -> R + Send + Sync + 'static,
    R: IntoResponse,
{
    fn handle(&self, request: Request) -> Response {
        self(request).into_response()
    }
}

/// What [`Router`](crate::Router) and [`Server`](crate::Server) accept as a handler: a [`Handler`], a function without
/// arguments, or, in a router with a [state](crate::Router::with), a function of the state and the request.
///
/// `Form` is inferred; it tells them apart. A closure that takes the request names its type, as in `|request: Request| …`.
///
/// ```
/// use narval_http::{Handler, Request, Response, Router, StatusCode};
///
/// fn teapot() -> StatusCode {
///     StatusCode::IM_A_TEAPOT
/// }
///
/// fn path(request: Request) -> String {
///     request.path().to_owned()
/// }
///
/// struct Counter(std::sync::atomic::AtomicU64);
///
/// impl Handler for Counter {
///     fn handle(&self, _: Request) -> Response {
///         let before = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
///         Response::text(StatusCode::OK, before.to_string())
///     }
/// }
///
/// let name = String::from("Ada");
/// let app = Router::new()
///     .get("/ping", || "pong")
///     .get("/name", move || name.clone())
///     .get("/motd", || std::fs::read_to_string("/etc/motd"))
///     .get("/teapot", teapot)
///     .get("/query", |request: Request| request.query().unwrap_or_default().to_owned())
///     .get("/path", path)
///     .get("/again", |request| path(request))
///     .get("/counter", Counter(0.into()))
///     .not_found(|| StatusCode::NOT_FOUND)
///     .build()?;
/// let get = |path| Request::parse(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"), "").unwrap();
/// assert_eq!(app.handle(get("/ping")).status(), StatusCode::OK);
/// assert_eq!(app.handle(get("/teapot")).status(), StatusCode::IM_A_TEAPOT);
/// # assert_eq!(app.handle(get("/again")).content_length(), Some(6));
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    note = "a handler is an `Fn(Request) -> R`, an `Fn() -> R` or, after `Router::with`, an `Fn(&State, Request) -> R`, all of them `Send + Sync + 'static`, where `R: IntoResponse`; or it implements `Handler`"
)]
pub trait IntoHandler<Form, S = ()> {
    /// The handler.
    fn into_handler(self, state: Arc<S>) -> impl Handler;
}

/// Marks what is a [`Handler`] itself.
#[derive(Debug)]
pub struct TakesRequest;

/// Marks functions without arguments.
#[derive(Debug)]
pub struct TakesNothing;

/// Marks functions of the state and the request.
#[derive(Debug)]
pub struct TakesState;

impl<H: Handler, S> IntoHandler<TakesRequest, S> for H {
    fn into_handler(self, _: Arc<S>) -> impl Handler {
        self
    }
}

impl<F, R, S> IntoHandler<TakesNothing, S> for F
where
    F: Fn() -> R + Send + Sync + 'static,
    R: IntoResponse,
{
    fn into_handler(self, _: Arc<S>) -> impl Handler {
        move |_: Request| self()
    }
}

impl<F, R, S> IntoHandler<TakesState, S> for F
where
    F: Fn(&S, Request) -> R + Send + Sync + 'static,
    R: IntoResponse,
    S: Send + Sync + 'static,
{
    fn into_handler(self, state: Arc<S>) -> impl Handler {
        move |request: Request| self(&state, request)
    }
}
