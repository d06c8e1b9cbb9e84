//! Answers that follow later: what a [`Response`](crate::Response) holds of one, which is why this knows only that there is one, `A`.

use std::sync::Arc;
use std::{fmt, io, mem};

use crate::io::sync::Mutex;
use crate::message::departure::Departure;
use crate::message::informational::{Informational, Informer};

/// A late answer that is ready to send.
#[derive(Debug)]
pub(crate) struct LateAnswer<A> {
    pub(crate) response: A,
    changes: Changes<A>,
}

impl<A> LateAnswer<A> {
    pub(crate) fn of(response: A) -> Self {
        Self { response, changes: Changes(Vec::new()) }
    }

    /// Worker: applies the recorded changes, and returns the response to send. The changes may panic, as handlers may.
    pub(crate) fn take(self) -> A {
        self.changes.0.into_iter().fold(self.response, |answer, change| change(answer))
    }
}

type Change<A> = Box<dyn FnOnce(A) -> A + Send>;

/// Changes to a late answer, in this order.
struct Changes<A>(Vec<Change<A>>);

impl<A> fmt::Debug for Changes<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Changes({})", self.0.len())
    }
}

/// A response that follows later, on its way through the middlewares.
#[derive(Debug)]
pub(crate) struct Later<A> {
    late: Arc<Late<A>>,
    changes: Changes<A>,
}

impl<A> Later<A> {
    /// And what it waits for.
    pub(crate) fn new() -> (Self, Arc<Late<A>>) {
        let late = Arc::new(Late { meeting: Mutex::new(Meeting::Nobody) });
        (Self { late: late.clone(), changes: Changes(Vec::new()) }, late)
    }

    /// Changes the answer once it is there, after what was to change it before.
    pub(crate) fn change(&mut self, change: Change<A>) {
        self.changes.0.push(change);
    }

    /// Leaves the right to be answered with the pending answer; gives it back with the answer if that is there already.
    /// `awaiting` makes of a request what is left.
    pub(crate) fn wait<R>(self, request: R, awaiting: impl FnOnce(R) -> Awaiting<A>) -> Option<(LateAnswer<A>, R)> {
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

/// Joins the handler's lease with the answer, whichever comes first.
#[derive(Debug)]
pub(crate) struct Late<A> {
    meeting: Mutex<Meeting<A>>,
}

#[derive(Debug)]
enum Meeting<A> {
    Nobody,
    /// The handler has returned.
    Waiting(Box<Waiting<A>>),
    /// The answer came first.
    Answer(Box<A>),
    Over,
}

#[derive(Debug)]
struct Waiting<A> {
    request: Awaiting<A>,
    changes: Changes<A>,
}

/// A request whose handler has returned without an answer.
pub(crate) struct Awaiting<A> {
    /// Has a worker send the answer, or says when it is dropped that there is none.
    pub(crate) answer: Box<dyn FnOnce(LateAnswer<A>) + Send>,
    pub(crate) departure: Departure,
    /// `None` for clients that do not know informational responses.
    pub(crate) informer: Option<Informer>,
}

impl<A> fmt::Debug for Awaiting<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaiting").field("departure", &self.departure).finish_non_exhaustive()
    }
}

impl<A> Late<A> {
    /// Whoever answers.
    pub(crate) fn answer(&self, response: A) {
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

    pub(crate) fn is_open(&self) -> bool {
        match &*self.meeting.lock() {
            Meeting::Nobody => true,
            Meeting::Waiting(waiting) => !waiting.request.departure.is_gone(),
            Meeting::Answer(_) | Meeting::Over => false,
        }
    }

    pub(crate) fn inform(&self, message: &Informational<'_>) -> io::Result<bool> {
        let mut meeting = self.meeting.lock();
        let Meeting::Waiting(waiting) = &*meeting else { return Ok(false) };
        // After an error the request is dropped, which aborts its connection: part of the message may have been sent.
        let Awaiting { informer, departure, .. } = &waiting.request;
        let informed = informer.as_ref().map_or(Ok(false), |informer| informer.send(message, departure));
        informed.inspect_err(|_| *meeting = Meeting::Over)
    }
}
