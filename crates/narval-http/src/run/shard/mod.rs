//! A shard: one thread that multiplexes many connections. It receives, answers from memory inline, hands other requests
//! to workers, and sends what a full socket did not take.
//!
//! A connection's protocol decides what it does next ([`Conn`](crate::run::http1::Conn),
//! [`ws::Stream`](crate::ws::Stream)): the shard passes it bytes, writability, answers and the time, and performs the
//! actions it returns.
//!
//! | file | contents |
//! |---|---|
//! | `event_loop.rs` | one turn: completions, messages, deadlines |
//! | `slots.rs` | the connections |
//! | `timers/` | their deadlines |
//! | `mail.rs` | messages from workers and other shards |
//! | `connections/http1.rs` | HTTP/1: performs a connection's actions |
//! | `delivery.rs`, `send.rs` | HTTP/1: answers until they are sent |
//! | `connections/http2.rs` | the same for HTTP/2 |
//! | `dispatch.rs` | hands requests of both to workers |
//! | `connections/handshake.rs`, `connections/websocket.rs` | TLS handshakes; WebSockets |
//! | `accept.rs`, `close.rs` | opening and closing connections |
//! | `room.rs` | closes connections that hold too much for their clients |
//! | `invariants.rs` | what tests and fuzzing check after each event |
//! | `departure.rs` | clients that leave before they are answered |

mod accept;
mod close;
mod connections;
mod delivery;
mod departure;
mod dispatch;
mod event_loop;
#[cfg(any(test, feature = "sim"))]
mod invariants;
mod mail;
mod room;
mod send;
mod slots;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use self::slots::{Slot, Slots};
use self::timers::wheel::TimerWheel;
use crate::io::clock::Millis;
use crate::io::driver::{Completion, Driver, Token};
use crate::io::socket::Socket;
use crate::message::panic_guard::panic_message;
use crate::run::connection::Connection;
use crate::run::mailbox::Mailbox;
use crate::run::server::state::ServerState;
use crate::run::service::Local;
use crate::run::transmit::Probes;

/// One shard.
pub(crate) struct Shard<D: Driver<Connection>> {
    local: Local,
    driver: D,
    mailbox: Arc<Mailbox>,
    /// The mailboxes of all shards, including this one: accepted connections are distributed to them.
    shards: Vec<Arc<Mailbox>>,
    next_shard: usize,
    listeners: Vec<Arc<Socket>>,
    /// Listeners paused after a failure, and until when.
    resting: Vec<(usize, Millis)>,
    slots: Slots,
    wheel: TimerWheel,
    due: Vec<Token>,
    /// Results of operations that completed immediately.
    done: Vec<Completion<D::Buffer>>,
    /// The buffer for decrypted TLS records.
    plaintext: Vec<u8>,
    /// The buffer for records of HTTP/2 connections, lent to the current one.
    wire: Vec<u8>,
    probes: Probes,
    /// Consecutive turns that have postponed deadlines.
    expiry_postponed: u32,
    /// Bytes that this thread may still send itself in this turn, for all connections.
    bytes_left: u64,
    /// HTTP/2 connections with more to send, in turn.
    http2_turns: VecDeque<Token>,
    dispatched: u64,
    stopping: bool,
    halted: bool,
}

impl<D: Driver<Connection>> Shard<D> {
    pub(crate) fn new(server: Arc<ServerState>, driver: D, mailbox: Arc<Mailbox>, shards: Vec<Arc<Mailbox>>) -> Self {
        let local = Local::new(server);
        Self {
            wheel: TimerWheel::new(local.now),
            local,
            driver,
            mailbox,
            shards,
            next_shard: 0,
            listeners: Vec::new(),
            resting: Vec::new(),
            slots: Slots::default(),
            due: Vec::new(),
            done: Vec::new(),
            plaintext: Vec::new(),
            wire: Vec::new(),
            probes: Probes::default(),
            expiry_postponed: 0,
            bytes_left: 0,
            http2_turns: VecDeque::new(),
            dispatched: 0,
            stopping: false,
            halted: false,
        }
    }

    /// Accepts connections from these sockets.
    pub(crate) fn listen(&mut self, listeners: Vec<Arc<Socket>>) -> io::Result<()> {
        for (at, socket) in listeners.iter().enumerate() {
            self.driver.listen(at, socket.clone())?;
        }
        self.listeners = listeners;
        Ok(())
    }

    /// Runs until the server has stopped.
    ///
    /// # Errors
    /// The driver failed, or there was a panic. Either way, all connections are closed.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            while self.turn()? {}
            Ok(())
        }));
        let left = catch_unwind(AssertUnwindSafe(|| self.leave()));
        let result = ran.unwrap_or_else(|panic| Err(io::Error::other(format!("a panic: {}", panic_message(&*panic)))));
        if left.is_err() {
            tracing::error!("a shard panicked when it closed its connections");
        }
        result
    }

    /// Passes `event` to a connection if it still exists, and then registers what the connection waits for.
    #[inline(always)]
    fn with(&mut self, token: Token, event: impl FnOnce(&mut Self, &mut Slot)) {
        let Some(mut slot) = self.slots.take(token) else { return };
        event(self, &mut slot);
        self.settle(&mut slot);
        if slot.is_gone {
            self.close(*slot);
        } else {
            self.slots.put(slot);
        }
    }

    /// What its connections are doing, for diagnosing a simulation that does not end.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn describe(&mut self) -> String {
        let mut slots = Vec::new();
        for token in self.slots.tokens() {
            let Some(slot) = self.slots.take(token) else { continue };
            let holder = slot.connection.lease.holder();
            slots.push(format!("{} ({holder:?}), now {}, until {}", slot.describe(), self.local.now, slot.deadline));
            self.slots.put(slot);
        }
        slots.join("; ")
    }
}
