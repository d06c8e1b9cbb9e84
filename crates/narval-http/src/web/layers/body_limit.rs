use http::StatusCode;

use crate::http1::head_parts::HeadRef;
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::web::middleware::{Middleware, Next};

/// A middleware that bounds the bodies of requests, whatever the handlers do with them: longer ones are answered 413. It can
/// only be less than [`Limits::body_max`](crate::Limits::body_max), which holds for the whole server.
///
/// ```
/// use narval_http::{BodyLimit, Request, Router, StatusCode, test};
///
/// fn length(mut request: Request) -> std::io::Result<String> {
///     Ok(std::io::copy(request.body(), &mut std::io::sink())?.to_string())
/// }
///
/// let app = test::client(Router::new().layer(BodyLimit::new(5)).post("/", length).build()?);
/// assert_eq!(app.post("/").body("12345").send().text(), "5");
/// assert_eq!(app.post("/").body("123456").send().status(), StatusCode::PAYLOAD_TOO_LARGE);
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BodyLimit {
    bytes_max: u64,
}

impl BodyLimit {
    /// Bodies of at most so many bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max }
    }
}

impl Middleware for BodyLimit {
    fn handle(&self, mut request: Request, next: Next<'_>) -> Response {
        let announced = request.header("content-length").and_then(|length| length.parse::<u64>().ok());
        if announced.is_some_and(|length| length > self.bytes_max) {
            let reason = format!("the request body has more than {} bytes", self.bytes_max);
            return Response::failure(Reject::new(StatusCode::PAYLOAD_TOO_LARGE, reason));
        }
        request.body().limit(self.bytes_max);
        next.run(request)
    }

    // Requests without a body.
    fn inline(&self, head: &HeadRef<'_>, next: Next<'_>) -> Option<Response> {
        next.inline(head)
    }
}
