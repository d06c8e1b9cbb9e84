use std::sync::{Arc, Mutex};

use super::piped::Piped;
use crate::http1::ProtoError;
use crate::http1::conn::{Close, Exchange, Inline, Service};
use crate::http1::head::{Framing, LastHead, ParsedHead};
use crate::intake::Host;
use crate::intake::body_memory::{BodyMemory, Buffered};
use crate::io::clock::Millis;
use crate::io::sim::Random;
use crate::limits::Limits;

/// The types of the connection's payloads.
pub(crate) enum Carried {}

impl Exchange for Carried {
    /// Whether the connection ends after it.
    type Answer = bool;
    type Later = ();
    type Pipe = Arc<Mutex<Piped>>;
}

/// The server around the connection.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) limits: Limits,
    pub(super) memory: Arc<BodyMemory>,
    pub(super) last_head: LastHead,
    pub(super) now: Millis,
    pub(super) stopping: bool,
    /// Responses that were collected but not sent.
    pub(super) collected: usize,
    /// The targets of the requests that were answered or started, in order.
    pub(super) served: Vec<Vec<u8>>,
    /// Whether a request is being answered.
    pub(super) is_busy: bool,
    pub(super) has_rejected: bool,
}

impl World {
    pub(super) fn serve(&mut self, head: &ParsedHead, bytes: &[u8]) {
        let target = head.parts.target;
        self.served.push(bytes.get(target.start as usize..target.end as usize).unwrap_or_default().to_vec());
    }
}

impl Host for World {
    fn now(&self) -> Millis {
        self.now
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn buffer(&self) -> Buffered {
        Buffered::new(&self.memory)
    }

    fn has_spare_streams(&self) -> bool {
        self.now.is_multiple_of(2)
    }

    fn is_short_for_bodies(&self) -> bool {
        self.now.is_multiple_of(5)
    }

    fn count_timeout(&self) {}
}

impl Service<Carried> for World {
    fn keep_alive(&self) -> Millis {
        self.limits.keep_alive_timeout.as_millis() as Millis
    }

    fn heads(&mut self) -> (&mut LastHead, &Limits) {
        (&mut self.last_head, &self.limits)
    }

    fn inline(&mut self, head: Box<ParsedHead>, bytes: &[u8], _: bool) -> Inline<Carried> {
        assert!(!self.is_busy, "a request is answered during another one");
        assert!(head.framing == Framing::None, "a request is answered before its body was received");
        let choice = self.random.below(9);
        if choice > 5 {
            return Inline::Job(head);
        }
        self.serve(&head, bytes);
        match choice {
            0 if head.keep_alive => Inline::Later(()),
            1 => {
                self.collected = 0;
                Inline::Answer(Box::new(self.random.one_in(8)))
            }
            2 => {
                self.collected += 1;
                Inline::Enough
            }
            _ => {
                self.collected += 1;
                self.last_head.give_back(head);
                if self.random.one_in(20) { Inline::Last(Close::Clean { large: false }) } else { Inline::Answered }
            }
        }
    }

    fn has_output(&self) -> bool {
        self.collected > 0
    }

    fn reject(&mut self, _: ProtoError, _: bool) {
        assert!(!self.is_busy, "an error is answered during a request");
        self.has_rejected = true;
        self.collected += 1;
    }

    fn time_out(&mut self, _: ProtoError, _: bool) {
        self.collected += 1;
    }

    fn refuse(&mut self, _: bool) {
        self.has_rejected = true;
        self.collected += 1;
    }

    fn pipe(&self, begun: Buffered, rest: Option<u64>, _: bool) -> Arc<Mutex<Piped>> {
        // Bytes that were received before do not count against the window.
        let window = self.limits.body_window + begun.bytes.len();
        // As random as the rest: it follows from the time and the size of what came.
        let choices = (self.now ^ window as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Arc::new(Mutex::new(Piped { received: begun.bytes, window, rest, choices, ..Piped::default() }))
    }

    fn send_continue(&self) {
        assert!(!self.is_busy && self.collected == 0, "100 Continue in the middle of a response");
    }

    fn last_was_large(&self) -> bool {
        self.now.is_multiple_of(7)
    }
}
