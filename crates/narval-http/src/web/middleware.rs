use std::fmt;
use std::sync::Arc;

use crate::http1::head_parts::HeadRef;
use crate::message::handler::{Handler, IntoHandler};
use crate::message::into_response::IntoResponse;
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::response::Response;

/// Wraps handlers: it gets each request before they do, and their response, and may answer itself.
///
/// Every `Fn(Request, Next<'_>) -> R + Send + Sync` is a middleware, if `R` can become a response ([`IntoResponse`]).
///
/// ```
/// use narval_http::{Next, Reject, Request, Response, Router, StatusCode};
///
/// fn must_know_the_word(request: Request, next: Next<'_>) -> Result<Response, Reject> {
///     if request.header("authorization") != Some("Bearer sesame") {
///         return Err(Reject::new(StatusCode::FORBIDDEN, "what is the word?"));
///     }
///     Ok(next.run(request))
/// }
///
/// let app = Router::new().layer(must_know_the_word).get("/", || "welcome\n").build()?;
/// # Ok::<(), narval_http::RouteError>(())
/// ```
pub trait Middleware: Send + Sync + 'static {
    /// Answers a request, usually with [`Next::run`].
    fn handle(&self, request: Request, next: Next<'_>) -> Response;

    /// [`Handler::inline`] for the wrapped handlers. `None` (the default) sends every request to a worker, so that none
    /// bypasses [`handle`](Middleware::handle).
    fn inline(&self, head: &HeadRef<'_>, next: Next<'_>) -> Option<Response> {
        let _ = (head, next);
        None
    }
}

impl<F, R> Middleware for F
where
    F: Fn(Request, Next<'_>) -> R + Send + Sync + 'static,
    R: IntoResponse,
{
    fn handle(&self, request: Request, next: Next<'_>) -> Response {
        self(request, next).into_response()
    }
}

/// The rest of the chain: inner middlewares, and the handler.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    layers: &'a [Arc<dyn Middleware>],
    handler: &'a dyn Handler,
}

impl<'a> Next<'a> {
    /// The chain of `layers`, outermost first, and `handler`.
    pub(crate) fn new(layers: &'a [Arc<dyn Middleware>], handler: &'a dyn Handler) -> Self {
        Self { layers, handler }
    }

    /// Passes the request on, and returns the response.
    pub fn run(self, request: Request) -> Response {
        match self.layers.split_first() {
            Some((layer, layers)) => layer.handle(request, Next { layers, ..self }),
            None => self.handler.handle(request),
        }
        .settle()
    }

    /// Passes the request on inline; see [`Handler::inline`].
    pub fn inline(self, head: &HeadRef<'_>) -> Option<Response> {
        match self.layers.split_first() {
            Some((layer, layers)) => layer.inline(head, Next { layers, ..self }),
            None => self.handler.inline(head),
        }
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

/// A handler wrapped in a middleware; see [`wrap`].
pub struct Wrapped<H> {
    layers: [Arc<dyn Middleware>; 1],
    handler: H,
}

/// Wraps `handler` in `middleware`, where there is no [`Router`](crate::Router) to do it.
pub fn wrap<Form>(middleware: impl Middleware, handler: impl IntoHandler<Form>) -> Wrapped<impl Handler> {
    Wrapped { layers: [Arc::new(middleware)], handler: handler.into_handler(Arc::new(())) }
}

impl<H: Handler> Handler for Wrapped<H> {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        Next::new(&self.layers, &self.handler).inline(head)
    }

    fn handle(&self, request: Request) -> Response {
        Next::new(&self.layers, &self.handler).run(request)
    }

    fn rejected(&self, reject: Reject) -> Response {
        self.handler.rejected(reject)
    }

    fn accepts_websockets(&self) -> bool {
        self.handler.accepts_websockets()
    }
}

impl<H> fmt::Debug for Wrapped<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wrapped").finish_non_exhaustive()
    }
}
