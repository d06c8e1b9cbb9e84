//! Handles messages from workers, WebSocket handles and other shards.

use super::Shard;
use crate::io::driver::Driver;
use crate::run::connection::Connection;
use crate::run::http2::StreamEvent;
use crate::run::mailbox::Message;

impl<D: Driver<Connection>> Shard<D> {
    pub(super) fn on_message(&mut self, message: Message) {
        match message {
            Message::Accepted { socket, remote } => self.open(socket, remote),
            Message::Finished { token, close } => self.with(token, |shard, slot| shard.on_finished(slot, close)),
            Message::Outgoing { token, outgoing } => self.with(token, |shard, slot| shard.on_outgoing(slot, outgoing)),
            Message::Handshaken { token, plaintext } => {
                self.with(token, |shard, slot| shard.on_handshaken(slot, plaintext));
            }
            // `with` asks the connection what it waits for.
            Message::BodyWanted { token } => self.with(token, |_, _| {}),
            Message::BodyReady { token } => self.with(token, |shard, slot| shard.on_writable(slot, true)),
            Message::Upgraded { token, socket } => self.on_upgraded(token, socket),
            Message::WebSocket { token } => self.with(token, |shard, slot| shard.look_at_websocket(slot, false)),
            Message::Stream { token, stream, event } => {
                let mut event = Some(event);
                self.with(token, |shard, slot| {
                    if let Some(event) = event.take() {
                        shard.on_stream_event(slot, stream, event);
                    }
                });
                // Its connection has been closed since: the request is logged and counted all the same.
                if let Some(StreamEvent::Answer(answer, _held)) = event {
                    let local = &self.local;
                    local.counters.answers_http2.add(1);
                    local.server.record(&local.counters, answer.status, 0, true, answer.note);
                }
            }
            // Every turn ends with that.
            Message::MakeRoom => {}
            Message::Stop => self.stop(),
            Message::Halt => self.halted = true,
        }
    }
}
