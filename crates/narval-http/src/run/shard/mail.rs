//! Handles messages from workers, WebSocket handles and other shards.

use super::Shard;
use crate::io::driver::Driver;
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::mailbox::{Message, Note};
use crate::ws;

impl<D: Driver<Connection>> Shard<D> {
    pub(super) fn on_message(&mut self, message: Message) {
        match message {
            Message::Accepted { socket, remote } => self.open(socket, remote),
            Message::Note { token, stream, note } => {
                let mut note = Some(note);
                self.with(token, |shard, slot| {
                    if let Some(note) = note.take() {
                        shard.on(slot, Event::Noted(stream, note));
                    }
                });
                if let Some(note) = note {
                    self.on_late_note(note);
                }
            }
            // Every turn ends with that.
            Message::MakeRoom => {}
            Message::Stop => self.stop(),
            Message::Halt => self.halted = true,
        }
    }

    /// A note for a connection that has been closed since.
    pub(super) fn on_late_note(&mut self, note: Note) {
        match note {
            // The request is logged and counted all the same.
            Note::Answer(answer, _held) => {
                let local = &self.local;
                local.counters.answers_http2.add(1);
                local.server.record(&local.counters, answer.status, 0, true, answer.note);
            }
            Note::Upgraded(socket) => ws::Stream::new(socket, self.local.now).release(&self.local.server.pool),
            _ => {}
        }
    }
}
