//! Connections that have become WebSockets: the shard brings bytes, room to write and the time to their streams.

use std::sync::Arc;

use super::Shard;
use super::slot::{Phase, Scan};
use crate::io::driver::{Driver, Op, Token};
use crate::run::connection::Connection;
use crate::run::mailbox::Close;
use crate::ws;

impl<D: Driver<Connection>> Shard<D> {
    /// A job has answered 101: from now on the connection is a WebSocket.
    pub(super) fn on_upgraded(&mut self, token: Token, shared: Arc<ws::Shared>) {
        let mut stream = Box::new(ws::Stream::new(shared, self.now));
        let Some(slot) = self.slots.get(token) else { return stream.release(&self.server.pool) };
        // Whoever sends takes the outbox's lock from now on; the lease stays here.
        drop(slot.take_back_lease());
        let input = std::mem::take(&mut slot.input);
        if !input.is_empty() {
            stream.receive(&input, self.now, &self.server.pool);
        }
        if slot.has_ended() {
            stream.receive_end(&self.server.pool);
        }
        if self.stopping {
            stream.stop();
        }
        slot.phase = Phase::WebSocket { stream, awaits_room: false };
        self.look_at_websocket(token, false);
    }

    /// Bytes came in.
    pub(super) fn on_websocket_bytes(&mut self, token: Token, bytes: &[u8]) {
        if let Some(Phase::WebSocket { stream, .. }) = self.slots.get(token).map(|slot| &mut slot.phase) {
            stream.receive(bytes, self.now, &self.server.pool);
            self.look_at_websocket(token, false);
        }
    }

    /// The client sends no more, or the connection broke.
    pub(super) fn on_websocket_end(&mut self, token: Token) {
        if let Some(Phase::WebSocket { stream, .. }) = self.slots.get(token).map(|slot| &mut slot.phase) {
            stream.receive_end(&self.server.pool);
            self.look_at_websocket(token, false);
        }
    }

    /// Does what the stream wants. `writable`: the socket takes bytes again.
    pub(super) fn look_at_websocket(&mut self, token: Token, writable: bool) {
        let now = self.now;
        let Some(slot) = self.slots.get(token) else { return };
        let Phase::WebSocket { stream, awaits_room } = &mut slot.phase else { return };
        *awaits_room &= !writable;
        let wants = stream.look(writable, now, &self.server.pool);
        if let Some(close) = wants.end {
            return self.end_websocket(token, close);
        }
        let awaits = wants.writable && !std::mem::replace(awaits_room, wants.writable);
        slot.deadline = wants.deadline;
        self.watch(token);
        if awaits {
            self.submit(Op::AwaitWritable(token));
        }
        self.receive(token);
    }

    /// Says goodbye to a WebSocket because the server stops.
    pub(super) fn stop_websocket(&mut self, token: Token) {
        if let Some(Phase::WebSocket { stream, .. }) = self.slots.get(token).map(|slot| &mut slot.phase) {
            stream.stop();
            self.look_at_websocket(token, false);
        }
    }

    fn end_websocket(&mut self, token: Token, close: Close) {
        let Some(slot) = self.slots.get(token) else { return };
        if let Phase::WebSocket { stream, .. } = std::mem::replace(&mut slot.phase, Phase::Head(Scan::default())) {
            if stream.may_have_unread_input() {
                slot.read_no_more();
            }
            stream.release(&self.server.pool);
        }
        self.end(token, close, None);
    }
}
