//! Connections that have become WebSockets: the shard passes bytes, writability and the time to their streams.

use std::sync::Arc;

use crate::io::driver::Driver;
use crate::run::closing::End;
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::shard::Shard;
use crate::run::shard::slots::{Protocol, Slot};
use crate::ws::{self, Told};

impl<D: Driver<Connection>> Shard<D> {
    /// A job has answered 101: from now on the connection is a WebSocket.
    pub(in crate::run::shard) fn on_upgraded(&mut self, slot: &mut Slot, shared: Arc<ws::Shared>) {
        let mut stream = Box::new(ws::Stream::new(shared, self.local.now));
        // Senders take the outbox's lock from now on; the lease stays here.
        slot.take_lease_back();
        let input = std::mem::take(&mut slot.input);
        let received = (!input.is_empty()).then_some(Told::Received(&input));
        let told = [received, slot.has_ended.then_some(Told::Ended), self.stopping.then_some(Told::Stop)];
        for told in told.into_iter().flatten() {
            stream.on(told, self.local.now, &self.local.server.pool);
        }
        let upgraded = std::mem::replace(&mut slot.protocol, Protocol::WebSocket(stream));
        self.release(upgraded, &slot.connection);
        self.websocket(slot, Told::Look);
    }

    #[inline(never)]
    pub(in crate::run::shard) fn on_websocket(&mut self, slot: &mut Slot, event: &Event<'_>) {
        let told = match event {
            Event::Received(bytes) => Told::Received(bytes),
            Event::InputEnded(_) | Event::Undecodable => Told::Ended,
            Event::Stop => Told::Stop,
            Event::Writable => Told::Writable,
            _ => Told::Look,
        };
        self.websocket(slot, told);
    }

    /// Tells the stream, and performs what it wants.
    fn websocket(&mut self, slot: &mut Slot, told: Told<'_>) {
        let Protocol::WebSocket(stream) = &mut slot.protocol else { return };
        let wants = stream.on(told, self.local.now, &self.local.server.pool);
        if let Some(close) = wants.end {
            return self.end(slot, End { close, is_read: wants.is_read, unread: None });
        }
        (slot.deadline, slot.wants_read) = (wants.deadline, wants.read);
        if wants.writable {
            self.await_writable(slot);
        }
    }
}
