//! One turn of a shard: completions, messages, deadlines.

use std::io;

use super::Shard;
use crate::http1::date;
use crate::io::clock::Millis;
use crate::io::driver::{AT_ONCE, Completion, Driver, Op};
use crate::limits::SHARD_BYTES_PER_TURN;
use crate::run::connection::Connection;
use crate::run::event::Event;

/// Completions after which the memory for bodies is checked again: together they take half a megabyte of it at most.
const RECEIVE_MAX_EVERY: u64 = 8;

impl<D: Driver<Connection>> Shard<D> {
    /// Waits for events, and handles them. Returns `false` when the shard has stopped.
    ///
    /// The path from here to the system calls of a request is inlined: the kernel's own calls evict the return-address
    /// predictor, so each return after a system call costs 20 to 30 ns. With ten of them, a request took 0.15 µs
    /// longer.
    #[inline(always)]
    pub(crate) fn turn(&mut self) -> io::Result<bool> {
        if self.halted || (self.stopping && self.slots.len() == 0) {
            return Ok(false);
        }
        let until = self.wait_until();
        // Deadlines are compared with the time before the wait, because all input that arrived by then is handled in
        // this turn. A process that was suspended finds that time has passed, and input that had arrived in time.
        let before = self.local.now;
        self.driver.wait(before, until)?;
        self.local.counters.polls.add(1);
        self.local.spent = None;
        self.local.now = self.local.server.clock.now();
        if self.local.now >= self.local.date_until {
            self.local.date_until = self.local.now + date::set();
        }
        let (mut completions, mut messages) = (0_u64, 0);
        loop {
            if completions.is_multiple_of(RECEIVE_MAX_EVERY) {
                self.driver.receive_at_most(self.local.receive_max());
            }
            let Some(completion) = self.driver.next() else { break };
            match completion {
                Completion::Received { token, result: Ok(buffer) } => {
                    self.with(token, |shard, slot| shard.on_received(slot, &buffer));
                    self.driver.recycle(buffer);
                }
                other => self.complete(other),
            }
            while let Some(completion) = self.done.pop() {
                self.complete(completion);
            }
            completions += 1;
        }
        while let Some(message) = self.mailbox.take() {
            self.on_message(message);
            messages += 1;
        }
        // A new turn, in which the rest of the last one is the first.
        self.bytes_left = SHARD_BYTES_PER_TURN;
        if !self.http2_turns.is_empty() {
            self.send_http2_in_turn();
        }
        self.local.counters.completions.add(completions);
        self.local.counters.messages.add(messages);
        self.expire(before);
        while let Some(completion) = self.done.pop() {
            self.complete(completion);
        }
        self.check_room();
        Ok(true)
    }

    fn wait_until(&mut self) -> Option<Millis> {
        if !self.http2_turns.is_empty() {
            return Some(AT_ONCE);
        }
        let due = self.wheel.next_due();
        if self.resting.is_empty() {
            return due;
        }
        self.resting.iter().map(|(_, until)| *until).chain(due).min()
    }

    fn complete(&mut self, completion: Completion<D::Buffer>) {
        match completion {
            Completion::Accepted { listener, result } => self.on_accepted(listener, result),
            Completion::Received { token, result: Ok(buffer) } => {
                self.with(token, |shard, slot| shard.on_received_again(slot, &buffer));
                self.driver.recycle(buffer);
            }
            Completion::Received { token, result: Err(error) } => {
                self.with(token, |shard, slot| shard.on_broken(slot, &error));
            }
            Completion::Sent { token, result, buf } => {
                self.with(token, |shard, slot| shard.on_sent(slot, result, buf));
            }
            Completion::Writable { token } => self.with(token, |shard, slot| {
                slot.awaits_room = false;
                shard.on(slot, Event::Writable);
            }),
            Completion::Woken => {}
        }
    }

    /// Starts an operation on a connection.
    #[inline(always)]
    pub(super) fn submit(&mut self, op: Op) {
        if let Some(completion) = self.driver.submit(op) {
            self.done.push(completion);
        }
    }
}
