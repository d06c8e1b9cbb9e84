//! Connections that have become WebSockets: the shard passes bytes, writability and the time to their streams.

use std::sync::Arc;

use super::Shard;
use super::slots::{Protocol, Slot};
use crate::http1::conn::{Act, Close, Conn};
use crate::io::driver::{Driver, Op, Token};
use crate::run::connection::Connection;
use crate::ws;

impl<D: Driver<Connection>> Shard<D> {
    /// A job has answered 101: from now on the connection is a WebSocket.
    pub(super) fn on_upgraded(&mut self, token: Token, shared: Arc<ws::Shared>) {
        let mut stream = Box::new(ws::Stream::new(shared, self.local.now));
        let Some(mut slot) = self.slots.take(token) else { return stream.release(&self.local.server.pool) };
        // Senders take the outbox's lock from now on; the lease stays here.
        slot.connection.lease.take_back();
        if let Some(conn) = slot.http1() {
            let (input, has_ended) = (conn.upgraded(), conn.has_ended());
            if !input.is_empty() {
                stream.receive(&input, self.local.now, &self.local.server.pool);
            }
            if has_ended {
                stream.receive_end(&self.local.server.pool);
            }
        }
        if self.stopping {
            stream.stop();
        }
        slot.protocol = Protocol::WebSocket { stream, awaits_room: false };
        self.slots.put(slot);
        self.with(token, |shard, slot| shard.look_at_websocket(slot, false));
    }

    /// Handles received bytes.
    pub(super) fn on_websocket_bytes(&mut self, slot: &mut Slot, bytes: &[u8]) {
        if let Protocol::WebSocket { stream, .. } = &mut slot.protocol {
            stream.receive(bytes, self.local.now, &self.local.server.pool);
            self.look_at_websocket(slot, false);
        }
    }

    /// The client has ended its input, or the connection broke.
    pub(super) fn on_websocket_end(&mut self, slot: &mut Slot) {
        if let Protocol::WebSocket { stream, .. } = &mut slot.protocol {
            stream.receive_end(&self.local.server.pool);
            self.look_at_websocket(slot, false);
        }
    }

    /// Performs what the stream wants. `writable`: the socket is writable again.
    pub(super) fn look_at_websocket(&mut self, slot: &mut Slot, writable: bool) {
        let Protocol::WebSocket { stream, awaits_room } = &mut slot.protocol else { return };
        *awaits_room &= !writable;
        let wants = stream.look(writable, self.local.now, &self.local.server.pool);
        if let Some(close) = wants.end {
            return self.end_websocket(slot, close);
        }
        let awaits = wants.writable && !std::mem::replace(awaits_room, wants.writable);
        slot.deadline = wants.deadline;
        if awaits {
            self.submit(Op::AwaitWritable(slot.token()));
        }
    }

    /// Starts the closing handshake because the server stops.
    pub(super) fn stop_websocket(&mut self, slot: &mut Slot) {
        if let Protocol::WebSocket { stream, .. } = &mut slot.protocol {
            stream.stop();
            self.look_at_websocket(slot, false);
        }
    }

    fn end_websocket(&mut self, slot: &mut Slot, close: Close) {
        let Protocol::WebSocket { stream, .. } = &slot.protocol else { return };
        let ending = Protocol::Http1(Conn::ending(stream.input_has_ended(), stream.may_have_unread_input()));
        if let Protocol::WebSocket { stream, .. } = std::mem::replace(&mut slot.protocol, ending) {
            stream.release(&self.local.server.pool);
        }
        self.http1(slot, &[], |_, _, _| Act::End(close));
    }
}
