//! The deadlines of a shard's connections.

pub(super) mod wheel;

use crate::io::clock::{Millis, millis};
use crate::io::driver::Driver;
use crate::limits::EXPIRY_POSTPONED_MAX;
use crate::run::connection::Connection;
use crate::run::lease::Holder;
use crate::run::shard::Shard;
use crate::run::shard::slots::{Protocol, Slot};

impl<D: Driver<Connection>> Shard<D> {
    /// Calls the timers of connections that are due.
    ///
    /// All input that arrived before `now` has been handled, unless there was more than one turn takes.
    #[inline]
    pub(in crate::run::shard) fn expire(&mut self, now: Millis) {
        if self.wheel.is_behind(now) && self.driver.has_more() && self.expiry_postponed < EXPIRY_POSTPONED_MAX {
            self.expiry_postponed += 1;
            return;
        }
        self.expiry_postponed = 0;
        let mut due = std::mem::take(&mut self.due);
        self.wheel.take_due(now, &mut due);
        for token in due.drain(..) {
            // The deadline may have been postponed since it was scheduled.
            self.with(token, |shard, slot| {
                if slot.deadline <= now {
                    shard.on_deadline(slot);
                }
            });
        }
        self.due = due;
        if !self.resting.is_empty() {
            self.wake_listeners();
        }
    }

    fn on_deadline(&mut self, slot: &mut Slot) {
        self.look_for_client(slot);
        match &mut slot.protocol {
            Protocol::Http1(_) => {
                self.look_at_delivery(slot);
                self.http1(slot, &[], |conn, input, at| conn.tick(input, at));
            }
            Protocol::Http2(_) => self.http2(slot, |conn, at| conn.tick(at)),
            Protocol::WebSocket(_) => self.look_at_websocket(slot, false),
            Protocol::Closing(_) => self.look_at_closing(slot),
            Protocol::ProxyHeader => {
                self.local.counters.timeouts.add(1);
                slot.is_gone = true;
            }
            Protocol::Handshake => {
                self.local.counters.timeouts.add(1);
                slot.has_ended = true;
                slot.deadline = self.local.now + millis(self.local.server.limits.keep_alive_timeout);
                slot.is_gone = slot.connection.lease.wait_for() == Holder::Shard;
            }
        }
    }

    /// Schedules the connection's deadline in the timer wheel.
    #[inline(always)]
    pub(in crate::run::shard) fn watch(&mut self, slot: &Slot) {
        self.wheel.set(slot.token(), slot.deadline);
    }
}
