//! How connections end: at deadlines, after answers, when the server stops.

use std::io;
use std::sync::atomic::Ordering;

use super::slot::{BodyLeft, Phase, Reading, Scan, Unread};
use super::{Shard, millis};
use crate::io::clock::Millis;
use crate::io::driver::{Driver, Token};
use crate::limits::{EXPIRY_POSTPONED_MAX, LAST_TRY, LINGER_LOOK};
use crate::run::connection::Connection;
use crate::run::lease::Holder;
use crate::run::mailbox::Close;
use crate::run::mailbox::Message;
use crate::run::transmit::Window;
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
        match &slot.phase {
            Phase::Head(_) if slot.input.is_empty() => self.end_cleanly(token),
            Phase::Running(BodyLeft::Nothing) => {
                let idle_until = slot.connection.idle_since() + keep_alive;
                match slot.connection.lease.holder() {
                    Holder::Shard if idle_until <= now => self.end_cleanly(token),
                    Holder::Shard => slot.deadline = idle_until,
                    Holder::Job => slot.deadline = now + keep_alive,
                }
            }
            Phase::Running(_) | Phase::Body(_) => self.on_body_deadline(token),
            Phase::Sending { blocked: Some(_), .. } | Phase::Draining { .. } => self.on_write_deadline(token),
            Phase::Sending { blocked: None, .. } => self.stalled(token),
            Phase::Waiting { .. } => self.on_writable(token),
            Phase::WebSocket { .. } => self.look_at_websocket(token, false),
            Phase::Handshake => {
                self.counters.timeouts.add(1);
                slot.end_reading(io::ErrorKind::TimedOut);
                slot.deadline = now + keep_alive;
                if slot.connection.lease.wait_for() == Holder::Shard {
                    self.close(token);
                }
            }
            Phase::Lingering { .. } => self.on_linger_deadline(token),
            Phase::Head(_) => {
                self.counters.timeouts.add(1);
                self.close(token);
            }
        }
    }

    /// All is sent, and the client has not ended the connection yet.
    fn on_linger_deadline(&mut self, token: Token) {
        let (now, limits) = (self.now, &self.server.limits);
        let Some(slot) = self.slots.get(token) else { return };
        let Phase::Lingering { until, unread, .. } = &mut slot.phase else { return };
        if let Some(incoming) = unread
            && incoming.progresses(now, limits, false, false)
        {
            slot.deadline = incoming.next_check(now, limits);
        } else if now < *until && slot.connection.socket.has_in_flight() {
            slot.deadline = (*until).min(now + millis(LINGER_LOOK));
        } else {
            self.close(token);
        }
    }

    /// A window of an answer's deadline is over.
    fn on_write_deadline(&mut self, token: Token) {
        let (now, limits) = (self.now, &self.server.limits);
        let window = millis(limits.write_stall_timeout);
        let Some(slot) = self.slots.get(token) else { return };
        let Some(outgoing) = slot.phase.outgoing() else { return self.stalled(token) };
        let sent = outgoing.sent();
        let current = outgoing.window(now);
        if sent.saturating_sub(current.had) >= limits.write_progress_min {
            *current = Window { began: now, had: sent, had_last_try: false };
            slot.deadline = now + window;
        } else if !current.had_last_try {
            // A socket counts as writable only when a third of its buffer is free, which takes a slow client a while. What
            // it has taken meanwhile shows when something is sent.
            current.had_last_try = true;
            slot.deadline = now + millis(LAST_TRY);
            self.on_writable(token);
        } else {
            self.stalled(token);
        }
    }

    /// The client does not take its answer.
    pub(super) fn stalled(&mut self, token: Token) {
        self.counters.timeouts.add(1);
        if let Some(slot) = self.slots.get(token) {
            if let Some(outgoing) = slot.phase.outgoing() {
                self.server.record_outgoing(&self.counters, outgoing, true);
            }
            slot.phase = Phase::Head(Scan::default());
        }
        self.end(token, Close::Abort, None);
    }

    /// Ends a connection whose last answer is out, or whose client sends no more. The client of a TLS connection is told that this is
    /// all. The shard holds its lease.
    pub(super) fn end_cleanly(&mut self, token: Token) {
        if let Some(slot) = self.slots.get(token) {
            let large = slot.connection.last_was_large();
            let unread = slot.phase.take_unread();
            self.end(token, Close::Clean { large }, unread);
        }
    }

    /// Ends a connection; `unread` is what is still to come of a request's body. The shard holds its lease.
    pub(super) fn end(&mut self, token: Token, close: Close, unread: Unread) {
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
            Close::Clean { .. } if slot.has_ended() => self.close(token),
            // All that came was read, and the answer fits into the kernel's buffer: closing does no harm.
            Close::Clean { large: false }
                if slot.reading == Reading::Open && slot.input.is_empty() && !slot.connection.socket.has_unread() =>
            {
                self.close(token);
            }
            // Closing now would reset the connection if the client has sent anything more, or drop what is in the send
            // buffer if the client pauses for longer than the kernel cares for a socket without an owner.
            Close::Clean { .. } => {
                slot.connection.socket.end_output();
                slot.phase = Phase::Lingering { until: linger_until, discarded: 0, unread };
                slot.input = Vec::new();
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
        let Some(slot) = self.slots.remove(token) else { return };
        match slot.phase {
            Phase::Running(mut left) => drop(left.abort(io::ErrorKind::ConnectionReset)),
            Phase::WebSocket { stream, .. } => stream.release(&self.server.pool),
            Phase::Sending { blocked: Some(mut outgoing), .. }
            | Phase::Draining { mut outgoing, .. }
            | Phase::Waiting { mut outgoing, .. } => {
                // A stream that goes on until the client leaves is not cut short by that.
                let aborted = !outgoing.hang_up();
                self.server.record_outgoing(&self.counters, &mut outgoing, aborted);
            }
            _ => {}
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
                && matches!(slot.phase, Phase::Sending { .. } | Phase::Draining { .. } | Phase::Waiting { .. })
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
            let is_idle = match slot.phase {
                Phase::Head(_) => slot.input.is_empty(),
                Phase::Running(_) => slot.connection.lease.wait_for() == Holder::Shard,
                Phase::WebSocket { .. } => {
                    self.stop_websocket(token);
                    false
                }
                Phase::Waiting { .. } => {
                    self.hang_up(token);
                    false
                }
                Phase::Lingering { .. } => {
                    self.on_linger_deadline(token);
                    self.watch(token);
                    false
                }
                Phase::Handshake | Phase::Body(_) | Phase::Sending { .. } | Phase::Draining { .. } => false,
            };
            if is_idle {
                self.end_cleanly(token);
            }
        }
    }
}
