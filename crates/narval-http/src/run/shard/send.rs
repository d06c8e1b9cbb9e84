//! Sends the gathered output of a connection, and pieces of larger responses.

use std::io;

use super::Shard;
use super::slots::Slot;
use crate::io::clock::Millis;
use crate::io::driver::{Completion, Driver, Op};
use crate::io::over::Next;
use crate::limits::{BYTES_PER_TURN, LARGE_ANSWER, SENDFILE_MIN, SHARD_DRAIN_MAX, SHARD_FILE_BYTES_PER_TURN};
use crate::run::connection::Connection;
use crate::run::send_piece::send_piece;
use crate::run::transmit::{Outgoing, Probes};

/// The result of sending gathered output.
pub(super) enum Sent {
    All,
    /// The driver sends it, and will report completion.
    Later,
    /// The socket took a part; this is the rest.
    Blocked(Box<Outgoing>),
    /// The connection is broken.
    Broken,
}

impl<D: Driver<Connection>> Shard<D> {
    /// Sends the gathered output of a connection.
    #[inline(always)]
    pub(super) fn send(&mut self, slot: &mut Slot) -> Sent {
        if let Err(error) = slot.connection.seal(&mut self.local.out) {
            return self.unsent(slot, &error);
        }
        if !self.local.out.is_empty() {
            slot.connection.answered(self.local.now, self.local.out.len() as u64 > LARGE_ANSWER);
        }
        self.send_sealed(slot)
    }

    #[inline(always)]
    pub(super) fn send_sealed(&mut self, slot: &mut Slot) -> Sent {
        let token = slot.token();
        while !self.local.out.is_empty() {
            match self.driver.send_now(token, &mut self.local.out) {
                Some(Ok(())) => continue,
                Some(Err(error)) => return self.unsent(slot, &error),
                None => {}
            }
            let bytes = self.local.out.memory.capacity() + self.local.out.tail.len();
            match self.driver.submit(Op::Send(token, std::mem::take(&mut *self.local.out))) {
                Some(Completion::Sent { result, buf, .. }) => {
                    *self.local.out = buf;
                    if let Err(error) = result {
                        return self.unsent(slot, &error);
                    }
                }
                Some(_) | None => {
                    slot.held.set(bytes);
                    return Sent::Later;
                }
            }
        }
        self.local.clear_out();
        Sent::All
    }

    /// The socket took nothing: it is full, or broken.
    #[cold]
    pub(super) fn unsent(&mut self, slot: &Slot, error: &io::Error) -> Sent {
        let buf = std::mem::take(&mut *self.local.out);
        if error.kind() != io::ErrorKind::WouldBlock {
            tracing::trace!(%error, "a connection broke while a response was sent");
            return Sent::Broken;
        }
        let length = buf.len() as u64;
        let mut outgoing = Outgoing::sealed(buf, length);
        (outgoing.keep_alive, outgoing.is_recorded) = (true, true);
        outgoing.count_held(slot.connection.holding());
        Sent::Blocked(Box::new(outgoing))
    }

    /// Sends a piece of a connection's response. `None` if the next bytes may block.
    pub(super) fn send_next(&mut self, slot: &Slot, outgoing: &mut Outgoing) -> Option<Next> {
        let (connection, now) = (&slot.connection, self.local.now);
        // The rest of gathered responses is in memory.
        let is_memory = outgoing.is_recorded;
        let budget = match is_memory {
            true => BYTES_PER_TURN,
            false => budget_of_shard(outgoing, connection, &mut self.probes, now).filter(|_| self.bytes_left > 0)?,
        };
        // Sealed bytes that are not sent count with their TLS overhead, so the number may have decreased.
        let had = outgoing.sent();
        let next = send_piece(outgoing, connection, budget, &self.local.server, &self.local.counters);
        self.bytes_left = self.bytes_left.saturating_sub(outgoing.sent().saturating_sub(had));
        match next {
            Next::Over(over) => connection.answered(now, over.large),
            Next::AtOnce if !is_memory => {
                budget_of_shard(outgoing, connection, &mut self.probes, now)?;
            }
            Next::AtOnce | Next::AtRoom | Next::AtSource => {}
        }
        Some(next)
    }

    /// Sends an inline response whose body is unlikely to block. Otherwise a worker would be woken, and often the shard
    /// again at the end, which costs as much as sending 100 KB. `None` if it may block.
    pub(super) fn send_at_once(&mut self, slot: &Slot, outgoing: &mut Outgoing, files_sent: &mut u64) -> Option<Next> {
        if *files_sent >= SHARD_FILE_BYTES_PER_TURN || self.bytes_left == 0 {
            return None;
        }
        let (connection, now) = (&slot.connection, self.local.now);
        let budget = outgoing.at_hand(connection, &mut self.probes, now)?;
        if !outgoing.keep_alive {
            connection.socket.cork(true);
        }
        let next = send_piece(outgoing, connection, budget, &self.local.server, &self.local.counters);
        self.bytes_left = self.bytes_left.saturating_sub(outgoing.sent());
        if let Next::Over(over) = next {
            connection.answered(now, over.large);
            *files_sent += outgoing.sent();
        }
        Some(next)
    }
}

/// How much of a response the shard may send itself; `None` if that may block.
fn budget_of_shard(outgoing: &Outgoing, connection: &Connection, probes: &mut Probes, now: Millis) -> Option<u64> {
    if outgoing.is_quick(connection) {
        return Some(BYTES_PER_TURN);
    }
    outgoing.next_at_hand(connection, SHARD_DRAIN_MAX, probes, now)
}

const _: () = assert!(SENDFILE_MIN > LARGE_ANSWER, "a file sent from the shard is a large answer");
