//! Handles messages from workers, WebSocket handles and other shards.

use super::Shard;
use super::slots::Slot;
use crate::io::driver::Driver;
use crate::io::over::Close;
use crate::message::carrier::Nudge;
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::mailbox::{Message, Note};
use crate::ws::{self, Told};

impl<D: Driver<Connection>> Shard<D> {
    pub(super) fn on_message(&mut self, message: Message) {
        match message {
            Message::Accepted { socket, remote } => self.open(socket, remote),
            Message::Note { token, stream, note } => {
                let mut note = Some(note);
                self.with(token, |shard, slot| match note.take() {
                    Some(note) if stream == 0 => shard.on_note(slot, note),
                    Some(note) => shard.on(slot, Event::Noted(stream, note)),
                    None => {}
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

    fn on_note(&mut self, slot: &mut Slot, note: Note) {
        match note {
            Note::Finished(close) => self.on_finished(slot, close),
            Note::Lost => self.on_finished(slot, Some(Close::Abort)),
            Note::Handed(outgoing) => self.on_handed(slot, outgoing),
            Note::Upgraded(socket) => self.on_upgraded(slot, socket),
            Note::Handshaken(plaintext) => self.on_handshaken(slot, plaintext),
            Note::Nudge(Nudge::Source) => self.on_writable(slot, true),
            Note::Nudge(Nudge::WebSocket) => self.websocket(slot, Told::Look),
            // `with` asks the connection what it waits for.
            Note::Nudge(Nudge::BodyRead) => {}
            // Those are for streams.
            Note::Nudge(Nudge::Continue) | Note::Answer(..) | Note::Inform(_) | Note::Made { .. } => {}
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
