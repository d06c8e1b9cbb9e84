//! WebSockets on streams (RFC 8441). A stream whose extended CONNECT was accepted carries a [`ws::Stream`], as an HTTP/1.1
//! connection does after an upgrade.

use super::Conn;
use super::send::put_data;
use super::stream::{How, Receiving, Sending};
use crate::http2::frame::{self, ErrorCode, PAYLOAD_MAX};
use crate::io::over::Close;
use crate::limits::{HTTP2_AHEAD_MAX, HTTP2_QUANTUM_MIN};
use crate::run::http2::encode::Answer;
use crate::run::http2::service::Ending;
use crate::run::service::Service;
use crate::tls::layout::Gather;
use crate::ws;
use crate::ws::Told;

impl Conn {
    /// Sends the response of a handler that accepted a WebSocket, and makes the stream one.
    pub(super) fn accept(&mut self, id: u32, answer: Answer, accepted: ws::Accepted, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (Receiving::Ahead { bytes, has_ended }, Some(shared)) =
            (std::mem::replace(&mut stream.receiving, Receiving::WebSocket), accepted.into_shared())
        else {
            // The response belongs to another request.
            return self.lost(id, service);
        };
        service.over(answer.status, answer.block.len() as u64, answer.note, Ending::Complete);
        self.push_block(id, answer.block, false);
        ws::start(&shared, service.carrier(id), service.connection.holding(), None, &service.server.pool);
        let mut socket = ws::Stream::new(shared, service.now);
        if service.is_stopping() {
            socket.on(Told::Stop, service.now, &service.server.pool);
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.sending = Sending::WebSocket(Box::new(socket));
        }
        self.enlarge_window(id);
        if !bytes.is_empty() {
            self.websocket(id, Told::Received(&bytes), service);
        }
        if has_ended {
            return self.websocket_end(id, service);
        }
        self.websocket(id, Told::Look, service);
    }

    /// Buffers what a client sends before its WebSocket is accepted.
    pub(super) fn keep_ahead(&mut self, id: u32, data: &[u8], service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Receiving::Ahead { bytes, .. } = &mut stream.receiving else { return };
        if bytes.len() + data.len() <= HTTP2_AHEAD_MAX {
            bytes.extend_from_slice(data);
            stream.withheld += data.len();
        } else if let Err(error) = self.reset(id, ErrorCode::EnhanceYourCalm, service) {
            self.fail(error.0, error.1, service);
        }
    }

    /// Received DATA of a WebSocket.
    pub(super) fn websocket_data(&mut self, id: u32, data: &[u8], service: &mut Service<'_>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.withheld += data.len();
        }
        self.websocket(id, Told::Received(data), service);
    }

    /// The client has ended its side of a WebSocket.
    pub(super) fn websocket_end(&mut self, id: u32, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.receiving = Receiving::Done;
        self.websocket(id, Told::Ended, service);
    }

    /// Tells a WebSocket what has happened: received data, queued frames, a handler that has caught up, time.
    pub(super) fn websocket(&mut self, id: u32, told: Told<'_>, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Sending::WebSocket(socket) = &mut stream.sending else { return };
        let wants = socket.on(told, service.now, &service.server.pool);
        match wants.end {
            None => {
                let used = if wants.read { std::mem::take(&mut stream.withheld) } else { 0 };
                self.look_at(wants.deadline);
                self.credit_stream(id, used);
                self.queue(id);
            }
            Some(Close::Clean { .. }) => {
                self.out.extend_from_slice(&frame::data_header(id, 0, true));
                if let Sending::WebSocket(socket) = std::mem::replace(&mut stream.sending, Sending::Done) {
                    socket.release(&service.server.pool);
                }
                self.all_sent(id, service);
            }
            // Corresponds to a TCP reset (RFC 8441 section 5).
            Some(Close::Abort) => {
                frame::push_reset(&mut self.out, id, ErrorCode::Cancel);
                self.drop_stream(id, How::ByUs, Ending::Aborted, service);
            }
        }
    }

    /// Sends one DATA frame of a WebSocket.
    pub(super) fn websocket_turn(
        &mut self,
        id: u32,
        into: &mut impl Gather,
        quantum: usize,
        service: &mut Service<'_>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Sending::WebSocket(socket) = &mut stream.sending else { return };
        let room = quantum.saturating_sub(into.gathered()).max(HTTP2_QUANTUM_MIN);
        let window = stream.window.open().min(self.window.open());
        let most = socket.ready().min(window).min(PAYLOAD_MAX).min(room);
        if most > 0 {
            let taken = put_data(id, most, into, |place| Ok((socket.take(place), false))).unwrap_or_default();
            stream.window.sent(taken);
            self.window.sent(taken);
            self.unreturned += taken as u64;
        }
        // Queues the rest, if the windows are open.
        self.websocket(id, Told::Look, service);
    }

    /// Sends close code 1001 to all WebSockets, because the server stops.
    pub(super) fn stop_websockets(&mut self, service: &mut Service<'_>) {
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        for id in ids {
            self.websocket(id, Told::Stop, service);
        }
    }
}
