//! Threads for requests that take long: those of the page that decode, walk or compare, and those of pushes for many missing paths. Workers
//! stay free for everything else.
//!
//! Such a request has a permit from its start until its answer is sent. Its work is done in pieces: each waits in one queue behind the pieces of
//! the other requests, and is made only once the client has taken the last one. So a slow client holds no thread, and no request waits for
//! the whole of another one. The work ends when the client leaves, and when it takes nothing for [`UNTAKEN_MAX`] while others wait.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use narval_client::request_id;
use narval_files::{Background, Permit, Permits, served_client, work_for};
use narval_http::{Body, BodySource, BodyWaker, Departure, Fill, Method, Request, Responder, Response, SegmentBuf};
use narval_nix::StorePath;
use parking_lot::{Mutex, MutexGuard};

use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::growing::Nothing;
use crate::watch::GaugeGuard;

/// The threads, at most: half of what a machine with few processors has is left to others.
const THREADS_MAX: usize = 4;
/// Requests that are being answered.
const REQUESTS_MAX: usize = 32;
/// Requests of one client that are being answered.
const REQUESTS_OF_ONE_MAX: usize = 8;
/// A request whose client has taken nothing for this long makes way for another one.
const UNTAKEN_MAX: Duration = Duration::from_secs(10);

/// See the module's description. All caches of a server share one for the page, and one for pushes.
pub(crate) struct Piecework {
    threads: Arc<Background>,
    permits: Permits,
    /// The answers that are being sent.
    answers: Mutex<Vec<Weak<Answer>>>,
}

/// What a request is answered with.
pub(crate) enum Answered {
    /// This answer.
    Whole(Response),
    /// An answer whose body is made in pieces, of this length if it is known. A piece may be empty.
    Pieces { response: Response, source: Box<dyn BodySource>, length: Option<u64>, of: StorePath },
}

impl fmt::Debug for Piecework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piecework({:?})", self.threads)
    }
}

impl Default for Piecework {
    fn default() -> Self {
        Self::new("page")
    }
}

impl Piecework {
    /// On threads of this name.
    pub(crate) fn new(threads_name: &'static str) -> Self {
        let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, THREADS_MAX);
        Self {
            threads: Background::new(threads_name, threads, REQUESTS_MAX),
            permits: Permits::shared(REQUESTS_MAX, REQUESTS_OF_ONE_MAX),
            answers: Mutex::default(),
        }
    }

    /// Answers a request on one of the threads.
    ///
    /// # Errors
    /// 503 if too many are being answered.
    pub(crate) fn answer(
        self: &Arc<Self>,
        request: Request,
        metrics: &Arc<Metrics>,
        answer: impl FnOnce(&Request) -> Result<Answered, ServeError> + Send + 'static,
    ) -> Result<Response, ServeError> {
        let held = (self.permit()?, Some(metrics.page_requests.begin()));
        let (response, responder) = Response::later();
        let (this, metrics, id, client) =
            (Arc::clone(self), Arc::clone(metrics), request_id::current(), served_client());
        let job = Box::new(move || {
            let _entered = (request_id::enter(id), work_for(client));
            if !request.is_connected() {
                return;
            }
            match answer(&request) {
                Ok(Answered::Whole(response)) => responder.respond(response),
                Ok(Answered::Pieces { response, length, .. }) if *request.method() == Method::HEAD => {
                    responder.respond(response.body(Body::source(Nothing, length)));
                }
                Ok(Answered::Pieces { response, source, length, of }) => {
                    let first = First { responder, response, length, of, metrics };
                    this.begin(source, first, held, request.departure());
                }
                Err(error) => responder.respond(error.into_response(&metrics)),
            }
        });
        self.threads.add(job).map_err(|_| ServeError::Busy)?;
        Ok(response)
    }

    /// A body that is made in pieces on the threads.
    pub(crate) fn body(
        self: &Arc<Self>,
        permit: Permit,
        source: impl BodySource + 'static,
        departure: Departure,
    ) -> Body {
        let state = State { is_making: false, ..State::new(Box::new(source), (permit, None), Waits::Nobody) };
        Body::source(Pieces(self.add(state, departure)), None)
    }

    /// A permit for one more request. If there is none, answers that nobody takes end.
    ///
    /// # Errors
    /// 503 if too many are being answered.
    pub(crate) fn permit(&self) -> Result<Permit, ServeError> {
        let permit = self.permits.take().or_else(|| {
            let answers: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
            answers.iter().for_each(|answer| answer.end_if_untaken());
            self.permits.take()
        });
        permit.ok_or(ServeError::Busy)
    }

    /// Makes the first piece of an answer.
    fn begin(self: &Arc<Self>, source: Box<dyn BodySource>, first: First, held: Held, departure: Departure) {
        self.add(State::new(source, held, Waits::First(Box::new(first))), departure).go_on();
    }

    fn add(self: &Arc<Self>, state: State, departure: Departure) -> Arc<Answer> {
        let answer = Arc::new(Answer { work: Arc::clone(self), departure, state: Mutex::new(state) });
        let mut answers = self.lock();
        answers.retain(|answer| answer.strong_count() > 0);
        answers.push(Arc::downgrade(&answer));
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Answer>>> {
        self.answers.lock()
    }
}

/// What a request holds while it is answered: its permit, and its place in a gauge.
type Held = (Permit, Option<GaugeGuard>);

/// An answer that is made in pieces.
struct Answer {
    work: Arc<Piecework>,
    departure: Departure,
    state: Mutex<State>,
}

struct State {
    /// `None` while a thread makes a piece, and at the end.
    source: Option<Box<dyn BodySource>>,
    /// Whether a piece is being made, or waits for a thread.
    is_making: bool,
    made: Option<io::Result<(Vec<u8>, Fill)>>,
    /// When something was last made or taken.
    since: Instant,
    waits: Waits,
    /// Given back at the end. `None`: the answer has ended.
    held: Option<Held>,
}

/// Who waits for the next piece.
enum Waits {
    Nobody,
    First(Box<First>),
    Body(BodyWaker),
}

/// The answer before its first piece.
struct First {
    responder: Responder,
    response: Response,
    length: Option<u64>,
    /// What is read.
    of: StorePath,
    metrics: Arc<Metrics>,
}

impl Answer {
    /// Queues the next piece.
    fn go_on(self: &Arc<Self>) {
        let this = Arc::clone(self);
        if self.work.threads.add(Box::new(move || this.make())).is_err() {
            self.lock().end();
        }
    }

    /// Makes the next piece, or does some of the work for it.
    fn make(self: Arc<Self>) {
        let mut state = self.lock();
        let Some(mut source) = state.source.take() else { return };
        if self.departure.is_gone() {
            return state.end();
        }
        drop(state);
        let mut piece = SegmentBuf::default();
        let filled = catch_unwind(AssertUnwindSafe(|| source.fill(&mut piece)))
            .unwrap_or_else(|_| Err(io::Error::other("a panic, which was reported")));
        let mut state = self.lock();
        if state.held.is_none() {
            return;
        }
        if matches!(filled, Ok(Fill::More)) {
            state.source = Some(source);
            if piece.memory().is_empty() {
                drop(state);
                return self.go_on();
            }
        }
        state.made = Some(filled.map(|fill| (std::mem::take(piece.memory()), fill)));
        (state.is_making, state.since) = (false, Instant::now());
        match std::mem::replace(&mut state.waits, Waits::Nobody) {
            Waits::Nobody => {}
            Waits::Body(waker) => {
                drop(state);
                waker.wake();
            }
            Waits::First(first) => {
                let failed = match &state.made {
                    Some(Err(error)) => Some(ServeError::of_files(&first.of, error)),
                    _ => None,
                };
                if failed.is_some() {
                    state.end();
                }
                drop(state);
                first.respond(Pieces(self), failed);
            }
        }
    }

    /// Ends the answer if its client takes nothing.
    fn end_if_untaken(&self) {
        let mut state = self.lock();
        if !state.is_making && state.since.elapsed() > UNTAKEN_MAX {
            state.end();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn new(source: Box<dyn BodySource>, held: Held, waits: Waits) -> Self {
        Self { source: Some(source), is_making: true, made: None, since: Instant::now(), waits, held: Some(held) }
    }

    /// Ends the answer: another request may have its permit.
    fn end(&mut self) {
        (self.source, self.made, self.held) = (None, None, None);
    }
}

impl First {
    fn respond(self, pieces: Pieces, failed: Option<ServeError>) {
        let Self { responder, response, length, metrics, .. } = self;
        responder.respond(match failed {
            Some(error) => error.into_response(&metrics),
            None => response.body(Body::source(pieces, length)),
        });
    }
}

/// The body of an answer that is made in pieces.
struct Pieces(Arc<Answer>);

impl BodySource for Pieces {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let mut state = self.0.lock();
        match state.made.take() {
            Some(Ok((mut bytes, fill))) => {
                state.since = Instant::now();
                out.memory().append(&mut bytes);
                if fill == Fill::Done {
                    state.end();
                }
                Ok(fill)
            }
            Some(Err(error)) => {
                state.end();
                Err(error)
            }
            None if state.held.is_none() => Err(io::Error::new(io::ErrorKind::TimedOut, "the client took nothing")),
            None if state.is_making => Ok(Fill::Wait),
            None => {
                state.is_making = true;
                drop(state);
                self.0.go_on();
                Ok(Fill::Wait)
            }
        }
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        let mut state = self.0.lock();
        if state.made.is_some() || state.held.is_none() {
            return Duration::ZERO;
        }
        state.waits = Waits::Body(waker);
        Duration::MAX
    }

    fn never_blocks(&self) -> bool {
        true
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.0.lock().end();
    }
}
