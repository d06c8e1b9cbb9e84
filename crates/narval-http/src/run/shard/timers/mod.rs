//! The deadlines of a shard's connections.

pub(super) mod wheel;

use crate::io::clock::Millis;
use crate::io::driver::Driver;
use crate::limits::EXPIRY_POSTPONED_MAX;
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::shard::Shard;
use crate::run::shard::slots::Slot;

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
                if slot.due() <= now {
                    shard.look_for_client(slot);
                    shard.on(slot, Event::Tick);
                }
            });
        }
        self.due = due;
        if !self.resting.is_empty() {
            self.wake_listeners();
        }
    }

    /// Schedules the connection's deadlines in the timer wheel.
    #[inline(always)]
    pub(in crate::run::shard) fn watch(&mut self, slot: &Slot) {
        self.wheel.set(slot.token(), slot.due());
    }
}
