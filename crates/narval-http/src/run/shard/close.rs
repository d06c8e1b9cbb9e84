//! How connections and the server end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shard;
use super::slots::{Protocol, Slot};
use crate::io::clock::millis;
use crate::io::driver::Driver;
use crate::io::over::Close;
use crate::run::closing::{Closing, End};
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::mailbox::Message;

impl<D: Driver<Connection>> Shard<D> {
    /// Ends a connection whose output is sent, over TLS with a `close_notify`. The shard holds its lease.
    pub(super) fn end(&mut self, slot: &mut Slot, end: End) {
        let connection = &slot.connection;
        if end.close == Close::Abort {
            connection.socket.abort();
            slot.is_gone = true;
            return;
        }
        if let Some(tls) = connection.tls.as_ref().filter(|tls| !tls.is_handshaking()) {
            tls.end_output(&connection.socket);
        }
        if slot.has_ended || (end.may_close() && !connection.socket.has_unread()) {
            slot.is_gone = true;
            return;
        }
        connection.socket.end_output();
        let (closing, deadline) = Closing::new(end, self.local.now, &self.local.server.limits);
        (slot.deadline, slot.wants_read) = (deadline, true);
        let ended = std::mem::replace(&mut slot.protocol, Protocol::Closing(Box::new(closing)));
        self.release(ended, &slot.connection);
    }

    /// Closes a connection whose output has ended if its client has everything, or it is time.
    #[inline(never)]
    pub(super) fn on_closing(&mut self, slot: &mut Slot, event: &Event<'_>) {
        let Protocol::Closing(closing) = &mut slot.protocol else { return };
        let limits = &self.local.server.limits;
        match event {
            Event::Received(bytes) => slot.is_gone |= !closing.discard(bytes, limits),
            Event::InputEnded(_) | Event::Undecodable => slot.is_gone = true,
            Event::Tick | Event::Stop => {
                match closing.look(self.local.now, limits, || slot.connection.socket.has_in_flight()) {
                    Some(deadline) => slot.deadline = deadline,
                    None => slot.is_gone = true,
                }
            }
            _ => {}
        }
    }

    /// Drops a connection immediately; its slot was taken.
    pub(super) fn close(&mut self, slot: Slot) {
        let token = slot.token();
        self.tell_departed(&slot);
        let Slot { connection, protocol, delivery, .. } = slot;
        self.release_delivery(delivery);
        self.release(protocol, &connection);
        self.wheel.remove(token);
        self.slots.remove(token);
        self.driver.detach(token);
        self.local.server.admission.leave(connection.remote());
        self.local.counters.connections_closed.add(1);
    }

    /// Notifies whoever waits for what a connection was doing.
    pub(super) fn release(&mut self, protocol: Protocol, connection: &Arc<Connection>) {
        match protocol {
            Protocol::ProxyHeader | Protocol::Handshake | Protocol::Closing(_) => {}
            Protocol::Http1(conn) => conn.release(),
            Protocol::Http2(mut http2) => http2.conn.release(&mut self.local.at(connection)),
            Protocol::WebSocket(stream) => stream.release(&self.local.server.pool),
        }
    }

    /// The shard ends: all its connections are closed, and whoever waits for one of them is notified. Later messages to
    /// it are dropped.
    pub(crate) fn leave(&mut self) {
        for token in self.slots.tokens() {
            let Some(slot) = self.slots.take(token) else { continue };
            let is_answering = match &slot.protocol {
                Protocol::Http1(_) => slot.delivery.is_here(),
                Protocol::Http2(http2) => http2.conn.is_busy(),
                _ => false,
            };
            if is_answering {
                slot.connection.socket.abort();
            }
            self.close(*slot);
        }
        self.mailbox.close();
        while let Some(message) = self.mailbox.take() {
            match message {
                Message::Accepted { remote, .. } => {
                    self.local.server.admission.leave(&remote);
                    self.local.counters.connections_closed.add(1);
                }
                Message::Note { note, .. } => self.on_late_note(note),
                _ => {}
            }
        }
    }

    /// Stops accepting, closes idle connections, and lets the others finish.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.local.server.stopping.store(true, Ordering::Relaxed);
        for listener in 0..self.listeners.len() {
            self.driver.unlisten(listener);
        }
        self.listeners.clear();
        self.resting.clear();
        for token in self.slots.tokens() {
            self.with(token, |shard, slot| shard.on(slot, Event::Stop));
        }
    }

    /// When the first head or the TLS handshake must be complete.
    pub(super) fn first_deadline(&self, is_secure: bool) -> crate::io::clock::Millis {
        let limits = &self.local.server.limits;
        self.local.now + millis(if is_secure { limits.handshake_timeout } else { limits.head_timeout })
    }
}
