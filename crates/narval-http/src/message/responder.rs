//! Responses that follow later.
//!
//! This file, `late_answer.rs` and `response.rs` import each other: a `Response` may be one that follows later, which
//! resolves to a `Response`. They are one idea in three files.

use std::io;
use std::mem;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::Response;
use crate::io::sync::Mutex;
use crate::message::departure::Departure;
use crate::message::informational::{Informational, Informer};
use crate::message::late_answer::{Changes, LateAnswer};

/// Answers a request later, from any thread, so that no worker waits meanwhile; see [`Response::later`]. If it is
/// dropped without an answer, the response is a 500.
#[derive(Debug)]
pub struct Responder {
    late: Option<Arc<Late>>,
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
        let late = Arc::new(Late::default());
        let mut response = Self::new(StatusCode::INTERNAL_SERVER_ERROR);
        response.late = Some(Box::new(Later { late: late.clone(), changes: Changes::default() }));
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
                later.changes.0.push(Box::new(change));
                self
            }
            None => change(self),
        }
    }
}

/// A response that follows later, on its way through the middlewares.
#[derive(Debug)]
pub(crate) struct Later {
    late: Arc<Late>,
    changes: Changes,
}

impl Responder {
    /// Answers. A worker sends the response; this thread does not wait.
    pub fn respond(mut self, response: Response) {
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
        if let Some(late) = self.late.take() {
            late.answer(Response::new(StatusCode::INTERNAL_SERVER_ERROR));
        }
    }
}

/// Joins the handler's lease with the answer, whichever comes first.
#[derive(Debug, Default)]
pub(crate) struct Late {
    meeting: Mutex<Meeting>,
}

#[derive(Debug, Default)]
enum Meeting {
    #[default]
    Nobody,
    /// The handler has returned.
    Waiting(Box<Waiting>),
    /// The answer came first.
    Answer(Box<Response>),
    Over,
}

#[derive(Debug)]
struct Waiting {
    request: Awaiting,
    changes: Changes,
}

/// A request whose handler has returned without an answer.
pub(crate) struct Awaiting {
    /// Has a worker send the answer, or says when it is dropped that there is none.
    pub(crate) answer: Box<dyn FnOnce(LateAnswer) + Send>,
    pub(crate) departure: Departure,
    /// `None` for clients that do not know informational responses.
    pub(crate) informer: Option<Informer>,
}

impl std::fmt::Debug for Awaiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awaiting").field("departure", &self.departure).finish_non_exhaustive()
    }
}

impl Late {
    fn answer(&self, mut response: Response) {
        // A late answer is final: it cannot be delayed again.
        response.late = None;
        let mut meeting = self.meeting.lock();
        match mem::replace(&mut *meeting, Meeting::Over) {
            Meeting::Nobody => *meeting = Meeting::Answer(Box::new(response)),
            Meeting::Waiting(waiting) => {
                drop(meeting);
                let Waiting { request, changes } = *waiting;
                (request.answer)(LateAnswer { response, changes });
            }
            Meeting::Answer(_) | Meeting::Over => {}
        }
    }

    fn is_open(&self) -> bool {
        match &*self.meeting.lock() {
            Meeting::Nobody => true,
            Meeting::Waiting(waiting) => !waiting.request.departure.is_gone(),
            Meeting::Answer(_) | Meeting::Over => false,
        }
    }

    fn inform(&self, message: &Informational<'_>) -> io::Result<bool> {
        let mut meeting = self.meeting.lock();
        let Meeting::Waiting(waiting) = &*meeting else { return Ok(false) };
        // After an error the request is dropped, which aborts its connection: part of the message may have been sent.
        let Awaiting { informer, departure, .. } = &waiting.request;
        let informed = informer.as_ref().map_or(Ok(false), |informer| informer.send(message, departure));
        informed.inspect_err(|_| *meeting = Meeting::Over)
    }
}

impl Later {
    /// Leaves the right to be answered with the pending answer; gives it back with the answer if that is there already.
    /// `awaiting` makes of a request what is left.
    pub(crate) fn wait<R>(self, request: R, awaiting: impl FnOnce(R) -> Awaiting) -> Option<(LateAnswer, R)> {
        let Self { late, changes } = self;
        let mut meeting = late.meeting.lock();
        match mem::replace(&mut *meeting, Meeting::Over) {
            Meeting::Answer(response) => Some((LateAnswer { response: *response, changes }, request)),
            _ => {
                *meeting = Meeting::Waiting(Box::new(Waiting { request: awaiting(request), changes }));
                None
            }
        }
    }
}
