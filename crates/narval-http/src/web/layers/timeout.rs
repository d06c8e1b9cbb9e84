use std::time::{Duration, Instant};

use http::StatusCode;

use crate::http1::head_parts::HeadRef;
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::web::middleware::{Middleware, Next};

/// A middleware that gives handlers a deadline: whoever is not answered by then is answered 503.
///
/// A thread cannot be interrupted. A handler that works in steps, or waits for something, looks at
/// [`Request::deadline`] and gives up; the answer of one that does not is discarded when it comes. The body of an answer may
/// take longer.
///
/// ```
/// use std::time::Duration;
///
/// use narval_http::{Router, StatusCode, Timeout, test};
///
/// fn slow() -> &'static str {
///     std::thread::sleep(Duration::from_millis(5));
///     "done"
/// }
///
/// let app = test::client(Router::new().layer(Timeout::new(Duration::from_millis(1))).get("/", slow).build()?);
/// assert_eq!(app.get("/").send().status(), StatusCode::SERVICE_UNAVAILABLE);
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    limit: Duration,
}

/// When a request must be answered.
#[derive(Clone, Copy, Debug)]
struct Deadline(Instant);

impl Timeout {
    /// Each request must be answered within this time, from when the middleware gets it.
    pub fn new(limit: Duration) -> Self {
        Self { limit }
    }
}

impl Request {
    /// When it must be answered, if a [`Timeout`] says so.
    pub fn deadline(&self) -> Option<Instant> {
        self.extension::<Deadline>().map(|deadline| deadline.0)
    }
}

impl Middleware for Timeout {
    fn handle(&self, mut request: Request, next: Next<'_>) -> Response {
        let own = Instant::now() + self.limit;
        let deadline = request.deadline().map_or(own, |outer| outer.min(own));
        request.extensions_mut().insert(Deadline(deadline));
        next.run(request).map(move |response| {
            if Instant::now() <= deadline {
                return response;
            }
            Response::failure(Reject::new(StatusCode::SERVICE_UNAVAILABLE, "the answer took too long"))
        })
    }

    // An inline answer takes no time.
    fn inline(&self, head: &HeadRef<'_>, next: Next<'_>) -> Option<Response> {
        next.inline(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::router::Router;
    use crate::web::test;

    #[test]
    fn the_earlier_deadline_holds_and_late_answers_have_one_too() {
        let left = |request: Request| {
            let left = request.deadline().map_or(Duration::MAX, |deadline| deadline - Instant::now());
            (left <= Duration::from_secs(60)).to_string()
        };
        let later = || {
            let (response, responder) = Response::later();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                responder.respond(Response::text(StatusCode::OK, "late"));
            });
            response
        };
        let inner = Router::new().layer(Timeout::new(Duration::from_secs(3600))).get("/left", left);
        let app = Router::new().layer(Timeout::new(Duration::from_secs(60))).nest("/in", inner).build().expect("valid");
        assert_eq!(test::client(app).get("/in/left").send().text(), "true");
        let app = Router::new().layer(Timeout::new(Duration::from_millis(1))).get("/", later).build().expect("valid");
        assert_eq!(test::client(app).get("/").send().status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
