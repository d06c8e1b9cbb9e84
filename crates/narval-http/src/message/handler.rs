use crate::{HeadRef, IntoResponse, Request, Response};

/// What answers requests.
///
/// Every `Fn(Request) -> R + Send + Sync` is a handler, where `R` is a [`Response`] or can become one
/// ([`IntoResponse`]). Implement the trait by hand to answer some requests
/// [`inline`](Handler::inline).
pub trait Handler: Send + Sync + 'static {
    /// A chance to answer on the shard's own thread, before the request is handed to a worker.
    ///
    /// It may look at memory and nothing else: no lock that can block, no system call, no more than about 20 µs;
    /// every other connection of the shard waits meanwhile. `None` (the default) hands the request to a worker.
    /// It is only asked about requests without a body.
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        let _ = head;
        None
    }

    /// Answers a request, on a worker thread; it may block.
    fn handle(&self, request: Request) -> Response;
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
