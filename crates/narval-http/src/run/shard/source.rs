//! Answers whose source has no more for now: the connection waits, and no thread does.

use super::slot::{Phase, Unread};
use super::{Shard, millis};
use crate::BodyWaker;
use crate::io::driver::{Driver, Token};
use crate::limits::SOURCE_WAIT_MAX;

use crate::run::connection::Connection;
use crate::run::transmit::Outgoing;

impl<D: Driver<Connection>> Shard<D> {
    /// Waits until there is more. The shard holds the lease.
    pub(super) fn wait_for_source(&mut self, token: Token, mut outgoing: Box<Outgoing>, unread: Unread) {
        let Some(slot) = self.slots.get(token) else { return };
        let at_most = outgoing.wait(BodyWaker::new(&slot.connection));
        slot.phase = Phase::Waiting { outgoing, unread };
        slot.deadline = self.now + millis(at_most.min(SOURCE_WAIT_MAX)).max(1);
        let unwanted = self.stopping || slot.has_ended();
        if at_most.is_zero() {
            // By way of the queue: a source that changes its mind all the time must not keep the shard.
            return self.go_on_by_worker(token);
        }
        self.watch(token);
        self.receive(token);
        if unwanted {
            self.hang_up(token);
        }
    }

    /// A source has more.
    pub(super) fn on_body_ready(&mut self, token: Token) {
        if self.slots.get(token).is_some_and(|slot| matches!(slot.phase, Phase::Waiting { .. })) {
            self.on_writable(token);
        }
    }

    /// The client sends no more, or the server stops: a body without an end of its own ends.
    pub(super) fn hang_up(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let has_ended = slot.has_ended();
        let Phase::Waiting { outgoing, .. } = &mut slot.phase else { return };
        if !outgoing.hang_up() {
            return;
        }
        if has_ended {
            // Clients of endless streams do not end their side of the connection before they leave.
            self.close(token);
        } else {
            self.go_on_by_worker(token);
        }
    }
}
