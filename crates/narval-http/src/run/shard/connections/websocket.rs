//! Connections that have become WebSockets: the shard passes bytes, writability and the time to their streams.

use std::sync::Arc;

use crate::http1::conn::End;
use crate::io::driver::Driver;
use crate::run::connection::Connection;
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

    /// Handles received bytes.
    pub(in crate::run::shard) fn on_websocket_bytes(&mut self, slot: &mut Slot, bytes: &[u8]) {
        if let Protocol::WebSocket(stream) = &mut slot.protocol {
            stream.receive(bytes, self.local.now, &self.local.server.pool);
            self.look_at_websocket(slot, false);
        }
    }

    /// The client has ended its input, or the connection broke.
    pub(in crate::run::shard) fn on_websocket_end(&mut self, slot: &mut Slot) {
        if let Protocol::WebSocket(stream) = &mut slot.protocol {
            stream.receive_end(&self.local.server.pool);
            self.look_at_websocket(slot, false);
        }
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

    /// Starts the closing handshake because the server stops.
    pub(in crate::run::shard) fn stop_websocket(&mut self, slot: &mut Slot) {
        if let Protocol::WebSocket(stream) = &mut slot.protocol {
            stream.stop();
            self.look_at_websocket(slot, false);
        }
    }
}
