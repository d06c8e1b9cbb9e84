use std::io;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderName, HeaderValue, StatusCode};

use crate::Response;
use crate::connection::TxLease;
use crate::early::Informational;
use crate::engine::Engine;
use crate::exchange::Exchange;
use crate::pool::Job;

/// Answers a request later, from any thread, so that no worker waits meanwhile; see [`Response::later`]. Dropped without an
/// answer, it answers 500.
#[derive(Debug)]
pub struct Responder {
    late: Option<Arc<Late>>,
}

impl Response {
    /// A response that is still to come: return it from [`Handler::handle`](crate::Handler::handle), and answer with the [`Responder`], before or after.
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
    pub fn later() -> (Self, Responder) {
        let late = Arc::new(Late::default());
        let mut response = Self::new(StatusCode::INTERNAL_SERVER_ERROR);
        response.late = Some(late.clone());
        (response, Responder { late: Some(late) })
    }
}

impl Responder {
    /// Answers. A worker sends it; this thread does not wait.
    pub fn respond(mut self, response: Response) {
        if let Some(late) = self.late.take() {
            late.answer(response);
        }
    }

    /// Sends an informational response ahead of the answer; see [`Request::informational`](crate::Request::informational).
    /// False also before the handler has returned.
    ///
    /// # Errors
    /// Not a status of this kind, or the connection is broken.
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

/// Where the handler's right to answer and the answer meet, whichever comes first.
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
    lease: TxLease,
    exchange: Exchange,
    engine: Arc<Engine>,
}

impl Late {
    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, mut response: Response) {
        // A late answer is the answer, and can't be put off again.
        response.late = None;
        let mut meeting = self.lock();
        match mem::replace(&mut *meeting, Meeting::Over) {
            Meeting::Nobody => *meeting = Meeting::Answer(Box::new(response)),
            Meeting::Waiting(waiting) => {
                drop(meeting);
                let Waiting { lease, exchange, engine } = *waiting;
                engine.pool.push_continued(Job::Late(Box::new(LateAnswer { lease, exchange, response })));
            }
            Meeting::Answer(_) | Meeting::Over => {}
        }
    }

    fn inform(&self, message: &Informational<'_>) -> io::Result<bool> {
        let mut meeting = self.lock();
        let Meeting::Waiting(waiting) = &*meeting else { return Ok(false) };
        let Some(connection) = waiting.lease.connection() else { return Ok(false) };
        if !Informational::is_known_to(waiting.exchange.to.version) {
            return Ok(false);
        }
        // After an error the lease is dropped, which aborts the connection: something of the message may be out.
        message.send(connection).inspect_err(|_| *meeting = Meeting::Over)
    }

    /// Worker: leaves the right to answer here, or takes the answer along that is there already.
    pub(crate) fn wait(&self, lease: TxLease, exchange: Exchange, engine: &Arc<Engine>) -> Option<LateAnswer> {
        let mut meeting = self.lock();
        match mem::replace(&mut *meeting, Meeting::Over) {
            Meeting::Answer(response) => Some(LateAnswer { lease, exchange, response: *response }),
            _ => {
                *meeting = Meeting::Waiting(Box::new(Waiting { lease, exchange, engine: engine.clone() }));
                None
            }
        }
    }
}

/// A late answer, to be sent.
#[derive(Debug)]
pub(crate) struct LateAnswer {
    pub(crate) lease: TxLease,
    pub(crate) exchange: Exchange,
    pub(crate) response: Response,
}
