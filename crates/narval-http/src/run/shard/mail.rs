//! Handles messages from workers, WebSocket handles and other shards.

use super::Shard;
use crate::io::driver::Driver;
use crate::run::connection::Connection;
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
                self.with(token, |shard, slot| shard.on_stream_event(slot, stream, event));
            }
            Message::Stop => self.stop(),
            Message::Halt => self.halted = true,
        }
    }
}
