//! Connections that have become WebSockets: the shard passes bytes, writability and the time to their streams.

use std::sync::Arc;

use crate::io::driver::Driver;
use crate::run::closing::End;
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::shard::Shard;
use crate::run::shard::slots::Delivery;
use crate::run::shard::slots::{Protocol, Slot};
use crate::ws;

impl<D: Driver<Connection>> Shard<D> {
    /// A job has answered 101: from now on the connection is a WebSocket.
    pub(in crate::run::shard) fn on_upgraded(&mut self, slot: &mut Slot, shared: Arc<ws::Shared>) {
        let mut stream = Box::new(ws::Stream::new(shared, self.local.now));
        // Senders take the outbox's lock from now on; the lease stays here.
        slot.connection.lease.take_back();
        slot.delivery = Delivery::Idle;
        let input = std::mem::take(&mut slot.input);
        if !input.is_empty() {
            stream.receive(&input, self.local.now, &self.local.server.pool);
        }
        if slot.has_ended {
            stream.receive_end(&self.local.server.pool);
        }
        if self.stopping {
            stream.stop();
        }
        let upgraded = std::mem::replace(&mut slot.protocol, Protocol::WebSocket(stream));
        self.release(upgraded, &slot.connection);
        self.look_at_websocket(slot, false);
    }

    /// Tells the stream.
    #[inline(never)]
    pub(in crate::run::shard) fn on_websocket(&mut self, slot: &mut Slot, event: &Event<'_>) {
        let Protocol::WebSocket(stream) = &mut slot.protocol else { return };
        match event {
            Event::Received(bytes) => stream.receive(bytes, self.local.now, &self.local.server.pool),
            Event::InputEnded(_) | Event::Undecodable => stream.receive_end(&self.local.server.pool),
            Event::Stop => stream.stop(),
            Event::Tick | Event::Answered(_) | Event::Ready | Event::Noted(..) => {}
        }
        self.look_at_websocket(slot, false);
    }

    /// Performs what the stream wants. `writable`: the socket is writable again.
    pub(in crate::run::shard) fn look_at_websocket(&mut self, slot: &mut Slot, writable: bool) {
        let Protocol::WebSocket(stream) = &mut slot.protocol else { return };
        let wants = stream.look(writable, self.local.now, &self.local.server.pool);
        if let Some(close) = wants.end {
            let is_read = !stream.may_have_unread_input();
            return self.end(slot, End { close, is_read, unread: None });
        }
        slot.deadline = wants.deadline;
        if wants.writable {
            self.await_writable(slot);
        }
    }
}
