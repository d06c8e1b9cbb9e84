//! Answers whose source has no more for now: the connection waits, and no thread does.

use super::slot::Phase;
use super::{Shard, millis};
use crate::BodyWaker;
use crate::io::driver::{Driver, Token};
use crate::limits::SOURCE_WAIT_MAX;

use crate::run::connection::Connection;
use crate::run::transmit::Outgoing;

impl<D: Driver<Connection>> Shard<D> {
    /// Waits until there is more. The shard holds the lease.
    pub(super) fn wait_for_source(&mut self, token: Token, mut outgoing: Box<Outgoing>) {
        let Some(slot) = self.slots.get(token) else { return };
        let at_most = outgoing.wait(BodyWaker::new(&slot.connection));
        slot.phase = Phase::Waiting;
        slot.deadline = self.now + millis(at_most.min(SOURCE_WAIT_MAX)).max(1);
        let unwanted = self.stopping || slot.input_ended;
        slot.outgoing = Some(outgoing);
        if at_most.is_zero() {
            return self.ask_by_worker(token);
        }
        self.watch(token);
        self.receive(token);
        if unwanted {
            self.hang_up(token);
        }
    }

    /// A source says that it has more.
    pub(super) fn on_body_ready(&mut self, token: Token) {
        if self.slots.get(token).is_some_and(|slot| slot.phase == Phase::Waiting) {
            self.on_writable(token);
        }
    }

    /// The client sends no more, or the server stops: a body without an end of its own ends.
    pub(super) fn hang_up(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        if !slot.outgoing.as_mut().is_some_and(|outgoing| outgoing.hang_up()) {
            return;
        }
        if slot.input_ended {
            // Nobody who listens to an endless stream ends his side of the connection before he leaves.
            self.close(token);
        } else {
            self.ask_by_worker(token);
        }
    }

    /// By way of the queue: a source that changes its mind all the time must not keep the shard.
    fn ask_by_worker(&mut self, token: Token) {
        if let Some(outgoing) = self.slots.get(token).and_then(|slot| slot.outgoing.take()) {
            self.go_on_by_worker(token, outgoing);
        }
    }
}
