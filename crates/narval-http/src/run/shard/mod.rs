//! A shard: one thread that multiplexes many connections. It receives, answers inline what can be answered from memory,
//! hands the rest to workers, and sends on what a socket did not take at once.

mod accept;
mod body;
mod close;
mod handshake;
mod serve;
mod slot;
mod source;
#[cfg(test)]
mod tests;
mod websocket;

use std::any::Any;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use self::body::feed_unread;
use self::slot::{BodyLeft, Follow, Phase, Scan, Slots, Then, Unread};
use crate::http1::date;
use crate::http1::head::LastHead;
use crate::io::clock::{Millis, millis};
use crate::io::driver::{Completion, Driver, Op, Token};
use crate::io::out_buf::OutBuf;
use crate::io::socket::Socket;
use crate::limits::{BYTES_PER_TURN, HANDSHAKE_INPUT_MAX, SHARD_DRAIN_MAX, SHARD_FILE_BYTES_IN_ALL};
use crate::message::response::Held;
use crate::observe::counters::ThreadCounters;
use crate::run::connection::{Connection, TxLease};
use crate::run::job::Job;
use crate::run::lease::Holder;
use crate::run::mailbox::Close;
use crate::run::mailbox::{Mailbox, Message};
use crate::run::send_piece::{Next, Over, send_piece};
use crate::run::server_state::ServerState;
use crate::run::timers::TimerWheel;
use crate::run::transmit::{Outgoing, Probes};

/// One shard.
pub(crate) struct Shard<D: Driver<Connection>> {
    server: Arc<ServerState>,
    counters: Arc<CachePadded<ThreadCounters>>,
    driver: D,
    mailbox: Arc<Mailbox>,
    /// The mailboxes of all shards, this one included: those that accepted connections are dealt out to.
    shards: Vec<Arc<Mailbox>>,
    next_shard: usize,
    listeners: Vec<Arc<Socket>>,
    /// Listeners that rest after a failure, and until when.
    resting: Vec<(usize, Millis)>,
    slots: Slots,
    wheel: TimerWheel,
    due: Vec<Token>,
    now: Millis,
    /// Where inline answers are put together.
    out: Option<Box<OutBuf>>,
    /// The last answer that was encoded. A count that is changed right behind a copy waits for the copy to reach the cache:
    /// it is dropped after the poll.
    spent: Option<Held>,
    /// Where the records of TLS connections are opened into.
    plaintext: Vec<u8>,
    probes: Probes,
    /// The last head that may come again.
    last_head: LastHead,
    /// Until then the thread's `Date` line is that of the present second.
    date_until: Millis,
    /// As the engine's limits have it.
    keep_alive_timeout: Millis,
    /// Turns in a row that have left deadlines to the next one.
    expiry_postponed: u32,
    /// Bytes of files that this thread sends itself in this turn, for all connections.
    file_bytes_left: u64,
    inline_calls: u64,
    dispatched: u64,
    stopping: bool,
    halted: bool,
}

impl<D: Driver<Connection>> Shard<D> {
    pub(crate) fn new(server: Arc<ServerState>, driver: D, mailbox: Arc<Mailbox>, shards: Vec<Arc<Mailbox>>) -> Self {
        let now = server.clock.now();
        Self {
            counters: server.counters.thread(),
            keep_alive_timeout: millis(server.limits.keep_alive_timeout),
            server,
            driver,
            mailbox,
            shards,
            next_shard: 0,
            listeners: Vec::new(),
            resting: Vec::new(),
            slots: Slots::default(),
            wheel: TimerWheel::new(now),
            due: Vec::new(),
            now,
            out: None,
            spent: None,
            plaintext: Vec::new(),
            probes: Probes::default(),
            last_head: LastHead::default(),
            date_until: 0,
            expiry_postponed: 0,
            file_bytes_left: 0,
            inline_calls: 0,
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
        let result = ran.unwrap_or_else(|panic| Err(io::Error::other(format!("a panic: {}", message_of(&*panic)))));
        if left.is_err() {
            tracing::error!("a shard panicked when it closed its connections");
        }
        result
    }

    /// Waits for something to do, and does it. False: the shard has stopped.
    ///
    /// The way from here to the system calls of a request and back is inlined: the kernel's own calls use up the processor's memory
    /// of where to return to, and each return behind a system call costs 20 to 30 ns. With ten of them a request took 0.15 µs more.
    #[inline(always)]
    pub(crate) fn turn(&mut self) -> io::Result<bool> {
        if self.halted || (self.stopping && self.slots.len() == 0) {
            return Ok(false);
        }
        let until = self.wait_until();
        // What came in before that is seen in this turn, and deadlines are judged by it: a process that was stopped finds time gone by
        // and input that came in time.
        let before = self.now;
        self.driver.wait(before, until)?;
        self.counters.polls.add(1);
        self.spent = None;
        self.file_bytes_left = SHARD_FILE_BYTES_IN_ALL;
        self.now = self.server.clock.now();
        if self.now >= self.date_until {
            self.date_until = self.now + date::set();
        }
        let (mut completions, mut messages) = (0, 0);
        while let Some(completion) = self.driver.next() {
            match completion {
                Completion::Received { token, result: Ok(buffer) } => {
                    self.on_received(token, &buffer);
                    self.driver.recycle(buffer);
                }
                other => self.complete(other),
            }
            completions += 1;
        }
        while let Some(message) = self.mailbox.take() {
            self.on_message(message);
            messages += 1;
        }
        self.counters.completions.add(completions);
        self.counters.messages.add(messages);
        self.expire(before);
        Ok(true)
    }

    /// What its connections are doing, for a simulation that does not end.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn describe(&mut self) -> String {
        let tokens = self.slots.tokens();
        let slots = tokens.into_iter().filter_map(|token| {
            let slot = self.slots.get(token)?;
            let (phase, now, holder) = (&slot.phase, self.now, slot.connection.lease.holder());
            Some(format!("{phase:?}, {:?} ({holder:?}), now {now}, until {}", slot.reading, slot.deadline))
        });
        slots.collect::<Vec<_>>().join("; ")
    }

    fn wait_until(&mut self) -> Option<Millis> {
        let due = self.wheel.next_due();
        if self.resting.is_empty() {
            return due;
        }
        self.resting.iter().map(|(_, until)| *until).chain(due).min()
    }

    fn complete(&mut self, completion: Completion<D::Buffer>) {
        match completion {
            Completion::Accepted { listener, result } => self.on_accepted(listener, result),
            Completion::Received { token, result } => match result {
                Ok(buffer) => {
                    self.received_again(token, &buffer);
                    self.driver.recycle(buffer);
                }
                Err(error) => self.on_broken(token, &error),
            },
            Completion::Sent { token, result, buf } => self.on_sent(token, result, buf),
            Completion::Writable { token } => self.on_writable(token),
            Completion::Woken => {}
        }
    }

    fn submit(&mut self, op: Op) {
        if let Some(completion) = self.driver.submit(op) {
            self.complete(completion);
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Accepted { socket, peer } => self.open(socket, peer),
            Message::Finished { token, close } => self.on_finished(token, close),
            Message::Outgoing { token, outgoing } => self.on_outgoing(token, outgoing),
            Message::Handshaken { token, plaintext } => self.on_handshaken(token, plaintext),
            Message::BodyWanted { token } => self.receive(token),
            Message::BodyReady { token } => self.on_body_ready(token),
            Message::Upgraded { token, socket } => self.on_upgraded(token, socket),
            Message::WebSocket { token } => self.look_at_websocket(token, false),
            Message::Stop => self.stop(),
            Message::Halt => self.halted = true,
        }
    }

    #[inline(never)]
    fn received_again(&mut self, token: Token, bytes: &[u8]) {
        self.on_received(token, bytes);
    }

    /// Bytes came in, or the end of them (none).
    #[inline(always)]
    fn on_received(&mut self, token: Token, bytes: &[u8]) {
        let Some(slot) = self.slots.get(token) else { return };
        slot.receiving = false;
        if bytes.is_empty() {
            return self.on_input_end(token);
        }
        self.counters.bytes_received.add(bytes.len() as u64);
        if slot.connection.tls.is_some() {
            return self.on_ciphertext(token, bytes);
        }
        self.on_plaintext(token, bytes);
    }

    /// The client has sent something.
    #[inline(always)]
    fn on_plaintext(&mut self, token: Token, bytes: &[u8]) {
        let Some(slot) = self.slots.get(token) else { return };
        match &mut slot.phase {
            // Nothing is said before the handshake is over.
            Phase::Handshake => {}
            Phase::Head(_) => self.serve(token, bytes),
            Phase::Body(_) => self.on_body(token, bytes),
            Phase::Running(BodyLeft::Streamed { .. } | BodyLeft::Unread(_)) => self.on_body(token, bytes),
            Phase::Running(BodyLeft::Nothing) => {
                if slot.connection.lease.wait_for() == Holder::Shard {
                    slot.phase = Phase::Head(Scan::default());
                    self.serve_again(token, bytes);
                } else {
                    slot.input.extend_from_slice(bytes);
                }
            }
            Phase::Draining { unread: unread @ Some(_), .. }
            | Phase::Waiting { unread: unread @ Some(_), .. }
            | Phase::Lingering { unread: unread @ Some(_), .. } => feed_unread(unread, bytes, &self.server.limits),
            Phase::Sending { .. } | Phase::Draining { .. } | Phase::Waiting { .. } => {
                slot.input.extend_from_slice(bytes)
            }
            Phase::WebSocket { .. } => return self.on_websocket_bytes(token, bytes),
            Phase::Lingering { discarded, .. } => {
                *discarded += bytes.len();
                if *discarded > self.server.limits.linger_bytes_max {
                    return self.close(token);
                }
            }
        }
        self.receive(token);
    }

    /// Asks for more input, if there is any use for it now.
    #[inline(always)]
    fn receive(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        if slot.receiving || slot.has_ended() {
            return;
        }
        let wanted = match &mut slot.phase {
            Phase::Handshake => slot.input.len() < HANDSHAKE_INPUT_MAX,
            Phase::Head(_) | Phase::Body(_) | Phase::Lingering { .. } => true,
            Phase::Running(left) => match left {
                BodyLeft::Nothing => slot.input.is_empty(),
                BodyLeft::Unread(_) => true,
                BodyLeft::Streamed { incoming, pipe } => {
                    let has_room = pipe.has_room();
                    if !has_room {
                        incoming.pause();
                    }
                    has_room
                }
            },
            Phase::Sending { .. } => slot.input.is_empty(),
            Phase::Draining { unread, .. } | Phase::Waiting { unread, .. } => slot.input.is_empty() || unread.is_some(),
            Phase::WebSocket { stream, .. } => stream.wants_input(),
        };
        if wanted {
            slot.receiving = true;
            self.submit(Op::Receive(token));
        }
    }

    /// The client sends no more. It may still read.
    fn on_input_end(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        slot.end_reading(io::ErrorKind::UnexpectedEof);
        match slot.phase {
            Phase::Head(_) | Phase::Body(_) => self.end_cleanly(token),
            Phase::Lingering { .. } => self.close(token),
            Phase::Running(_) | Phase::Handshake => {
                if slot.connection.lease.wait_for() == Holder::Shard {
                    self.end_cleanly(token);
                }
            }
            Phase::Sending { .. } | Phase::Draining { .. } => {}
            Phase::Waiting { .. } => self.hang_up(token),
            Phase::WebSocket { .. } => self.on_websocket_end(token),
        }
    }

    /// Receiving failed: the connection is gone.
    fn on_broken(&mut self, token: Token, error: &io::Error) {
        tracing::trace!(%error, "a connection broke");
        let Some(slot) = self.slots.get(token) else { return };
        slot.receiving = false;
        slot.end_reading(io::ErrorKind::ConnectionReset);
        match slot.phase {
            Phase::WebSocket { .. } => self.on_websocket_end(token),
            // A job that runs finds out when it sends.
            Phase::Running(_) | Phase::Handshake if slot.connection.lease.wait_for() == Holder::Job => {}
            _ => self.close(token),
        }
    }

    /// A job is done, and the lease is back.
    fn on_finished(&mut self, token: Token, close: Option<Close>) {
        let Some(slot) = self.slots.get(token) else { return };
        let unread = slot.take_back_lease();
        self.after_answer(token, close.map_or(Then::Next, Then::Close), unread);
    }

    /// A job could not send everything, and the lease is back.
    fn on_outgoing(&mut self, token: Token, outgoing: Box<Outgoing>) {
        let Some(slot) = self.slots.get(token) else { return };
        let unread = slot.take_back_lease();
        if outgoing.is_waiting() {
            return self.wait_for_source(token, outgoing, unread);
        }
        self.drain(token, outgoing, unread);
    }

    /// Lets an answer wait for the socket to take more.
    fn drain(&mut self, token: Token, outgoing: Box<Outgoing>, unread: Unread) {
        self.await_room(token, outgoing, |outgoing| Phase::Draining { outgoing, unread });
    }

    /// Waits for the socket to take more of `outgoing`, which goes into the phase.
    fn await_room(&mut self, token: Token, mut outgoing: Box<Outgoing>, phase: impl FnOnce(Box<Outgoing>) -> Phase) {
        let Some(slot) = self.slots.get(token) else { return };
        // It may be over already; then the wheel looks at it next.
        slot.deadline = outgoing.window(self.now).began + millis(self.server.limits.write_stall_timeout);
        slot.phase = phase(outgoing);
        self.watch(token);
        self.submit(Op::AwaitWritable(token));
    }

    /// The socket takes more, or the source has more. What is in memory the shard sends itself; what may have to be read goes
    /// to a worker.
    fn on_writable(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let (outgoing, is_memory) = match &mut slot.phase {
            Phase::WebSocket { .. } => return self.look_at_websocket(token, true),
            Phase::Sending { blocked: Some(outgoing), .. } => (outgoing, true),
            Phase::Draining { outgoing, .. } | Phase::Waiting { outgoing, .. } => (outgoing, false),
            _ => return,
        };
        let budget = match is_memory {
            true => Some(BYTES_PER_TURN),
            false => budget_of_shard(outgoing, &slot.connection, &mut self.probes, self.now)
                .filter(|_| self.file_bytes_left > 0),
        };
        let Some(budget) = budget else { return self.go_on_by_worker(token) };
        // What was sealed and not sent counts with what TLS adds to it: there may be less now than before.
        let had = outgoing.sent();
        let next = send_piece(outgoing, &slot.connection, budget, &self.server, &self.counters);
        self.file_bytes_left = self.file_bytes_left.saturating_sub(outgoing.sent().saturating_sub(had));
        match next {
            Next::Over(over) => self.after_outgoing(token, over),
            Next::AtOnce
                if !is_memory && budget_of_shard(outgoing, &slot.connection, &mut self.probes, self.now).is_none() =>
            {
                self.go_on_by_worker(token);
            }
            // There may be room for more: only a full socket tells when it has room again.
            Next::AtRoom | Next::AtOnce => match slot.phase.take_waiting() {
                Some((outgoing, unread)) => self.drain(token, outgoing, unread),
                None => self.submit(Op::AwaitWritable(token)),
            },
            Next::AtSource => {
                if let Some((outgoing, unread)) = slot.phase.take_outgoing() {
                    self.wait_for_source(token, outgoing, unread);
                }
            }
        }
    }

    /// What waited for the socket is sent, or was aborted.
    fn after_outgoing(&mut self, token: Token, over: Over) {
        let Some(slot) = self.slots.get(token) else { return };
        slot.connection.answered(self.now, over.large);
        let (then, unread) = match mem::replace(&mut slot.phase, Phase::Head(Scan::default())) {
            Phase::Sending { then, .. } => (then, None),
            Phase::Draining { unread, .. } | Phase::Waiting { unread, .. } => (Then::Next, unread),
            _ => (Then::Next, None),
        };
        self.after_answer(token, over.close.map_or(then, Then::Close), unread);
    }

    /// Has a worker make and send the next piece of an answer.
    fn go_on_by_worker(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let Some((outgoing, unread)) = slot.phase.take_outgoing() else { return };
        if let Some(lease) = self.lease_to_job(token, unread.into()) {
            self.server.pool.push_continued(Job::Continue { lease, outgoing });
        }
    }

    /// Moves the lease into a job that is about to be queued. Where something waits for its end, it will send a message.
    fn lease_to_job(&mut self, token: Token, left: BodyLeft) -> Option<TxLease> {
        let stopping = self.stopping;
        let slot = self.slots.get(token)?;
        slot.phase = Phase::Running(left);
        let lease = TxLease::dispatch(&slot.connection);
        if stopping || slot.has_ended() || !slot.input.is_empty() {
            slot.connection.lease.wait_for();
        }
        Some(lease)
    }

    /// Everything made for this connection is sent, and the shard holds the lease: close, or go on with the next request.
    fn after_answer(&mut self, token: Token, then: Then, unread: Unread) {
        let stopping = self.stopping;
        let Some(slot) = self.slots.get(token) else { return };
        match slot.follow(then, stopping) {
            Follow::Late(late) => self.wait_for_late(token, *late),
            Follow::End(close) => self.end(token, close, unread),
            Follow::Head => {
                slot.phase = Phase::Head(Scan::default());
                slot.deadline = self.now + self.keep_alive_timeout;
                if !slot.input.is_empty() {
                    self.serve_again(token, &[]);
                }
                self.watch(token);
                self.receive(token);
            }
        }
    }
}

/// How much of an answer the shard may send itself; `None` where that may block.
fn budget_of_shard(outgoing: &Outgoing, connection: &Connection, probes: &mut Probes, now: Millis) -> Option<u64> {
    if outgoing.is_quick(connection) {
        return Some(BYTES_PER_TURN);
    }
    outgoing.next_at_hand(connection, SHARD_DRAIN_MAX, probes, now)
}

/// What a panic said.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
