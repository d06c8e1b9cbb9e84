//! How a connection ends: at deadlines, after answers, when the server stops.

use std::io;

use super::act::Act;
use super::state::{BodyLeft, Reading, State};
use super::{Conn, Input};
use crate::io::clock::millis;
use crate::io::over::Close;
use crate::limits::FIRST_REQUEST_GRACE;
use crate::run::closing::{End, Unread};
use crate::run::service::Service;

impl Conn {
    /// Called when the deadline may have passed.
    pub(super) fn tick(&mut self, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        match &self.state {
            _ if self.deadline > service.now => Act::Wait,
            State::Head(_) if input.rest().is_empty() => self.end_cleanly(service),
            State::Head(_) => {
                service.counters.timeouts.add(1);
                Act::Drop
            }
            State::Answering(BodyLeft::Nothing) => {
                self.deadline = service.now + service.keep_alive;
                Act::Wait
            }
            State::Answering(_) | State::Body(_) => self.check_body(input, service),
        }
    }

    /// Ends a connection whose last response is sent, or whose client has ended its input.
    pub(super) fn end_cleanly(&self, service: &Service<'_>) -> Act {
        self.end(Close::Clean { large: service.connection.last_was_large() }, None)
    }

    /// Ends a connection.
    pub(super) fn end(&self, close: Close, unread: Unread) -> Act {
        Act::End(End { close, is_read: self.reading == Reading::Open, unread })
    }

    /// The server stops: an idle connection ends, others finish first. A new one may still send a request.
    pub(super) fn stop(&mut self, input: &Input<'_>, service: &mut Service<'_>) -> Act {
        match self.state {
            State::Head(_) if self.is_new && self.reading == Reading::Open && input.rest().is_empty() => {
                self.deadline = self.deadline.min(service.now + millis(FIRST_REQUEST_GRACE));
                Act::Wait
            }
            State::Head(_) if input.rest().is_empty() => self.end_cleanly(service),
            _ => Act::Wait,
        }
    }

    /// The connection is gone: the reader of its request body gets an error.
    pub(crate) fn release(mut self) {
        if let State::Answering(left) = &mut self.state {
            drop(left.abort(io::ErrorKind::ConnectionReset));
        }
    }

    /// Whether the input is the body of a request that is answered already, or is being answered.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn reads_body(&self) -> bool {
        matches!(&self.state, State::Answering(left) if !matches!(left, BodyLeft::Nothing))
    }

    /// Its state, for the log of a simulation.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn describe(&self) -> String {
        format!("{} {:?}, until {}", self.state.name(), self.reading, self.deadline)
    }
}
