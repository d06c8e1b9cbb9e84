//! Responses for what went wrong, in one form for all that a router answers.

use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use crate::http1::head_parts::HeadRef;
use crate::message::panic_guard::panic_message;
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::web::middleware::{Middleware, Next};

/// A handler panicked; see [`Failure::error`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("a handler panicked: {message}")]
pub struct HandlerPanicked {
    /// The panic message.
    pub message: String,
}

/// What went wrong with a request; see [`Router::errors`](crate::Router::errors).
#[derive(Debug)]
pub struct Failure<'a> {
    head: Option<HeadRef<'a>>,
    error: &'a (dyn Error + 'static),
    reject: Reject,
}

impl<'a> Failure<'a> {
    pub(super) fn new(head: Option<HeadRef<'a>>, error: &'a (dyn Error + 'static)) -> Self {
        Self { head, error, reject: Reject::of(error) }
    }

    /// The head of the request. `None` if it is malformed, or the server has not looked at it, because it is overloaded.
    pub fn head(&self) -> Option<HeadRef<'a>> {
        self.head
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        self.reject.status()
    }

    /// What the client may be told.
    pub fn reason(&self) -> &str {
        self.reject.reason()
    }

    /// The error itself, for logs: a [`Reject`], [`HandlerPanicked`], or what a handler returned.
    pub fn error(&self) -> &'a (dyn Error + 'static) {
        self.error
    }
}

/// Failures as `application/problem+json` (RFC 9457).
///
/// ```
/// use narval_http::{Problems, Router, StatusCode, test};
///
/// let api = Router::new().get("/notes", || "none").errors(Problems::json());
/// let app = test::client(Router::new().nest("/api", api).build()?);
/// let lost = app.get("/api/lost").send();
/// assert_eq!(lost.text(), r#"{"detail":"not found","status":404,"title":"Not Found","type":"about:blank"}"#);
/// assert_eq!(app.get("/lost").send().text(), "not found\n");
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Debug)]
pub struct Problems;

impl Problems {
    /// For [`Router::errors`](crate::Router::errors).
    pub fn json() -> impl Fn(&Failure<'_>) -> Response + Send + Sync + 'static {
        |failure| {
            let status = failure.status();
            let problem = json!({
                "type": "about:blank",
                "title": status.canonical_reason().unwrap_or("Error"),
                "status": status.as_u16(),
                "detail": failure.reason(),
            });
            Response::json_as(HeaderValue::from_static("application/problem+json"), status, &problem)
        }
    }
}

/// The innermost and the outermost middleware of a router with [`errors`](crate::Router::errors).
#[derive(Clone)]
pub(super) struct Errors {
    answer: Arc<dyn Fn(&Failure<'_>) -> Response + Send + Sync>,
}

impl Errors {
    pub(super) fn new(answer: impl Fn(&Failure<'_>) -> Response + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer) }
    }

    /// The response for a failure. The fields of the plain one are kept: `Allow`, `Retry-After`, and those of middlewares.
    pub(super) fn respond(&self, head: Option<HeadRef<'_>>, mut plain: Response) -> Response {
        let Some(error) = plain.take_failure() else { return plain };
        let response = (self.answer)(&Failure::new(head, &*error));
        plain.headers().into_iter().fold(response, |response, (name, value)| {
            let is_kept = name != header::CONTENT_TYPE && response.header_value(&name).is_none();
            if is_kept { response.header(name, value) } else { response }
        })
    }
}

impl Middleware for Errors {
    fn handle(&self, request: Request, next: Next<'_>) -> Response {
        let (head, parts, remote) = request.head_parts();
        match catch_unwind(AssertUnwindSafe(|| next.run(request))) {
            Ok(response) => {
                let errors = self.clone();
                response.map(move |response| errors.respond(Some(HeadRef::new(&head, &parts, &remote)), response))
            }
            Err(payload) => {
                let head = HeadRef::new(&head, &parts, &remote);
                let panicked = HandlerPanicked { message: panic_message(&*payload).to_owned() };
                tracing::error!(method = %head.method(), path = head.path(), "{panicked}");
                self.respond(Some(head), Response::failure(panicked))
            }
        }
    }

    fn inline(&self, head: &HeadRef<'_>, next: Next<'_>) -> Option<Response> {
        next.inline(head).map(|response| self.respond(Some(*head), response))
    }
}

impl fmt::Debug for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errors").finish_non_exhaustive()
    }
}
