//! The queued events of a WebSocket. One worker at a time takes them out, so they are serial.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::codec::decoder::CompressedMessage;
use super::codec::deflate::Inflater;
use super::codec::{CloseFrame, Message, ProtocolError};
use super::error::WsError;
use crate::io::output_memory::{Holding, Share};

/// How many events may be queued before receiving is paused.
const EVENTS_MAX: usize = 256;

/// A queued event.
#[derive(Debug)]
pub(super) enum Pending {
    Open,
    Message(Message),
    Compressed(CompressedMessage),
    Ping(Bytes),
    Pong(Bytes),
    Drained,
    /// The client's Close frame: the last event.
    Closed(Option<CloseFrame>),
    /// The client violated the protocol: the last event.
    Failed(ProtocolError),
    /// The connection is gone: the last event.
    Lost(WsError),
}

impl Pending {
    fn bytes(&self) -> usize {
        match self {
            Self::Message(message) => message.len(),
            Self::Compressed(message) => message.data.len(),
            _ => 0,
        }
    }

    pub(super) fn is_last(&self) -> bool {
        matches!(self, Self::Closed(_) | Self::Failed(_) | Self::Lost(_))
    }
}

/// The receiving half of a WebSocket.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    queue: VecDeque<Pending>,
    bytes: usize,
    /// A worker runs the handler, or is about to.
    running: bool,
    /// The last event is queued, or was handled.
    ended: bool,
    /// Receiving is paused until the handler has caught up.
    paused: bool,
    /// What the queue holds, as held by the connection.
    held: Share,
    /// The decompressor of this connection, with context takeover; taken out by the worker that runs the handler.
    pub(super) inflater: Option<Box<Inflater>>,
}

impl Inbox {
    pub(super) fn new(inflater: Option<Box<Inflater>>) -> Self {
        Self { inflater, ..Self::default() }
    }

    /// The inbox is of this connection.
    pub(super) fn attach(&mut self, holding: &Arc<Holding>) {
        self.held.attach(holding);
    }

    /// A share of the memory of its connection.
    pub(super) fn share(&self) -> Share {
        self.held.another()
    }

    /// Adds an event. Returns whether a worker is needed.
    pub(super) fn push(&mut self, event: Pending, bytes_max: usize) -> bool {
        if self.ended {
            return false;
        }
        self.ended = event.is_last();
        self.bytes += event.bytes();
        self.queue.push_back(event);
        self.count();
        self.paused |= self.bytes > bytes_max || self.queue.len() > EVENTS_MAX;
        !std::mem::replace(&mut self.running, true)
    }

    /// Worker: the next event; after `None` it stops. Also returns whether the shard must resume receiving.
    pub(super) fn pop(&mut self, bytes_max: usize) -> (Option<Pending>, bool) {
        let event = self.queue.pop_front();
        match &event {
            Some(event) => self.bytes -= event.bytes(),
            None => {
                self.running = false;
                // An idle connection holds no buffer.
                self.queue = VecDeque::new();
            }
        }
        self.count();
        let resumes = self.paused && self.bytes <= bytes_max / 2 && self.queue.len() <= EVENTS_MAX / 2;
        self.paused &= !resumes;
        (event, resumes)
    }

    /// Worker: the connection was failed, so queued events are discarded.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.discard();
    }

    /// Discards queued events.
    pub(super) fn discard(&mut self) {
        self.queue.clear();
        self.bytes = 0;
        self.count();
    }

    fn count(&mut self) {
        self.held.set(self.bytes + self.queue.capacity() * size_of::<Pending>());
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_at_a_time() {
        let mut inbox = Inbox::default();
        assert!(inbox.push(Pending::Open, 100));
        assert!(!inbox.push(Pending::Drained, 100), "a worker is on its way");
        assert!(matches!(inbox.pop(100), (Some(Pending::Open), false)));
        assert!(matches!(inbox.pop(100), (Some(Pending::Drained), false)));
        assert!(!inbox.push(Pending::Drained, 100), "the worker has not stopped");
        assert!(matches!(inbox.pop(100), (Some(Pending::Drained), false)));
        assert!(matches!(inbox.pop(100), (None, false)));
        assert!(inbox.push(Pending::Drained, 100));
    }

    #[test]
    fn nothing_comes_after_the_last_event() {
        let mut inbox = Inbox::default();
        inbox.push(Pending::Closed(None), 100);
        inbox.push(Pending::Lost(WsError::Lost), 100);
        assert!(matches!(inbox.pop(100).0, Some(Pending::Closed(None))));
        assert!(inbox.pop(100).0.is_none());
    }

    #[test]
    fn receiving_pauses_above_the_limit_and_resumes_below_half() {
        let mut inbox = Inbox::default();
        let message = || Pending::Message(Message::Binary(Bytes::from_static(&[0; 40])));
        inbox.push(message(), 100);
        inbox.push(message(), 100);
        assert!(!inbox.is_paused());
        inbox.push(message(), 100);
        assert!(inbox.is_paused());
        assert!(!inbox.pop(100).1, "80 bytes left");
        assert!(inbox.pop(100).1, "40 bytes left");
        assert!(!inbox.is_paused() && !inbox.pop(100).1);
    }
}
