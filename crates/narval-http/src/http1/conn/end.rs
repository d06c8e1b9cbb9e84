//! How a connection ends: at deadlines, after answers, when the server stops.

use std::io;

use super::act::Act;
use super::closing::End;
use super::over::Close;
use super::service::{Answer, Exchange, Service};
use super::state::{BodyLeft, Reading, Scan, State, Unread};
use super::{Conn, Input};
use crate::io::clock::{Millis, millis};
use crate::limits::{FIRST_REQUEST_GRACE, LAST_TRY};

impl<X: Exchange> Conn<X> {
    /// The deadline has passed. `idle_since`: when its job ended, if it [may have ended](Self::may_be_answered) without
    /// a message.
    pub(crate) fn tick(
        &mut self,
        idle_since: Option<Millis>,
        input: &Input<'_>,
        service: &mut impl Service<X>,
    ) -> Act<X> {
        let (now, keep_alive) = (service.now(), service.keep_alive());
        match &self.state {
            State::Head(_) if input.rest().is_empty() => self.end_cleanly(service),
            State::Head(_) => {
                service.count_timeout();
                Act::Drop
            }
            State::Running(BodyLeft::Nothing) => match idle_since {
                Some(since) if since + keep_alive <= now => self.end_cleanly(service),
                since => {
                    self.deadline = since.unwrap_or(now) + keep_alive;
                    Act::Wait
                }
            },
            State::Running(_) | State::Body(_) => self.check_body(service),
            State::Sending { blocked: Some(_), .. } | State::Draining { .. } => self.check_writing(service),
            State::Sending { blocked: None, .. } => self.stalled(service),
            State::Waiting { .. } => Act::Drive,
        }
    }

    /// A window of the write deadline is over.
    fn check_writing(&mut self, service: &mut impl Service<X>) -> Act<X> {
        let (now, limits) = (service.now(), service.limits());
        let Some((answer, _)) = self.answer() else { return Act::Wait };
        let sent = answer.sent();
        let progress = answer.progress(now);
        let stall = millis(limits.write_stall_timeout);
        if let Some(next) = progress.check(now, sent, limits.write_progress_min, stall) {
            self.deadline = next;
            Act::Wait
        } else if progress.has_last_try() {
            // A socket counts as writable only when a third of its buffer is free, which takes a while with a slow
            // client. Trying to send shows what the client has taken meanwhile.
            self.deadline = now + millis(LAST_TRY);
            Act::Drive
        } else {
            self.stalled(service)
        }
    }

    /// The client does not read its response.
    fn stalled(&mut self, service: &mut impl Service<X>) -> Act<X> {
        service.count_timeout();
        if let Some((answer, _)) = self.answer() {
            service.abandon(answer);
        }
        self.state = State::Head(Scan::default());
        self.end(Close::Abort, None)
    }

    /// Ends a connection whose last response is sent, or whose client has ended its input.
    pub(super) fn end_cleanly(&mut self, service: &impl Service<X>) -> Act<X> {
        let unread = self.state.take_unread();
        self.end(Close::Clean { large: service.last_was_large() }, unread)
    }

    /// Ends a connection.
    pub(super) fn end(&self, close: Close, unread: Unread) -> Act<X> {
        let has_ended = self.reading == Reading::Ended;
        Act::End(End { close, has_ended, is_read: self.reading == Reading::Open, unread })
    }

    /// Whether the client has sent its last bytes.
    pub(crate) fn has_ended(&self) -> bool {
        self.reading == Reading::Ended
    }

    /// Ends an endless body, because the client has ended its input or the server stops.
    pub(super) fn hang_up(&mut self, service: &impl Service<X>) -> Act<X> {
        let State::Waiting { answer, .. } = &mut self.state else { return Act::Wait };
        if !answer.hang_up() {
            Act::Wait
        } else if self.reading == Reading::Ended {
            // Clients of endless streams do not end their side of the connection before they leave.
            Act::Drop
        } else {
            self.go_on_by_worker(service)
        }
    }

    /// The server stops: an idle connection ends, others finish first. A new one may still send a request.
    pub(crate) fn stop(&mut self, input: &Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        match self.state {
            State::Head(_) if self.is_new && self.reading == Reading::Open && input.rest().is_empty() => {
                self.deadline = self.deadline.min(service.now() + millis(FIRST_REQUEST_GRACE));
                Act::Wait
            }
            State::Head(_) if input.rest().is_empty() => self.end_cleanly(service),
            State::Waiting { .. } => self.hang_up(service),
            _ => Act::Wait,
        }
    }

    /// The connection is gone: the reader of its request body gets an error. Returns the response that was being sent.
    pub(crate) fn release(self) -> Option<Box<X::Answer>> {
        match self.state {
            State::Running(mut left) => {
                drop(left.abort(io::ErrorKind::ConnectionReset));
                None
            }
            State::Sending { blocked: answer, .. } => answer,
            State::Draining { answer, .. } | State::Waiting { answer, .. } => Some(answer),
            _ => None,
        }
    }

    /// The connection has become a WebSocket: returns the input received after the request.
    pub(crate) fn upgraded(&mut self) -> Vec<u8> {
        drop(self.state.take_unread());
        self.state = State::Head(Scan::default());
        self.take_input()
    }

    /// Received bytes that are not used yet.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn held(&self) -> usize {
        self.input.len()
    }

    /// Whether the input is the body of a request that is answered already, or is being answered.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn reads_body(&self) -> bool {
        match &self.state {
            State::Running(left) => !matches!(left, BodyLeft::Nothing),
            State::Draining { unread, .. } | State::Waiting { unread, .. } => unread.is_some(),
            _ => false,
        }
    }

    /// Its state, for the log of a simulation.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn describe(&self) -> String {
        format!(
            "{} {:?}, {} bytes of input, until {}",
            self.state.name(),
            self.reading,
            self.input.len(),
            self.deadline
        )
    }
}
