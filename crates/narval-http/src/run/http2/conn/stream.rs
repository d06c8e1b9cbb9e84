use std::collections::VecDeque;
use std::sync::Arc;

use crate::http2::flow::{ReceiveWindow, SendWindow};
use crate::io::clock::Millis;
use crate::io::progress::Progress;
use crate::message::body::pipe::BodyPipe;
use crate::message::body::produced::Produced;
use crate::message::departure::{Departure, Here};
use crate::observe::access_log::Watch;
use crate::run::intake::InMemory;
use crate::run::intake::incoming_body::IncomingBody;
use crate::ws;

/// A stream: a request and its answer.
pub(super) struct Stream {
    /// What we may send.
    pub(super) window: SendWindow,
    /// What the client may send.
    pub(super) receive: ReceiveWindow,
    /// Received bytes that are not returned to the client's window yet, because the handler has not read them.
    pub(super) withheld: usize,
    /// When its window was last reopened for a handler that keeps up.
    pub(super) credited: Millis,
    pub(super) receiving: Receiving,
    /// When the progress of its body is checked next.
    pub(super) body_check: Millis,
    pub(super) sending: Sending,
    /// Part of it is with another thread, and will return: the stream counts until then, even if it was reset.
    pub(super) is_away: bool,
    /// It was reset, and only waits for the part that is away.
    pub(super) is_reset: bool,
    /// It is queued among the streams with something to send.
    pub(super) is_queued: bool,
    pub(super) is_head: bool,
    /// Its request is an extended CONNECT: a 2xx makes it a WebSocket.
    pub(super) is_connect: bool,
    pub(super) status: u16,
    pub(super) note: Option<Box<Watch>>,
    /// Until its response is sent, once somebody works for it.
    pub(super) here: Option<Here>,
    /// About how many bytes of its body are being produced elsewhere.
    pub(super) making: usize,
    /// Bytes of its body that were produced elsewhere and are not sent.
    pub(super) held: usize,
    /// The same with those that the handler supplied as a whole.
    pub(super) in_memory: usize,
    /// Sent bytes of the response.
    pub(super) sent: u64,
    /// The write deadline's window.
    pub(super) progress: Progress,
}

/// The client's side of a stream.
pub(super) enum Receiving {
    /// Its body is complete, or there is none.
    Done,
    /// Into memory, before a worker gets the request.
    Memory(Box<InMemory>),
    /// The handler reads it from a pipe.
    Piped { incoming: Box<IncomingBody>, pipe: Arc<BodyPipe> },
    /// Of a WebSocket that is not accepted yet: what the client sent all the same.
    Ahead { bytes: Vec<u8>, has_ended: bool },
    /// Of a WebSocket.
    WebSocket,
    /// Nobody reads it any longer.
    Unread,
    /// The same, and the response is sent: the rest is received, up to the largest body, if `left` arrives until that time,
    /// and as much in each window after that.
    Discarded { total: u64, left: usize, until: Millis },
}

/// Our side of a stream.
pub(super) enum Sending {
    /// There is no answer yet.
    Nothing,
    /// The head is sent.
    Body(Box<Produced>),
    /// The source has no data; it is asked again at the given time.
    Waiting(Box<Produced>, Millis),
    /// It is a WebSocket.
    WebSocket(Box<ws::Stream>),
    /// Everything is sent.
    Done,
}

impl Stream {
    pub(super) fn new(window: SendWindow, receive: ReceiveWindow, is_head: bool) -> Self {
        Self {
            window,
            receive,
            withheld: 0,
            credited: 0,
            receiving: Receiving::Done,
            body_check: 0,
            sending: Sending::Nothing,
            is_away: false,
            is_reset: false,
            is_queued: false,
            is_head,
            is_connect: false,
            status: 0,
            note: None,
            here: None,
            making: 0,
            held: 0,
            in_memory: 0,
            sent: 0,
            progress: Progress::default(),
        }
    }

    /// Whether the client has sent all of its request.
    pub(super) fn is_received(&self) -> bool {
        matches!(self.receiving, Receiving::Done | Receiving::Ahead { has_ended: true, .. })
    }

    /// Bytes of the request body still to come, if its length was announced.
    pub(super) fn announced_rest(&self) -> Option<u64> {
        let incoming = match &self.receiving {
            Receiving::Memory(memory) => &memory.incoming,
            Receiving::Piped { incoming, .. } => incoming,
            _ => return None,
        };
        // See `IncomingBody::is_whole`: without an announced length, it is the maximum.
        incoming.rest().filter(|_| incoming.length() != Some(u64::MAX))
    }

    /// Tells whoever works for it when it is reset.
    pub(super) fn departure(&mut self) -> Departure {
        self.here.get_or_insert_with(|| Here::new(false)).departure().clone()
    }

    /// Takes the request whose body was received into memory; the client's side is done.
    pub(super) fn take_memory(&mut self) -> Option<InMemory> {
        match std::mem::replace(&mut self.receiving, Receiving::Done) {
            Receiving::Memory(memory) => Some(*memory),
            other => {
                self.receiving = other;
                None
            }
        }
    }
}

/// Closed streams, to handle frames that were in flight then.
#[derive(Debug, Default)]
pub(super) struct Closed {
    /// The last ones.
    recent: VecDeque<(u32, How)>,
    /// The highest number that we reset. What comes on an older stream that is not among the last ones may have been in
    /// flight when we reset that.
    reset_up_to: u32,
    /// Bytes that the client was allowed to send on streams when we reset them.
    late_left: u64,
}

/// How a stream was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Both sides ended it.
    Ended,
    /// We reset it: the client may not know yet.
    ByUs,
    /// The client reset it.
    ByClient,
}

impl Closed {
    /// How many are remembered.
    const KEPT: usize = 64;

    /// Remembers a closed stream; `window`: what the client may send on it.
    pub(super) fn push(&mut self, stream: u32, how: How, window: u32) {
        if self.recent.len() >= Self::KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back((stream, how));
        if how == How::ByUs {
            self.reset_up_to = self.reset_up_to.max(stream);
            self.late_left = self.late_left.saturating_add(u64::from(window));
        }
    }

    pub(super) fn how(&self, stream: u32) -> Option<How> {
        let recent = self.recent.iter().rev().find(|(id, _)| *id == stream).map(|(_, how)| *how);
        recent.or((stream <= self.reset_up_to).then_some(How::ByUs))
    }

    /// Whether this much DATA on a stream that we reset is what its window allowed: the client had sent it before it knew.
    pub(super) fn may_be_late(&mut self, bytes: usize) -> bool {
        match self.late_left.checked_sub(bytes as u64) {
            Some(left) if bytes > 0 => {
                self.late_left = left;
                true
            }
            _ => false,
        }
    }
}
