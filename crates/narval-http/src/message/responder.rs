//! Responses that follow later, from any thread.

use std::io;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::message::informational::Informational;
use crate::message::late;
use crate::message::response::Response;

/// A response that follows later, on its way through the middlewares.
pub(crate) type Later = late::Later<Response>;
/// A request whose handler has returned without an answer.
pub(crate) type Awaiting = late::Awaiting<Response>;
/// A late answer that is ready to send.
pub(crate) type LateAnswer = late::LateAnswer<Response>;

/// Answers a request later, from any thread, so that no worker waits meanwhile; see [`Response::later`]. If it is
/// dropped without an answer, the response is a 500.
#[derive(Debug)]
pub struct Responder {
    late: Option<Arc<late::Late<Response>>>,
}

impl Response {
    /// A response that follows later: return it from [`Handler::handle`](crate::Handler::handle), and answer with the
    /// [`Responder`], before or after that.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use narval_http::{Request, Response, StatusCode};
    ///
    /// fn slow(_: Request) -> Response {
    ///     let (response, responder) = Response::later();
    ///     std::thread::spawn(move || {
    ///         std::thread::sleep(Duration::from_secs(1));
    ///         responder.respond(Response::text(StatusCode::OK, "here it is"));
    ///     });
    ///     response
    /// }
    /// ```
    ///
    /// [`header`](Self::header), [`replace_header`](Self::replace_header), [`body`](Self::body) and [`map`](Self::map)
    /// change the answer once it has arrived. Until then, its status is unknown.
    /// [`Handler::inline`](crate::Handler::inline) may return one, too.
    pub fn later() -> (Self, Responder) {
        let (later, late) = Later::new();
        let mut response = Self::new(StatusCode::INTERNAL_SERVER_ERROR);
        response.late = Some(Box::new(later));
        (response, Responder { late: Some(late) })
    }

    /// Changes the answer: immediately, or, if it [follows later](Self::later), on a worker once it has arrived.
    ///
    /// ```
    /// use narval_http::{Next, Request, Response};
    ///
    /// fn complain(request: Request, next: Next<'_>) -> Response {
    ///     let path = request.path().to_owned();
    ///     next.run(request).map(move |response| {
    ///         if response.status().is_server_error() {
    ///             eprintln!("{path}: {}", response.status());
    ///         }
    ///         response
    ///     })
    /// }
    /// # let _: &dyn narval_http::Middleware = &complain;
    /// ```
    #[must_use]
    pub fn map(mut self, change: impl FnOnce(Self) -> Self + Send + 'static) -> Self {
        match &mut self.late {
            Some(later) => {
                later.change(Box::new(change));
                self
            }
            None => change(self),
        }
    }
}

impl Responder {
    /// Answers. A worker sends the response; this thread does not wait.
    pub fn respond(mut self, response: Response) {
        self.answer(response);
    }

    fn answer(&mut self, mut response: Response) {
        // A late answer is final: it cannot be delayed again.
        response.late = None;
        if let Some(late) = self.late.take() {
            late.answer(response);
        }
    }

    /// Whether the client is there, and waits for the answer. It is taken for granted until the handler has returned.
    /// [`Request::departure`](crate::Request::departure) can be asked before, and calls when the client leaves.
    pub fn is_open(&self) -> bool {
        self.late.as_ref().is_some_and(|late| late.is_open())
    }

    /// Sends an informational response before the answer; see
    /// [`Request::informational`](crate::Request::informational). Also returns `false` before the handler has returned.
    ///
    /// # Errors
    /// The status is not informational, or the connection is broken.
    pub fn informational(&self, status: StatusCode, fields: &[(HeaderName, HeaderValue)]) -> io::Result<bool> {
        let message = Informational::new(status, fields)?;
        self.late.as_ref().map_or(Ok(false), |late| late.inform(&message))
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.answer(Response::new(StatusCode::INTERNAL_SERVER_ERROR));
    }
}

impl LateAnswer {
    /// The answer if there is none.
    pub(crate) fn failed() -> Self {
        Self::of(Response::new(StatusCode::INTERNAL_SERVER_ERROR))
    }
}
