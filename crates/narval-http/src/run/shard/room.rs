//! Makes room when connections hold too much for their clients: closes those that hold most.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Shard;
use super::slots::Protocol;
use crate::io::driver::{Driver, Token};
use crate::io::output_memory::class_of;
use crate::run::connection::Connection;
use crate::run::job::Job;
use crate::run::mailbox::Message;

impl<D: Driver<Connection>> Shard<D> {
    /// Called at the end of every turn: whatever was added to what connections hold leads to one.
    #[inline(always)]
    pub(super) fn check_room(&mut self) {
        if self.local.server.output_memory.is_short() {
            self.make_room();
        }
        if self.local.server.output_memory.wants_trim() && self.local.server.output_memory.trim_is_due() {
            self.local.server.pool.push_continued(Job::GiveBack);
        }
    }

    /// Closes connections of this shard while they are among those of all shards that hold most.
    #[cold]
    fn make_room(&mut self) {
        let memory = self.local.server.output_memory.clone();
        let mut mine = self.holding();
        // Of those that hold about the same, the one whose write deadline is next has read nothing for the longest time.
        mine.sort_unstable_by_key(|(class, deadline, _)| (*class, Reverse(*deadline)));
        let mut closed = 0;
        while !memory.has_room()
            && let Some((_, _, token)) = mine.pop_if(|(class, ..)| *class >= memory.heaviest())
        {
            memory.count_closed();
            closed += 1;
            self.with(token, |shard, slot| {
                if let Protocol::WebSocket(stream) = &slot.protocol {
                    stream.discard(&shard.local.server.pool);
                }
                slot.connection.socket.abort();
                slot.is_gone = true;
            });
        }
        if closed > 0 && memory.trim_is_due() {
            self.local.server.pool.push_continued(Job::GiveBack);
        }
        if closed > 0 {
            let used = memory.usage().used;
            tracing::info!(
                closed,
                used,
                "closed the connections that hold most: clients do not read what they asked for"
            );
        }
        if memory.has_room() {
            return memory.is_settled();
        }
        // Those that hold most are of other shards. They are asked once, and again whenever that changes: a job that still
        // holds much of a closed connection must not have the shards ask each other all the time.
        if closed > 0 || memory.is_asked_first() {
            for shard in self.shards.iter().filter(|shard| !Arc::ptr_eq(shard, &self.mailbox)) {
                shard.post(Message::MakeRoom);
            }
        }
    }

    /// The connections of this shard that hold anything, with the class of that and their deadline.
    fn holding(&mut self) -> Vec<(u32, u64, Token)> {
        let mut holding = Vec::new();
        for token in self.slots.tokens() {
            let Some(slot) = self.slots.take(token) else { continue };
            let bytes = slot.connection.holding().bytes();
            if bytes > 0 {
                holding.push((class_of(bytes), slot.due(), token));
            }
            self.slots.put(slot);
        }
        holding
    }
}
