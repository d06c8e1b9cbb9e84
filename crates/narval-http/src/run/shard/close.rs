//! How connections end: at deadlines, after answers, when the server stops.

use std::io;
use std::sync::atomic::Ordering;

use super::slot::Phase;
use super::{Shard, millis};
use crate::io::clock::Millis;
use crate::io::driver::{Driver, Token};
use crate::limits::{EXPIRY_POSTPONED_MAX, LAST_TRY, LINGER_LOOK};
use crate::run::connection::Connection;
use crate::run::lease::Holder;
use crate::run::mailbox::Close;
use crate::run::mailbox::Message;
use crate::ws;

impl<D: Driver<Connection>> Shard<D> {
    /// Sees to it that the timer wheel looks at the connection at its deadline.
    pub(super) fn watch(&mut self, token: Token) {
        if let Some(slot) = self.slots.get(token) {
            let looks_at = self.wheel.looks_at(slot.deadline);
            if slot.look_at == 0 || looks_at < slot.look_at {
                slot.look_at = looks_at;
                self.wheel.schedule(token, slot.deadline);
            }
        }
    }

    /// Looks at the connections whose time has come.
    #[inline]
    ///
    /// `now`: input that came before was looked at, unless there was more than one turn takes.
    pub(super) fn expire(&mut self, now: Millis) {
        if self.wheel.is_behind(now) && self.driver.has_more() && self.expiry_postponed < EXPIRY_POSTPONED_MAX {
            self.expiry_postponed += 1;
            return;
        }
        self.expiry_postponed = 0;
        let mut due = std::mem::take(&mut self.due);
        self.wheel.take_due(now, &mut due);
        for token in due.drain(..) {
            // A look that was scheduled before an earlier one is for nothing: it must not bring forth another.
            let Some(slot) = self.slots.get(token).filter(|slot| slot.look_at <= now) else { continue };
            slot.look_at = 0;
            if slot.deadline <= now {
                self.on_deadline(token);
            }
            self.watch(token);
        }
        self.due = due;
        if !self.resting.is_empty() {
            self.wake_listeners();
        }
    }

    fn on_deadline(&mut self, token: Token) {
        let (now, limits) = (self.now, &self.server.limits);
        let keep_alive = millis(limits.keep_alive_timeout);
        let Some(slot) = self.slots.get(token) else { return };
        match slot.phase {
            Phase::Head if slot.input.is_empty() => {
                let large = slot.connection.last_was_large();
                self.end(token, Close::Clean { large });
            }
            Phase::Running if slot.incoming.is_none() => {
                let idle_until = slot.connection.idle_since() + keep_alive;
                match slot.connection.lease.holder() {
                    Holder::Shard if idle_until <= now => {
                        let large = slot.connection.last_was_large();
                        self.end(token, Close::Clean { large });
                    }
                    Holder::Shard => slot.deadline = idle_until,
                    Holder::Job => slot.deadline = now + keep_alive,
                }
            }
            Phase::Running | Phase::Body => self.on_body_deadline(token),
            Phase::Draining => self.on_write_deadline(token),
            Phase::Waiting => self.on_writable(token),
            Phase::WebSocket => self.look_at_websocket(token, false),
            Phase::Handshake => {
                self.counters.timeouts.add(1);
                slot.input_ended = true;
                slot.deadline = now + keep_alive;
                if slot.connection.lease.wait_for() == Holder::Shard {
                    self.close(token);
                }
            }
            Phase::Sending => self.stalled(token),
            Phase::Lingering => self.on_linger_deadline(token),
            Phase::Head => {
                self.counters.timeouts.add(1);
                self.close(token);
            }
        }
    }

    /// All is sent, and the client has not ended the connection yet.
    fn on_linger_deadline(&mut self, token: Token) {
        let (now, limits) = (self.now, &self.server.limits);
        let Some(slot) = self.slots.get(token) else { return };
        if let Some(incoming) = &mut slot.incoming
            && incoming.progresses(now, limits, false)
        {
            slot.deadline = incoming.next_look(now, limits);
        } else if now < slot.linger_until && slot.connection.socket.has_in_flight() {
            slot.deadline = slot.linger_until.min(now + millis(LINGER_LOOK));
        } else {
            self.close(token);
        }
    }

    /// A window of an answer's deadline is over.
    fn on_write_deadline(&mut self, token: Token) {
        let (now, limits) = (self.now, &self.server.limits);
        let window = millis(limits.write_stall_timeout);
        let Some(slot) = self.slots.get(token) else { return };
        let Some(outgoing) = &mut slot.outgoing else { return self.stalled(token) };
        let had = outgoing.window.map_or(0, |(_, had)| had);
        if outgoing.sent().saturating_sub(had) >= limits.write_progress_min {
            outgoing.window = Some((now, outgoing.sent()));
            outgoing.had_last_try = false;
            slot.deadline = now + window;
        } else if !outgoing.had_last_try {
            // A socket counts as writable only when a third of its buffer is free, which takes a slow client a while. What
            // it has taken meanwhile shows when something is sent.
            outgoing.had_last_try = true;
            slot.deadline = now + millis(LAST_TRY);
            self.on_writable(token);
        } else {
            self.stalled(token);
        }
    }

    /// The client does not take its answer.
    pub(super) fn stalled(&mut self, token: Token) {
        self.counters.timeouts.add(1);
        if let Some(slot) = self.slots.get(token)
            && let Some(mut outgoing) = slot.outgoing.take()
        {
            self.server.record_outgoing(&self.counters, &mut outgoing, true);
        }
        self.end(token, Close::Abort);
    }

    /// Ends a connection whose client sends no more, and has its answers. The client of a TLS connection is told that this is all.
    /// The shard holds its lease.
    pub(super) fn end_behind_input(&mut self, token: Token) {
        if let Some(slot) = self.slots.get(token) {
            let large = slot.connection.last_was_large();
            self.end(token, Close::Clean { large });
        }
    }

    /// Ends a connection. The shard holds its lease.
    pub(super) fn end(&mut self, token: Token, close: Close) {
        let limits = &self.server.limits;
        let linger = millis(match close {
            Close::Clean { large: true } => limits.write_stall_timeout,
            _ => limits.linger_timeout,
        });
        let (now, linger_until) = (self.now, self.now + linger);
        let Some(slot) = self.slots.get(token) else { return };
        if let (Close::Clean { .. }, Some(tls)) = (close, &slot.connection.tls)
            && !tls.is_handshaking()
        {
            tls.end_output(&slot.connection.socket);
        }
        match close {
            Close::Abort => {
                slot.connection.socket.abort();
                self.close(token);
            }
            Close::Clean { .. } if slot.input_ended => self.close(token),
            // All that came was read, and the answer fits into the kernel's buffer: closing does no harm.
            Close::Clean { large: false }
                if !slot.must_linger && slot.input.is_empty() && !slot.connection.socket.has_unread() =>
            {
                self.close(token);
            }
            // Closing now would reset the connection if the client has sent anything more, or drop what is in the send
            // buffer if the client pauses for longer than the kernel cares for a socket without an owner.
            Close::Clean { .. } => {
                slot.connection.socket.end_output();
                slot.phase = Phase::Lingering;
                slot.input = Vec::new();
                slot.linger_until = linger_until;
                // A client that has everything, and keeps the connection, is not waited for.
                slot.deadline = if close == (Close::Clean { large: true }) {
                    linger_until.min(now + millis(LINGER_LOOK))
                } else {
                    linger_until
                };
                self.watch(token);
                self.receive(token);
            }
        }
    }

    /// Lets go of a connection at once.
    pub(super) fn close(&mut self, token: Token) {
        let Some(mut slot) = self.slots.remove(token) else { return };
        if let Some(incoming) = slot.incoming.take() {
            incoming.break_off(io::ErrorKind::ConnectionReset);
        }
        if let Some(stream) = slot.websocket.take() {
            stream.release(&self.server.pool);
        }
        if let Some(mut outgoing) = slot.outgoing.take() {
            // A stream that goes on until the client leaves is not cut short by that.
            let aborted = !outgoing.hang_up();
            self.server.record_outgoing(&self.counters, &mut outgoing, aborted);
        }
        self.driver.detach(token);
        self.server.admission.leave(&slot.connection.peer);
        self.counters.connections_closed.add(1);
    }

    /// The shard ends: whoever waits for one of its connections hears that it is closed, and so does every client. What is sent
    /// to it from now on is dropped.
    pub(crate) fn leave(&mut self) {
        for token in self.slots.tokens() {
            if let Some(slot) = self.slots.get(token)
                && matches!(slot.phase, Phase::Sending | Phase::Draining | Phase::Waiting)
            {
                slot.connection.socket.abort();
            }
            self.close(token);
        }
        self.mailbox.close();
        while let Some(message) = self.mailbox.take() {
            match message {
                Message::Accepted { peer, .. } => {
                    self.server.admission.leave(&peer);
                    self.counters.connections_closed.add(1);
                }
                Message::Upgraded { socket, .. } => ws::Stream::new(socket, self.now).release(&self.server.pool),
                _ => {}
            }
        }
    }

    /// Accepts no more, closes what is idle, and lets the rest finish.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.server.stopping.store(true, Ordering::Relaxed);
        for listener in 0..self.listeners.len() {
            self.driver.unlisten(listener);
        }
        self.listeners.clear();
        self.resting.clear();
        for token in self.slots.tokens() {
            let Some(slot) = self.slots.get(token) else { continue };
            if slot.phase == Phase::WebSocket {
                self.stop_websocket(token);
                continue;
            }
            if slot.phase == Phase::Waiting {
                self.hang_up(token);
                continue;
            }
            if slot.phase == Phase::Lingering {
                self.on_linger_deadline(token);
                self.watch(token);
                continue;
            }
            let idle = match slot.phase {
                Phase::Head => slot.input.is_empty(),
                Phase::Running => slot.connection.lease.wait_for() == Holder::Shard,
                _ => false,
            };
            if idle {
                let large = slot.connection.last_was_large();
                self.end(token, Close::Clean { large });
            }
        }
    }
}
