//! Finds out whether clients have left whose requests are being answered, and tells whoever works for them.

use super::Shard;
use super::slots::{Delivery, Protocol, Slot};
use crate::io::clock::millis;
use crate::io::driver::Driver;
use crate::limits::DEPARTURE_LOOK;
use crate::run::connection::Connection;

impl<D: Driver<Connection>> Shard<D> {
    /// The client of an HTTP/1 connection has left.
    pub(super) fn tell_departed(&self, slot: &Slot) {
        self.local.counters.panics.add(slot.departure.tell());
    }

    /// Nothing is received from a connection, so nothing tells that its client leaves: looks at it in a while if a
    /// request is being answered.
    #[inline(never)]
    pub(super) fn look_later(&mut self, slot: &mut Slot) {
        if !may_be_left(slot) {
            slot.look_at = 0;
        } else {
            // Absolute: other events do not postpone it.
            if slot.look_at == 0 {
                slot.look_at = self.local.now + millis(DEPARTURE_LOOK);
            }
        }
        self.watch(slot);
    }

    /// The time of the last look has come, or another deadline.
    pub(super) fn look_for_client(&mut self, slot: &mut Slot) {
        if slot.look_at == 0 || slot.look_at > self.local.now || !may_be_left(slot) {
            return;
        }
        slot.look_at = 0;
        // Nothing may be sent in the middle of an answer.
        let is_begun = matches!(slot.delivery, Delivery::AtSource(_));
        let may_be_probed = slot.has_ended && !is_begun && slot.http1().is_some() && slot.departure.looked();
        if may_be_probed {
            slot.connection.probe();
        }
        if slot.connection.socket.is_broken() {
            self.on_broken(slot, &std::io::ErrorKind::ConnectionReset.into());
        }
    }
}

/// Whether somebody may work for the client of a connection without noticing that it has left.
fn may_be_left(slot: &Slot) -> bool {
    match &slot.protocol {
        // Neither a job nor a source that the answer waits for sends anything meanwhile.
        Protocol::Http1(_) => matches!(slot.delivery, Delivery::Away | Delivery::AtSource(_)),
        Protocol::Http2(http2) => slot.has_ended && http2.conn.is_busy(),
        Protocol::ProxyHeader | Protocol::Handshake => false,
        Protocol::WebSocket(_) | Protocol::Closing(_) => false,
    }
}
