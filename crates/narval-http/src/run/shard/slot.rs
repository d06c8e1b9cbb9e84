use std::io;
use std::mem;
use std::sync::Arc;

use crate::Bytes;
use crate::http1::head::{HeadScan, ParsedHead};
use crate::io::clock::Millis;
use crate::io::driver::Token;
use crate::message::responder::Later;
use crate::run::answer_context::AnswerContext;
use crate::run::body_pipe::{BodyPipe, Buffered};
use crate::run::connection::Connection;
use crate::run::incoming_body::IncomingBody;
use crate::run::mailbox::Close;
use crate::run::transmit::Outgoing;
use crate::ws;

/// What a shard keeps of a connection. An idle one holds no buffer.
pub(super) struct Slot {
    pub(super) connection: Arc<Connection>,
    pub(super) phase: Phase,
    /// A receive is under way.
    pub(super) receiving: bool,
    pub(super) reading: Reading,
    /// Received and not yet used: a piece of a handshake, part of a head, or pipelined requests.
    pub(super) input: Vec<u8>,
    pub(super) deadline: Millis,
    /// When the timer wheel will look here next; 0: it won't.
    pub(super) look_at: Millis,
}

const _: () = assert!(size_of::<Slot>() <= 128, "there are many of them, and most are idle");

/// The client's side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The client may send more.
    Open,
    /// The client may send more, which is of no use: the connection ends, and closing it must wait until the rest was received.
    Unread,
    /// The client sends no more.
    Ended,
}

/// What a connection is doing, with what it needs for that.
#[derive(Debug)]
pub(super) enum Phase {
    /// A TLS handshake; `input` holds what was received while a job works on what came before.
    Handshake,
    /// Waiting for a request's head.
    Head(Scan),
    /// Receiving a request body into memory.
    Body(Box<Body>),
    /// A job holds the lease (or has quietly given it back).
    Running(BodyLeft),
    /// What the shard made itself is being sent: by the driver, or (`blocked`) when the socket takes more.
    Sending { blocked: Option<Box<Outgoing>>, then: Then },
    /// An answer waits for the socket to take more.
    Draining { outgoing: Box<Outgoing>, unread: Unread },
    /// An answer waits for its source to have more.
    Waiting { outgoing: Box<Outgoing>, unread: Unread },
    /// It is a WebSocket. `awaits_room`: the driver will tell when the socket takes bytes again.
    WebSocket { stream: Box<ws::Stream>, awaits_room: bool },
    /// All is sent; the client's remaining input is discarded, so that closing does not reset what it has not read yet.
    Lingering { until: Millis, discarded: usize, unread: Unread },
}

/// The rest of a request body whose request has been answered. It is received so that the client goes on to read the answer.
pub(super) type Unread = Option<Box<IncomingBody>>;

/// How far a head has been received.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// How far the input has been searched for its end.
    pub(super) scan: HeadScan,
    /// It has begun, and its deadline stands.
    pub(super) has_begun: bool,
}

/// A request whose body is received into memory.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) incoming: Box<IncomingBody>,
    pub(super) body: Buffered,
    pub(super) head: Bytes,
    pub(super) parsed: Box<ParsedHead>,
}

/// What is still to be received of the body of a request that a job works on.
#[derive(Debug)]
pub(super) enum BodyLeft {
    /// Nothing: it is complete, or there is none.
    Nothing,
    /// The handler reads it from a pipe.
    Streamed { incoming: Box<IncomingBody>, pipe: Arc<BodyPipe> },
    /// Nobody reads it any more.
    Unread(Box<IncomingBody>),
}

/// What follows when everything that the shard sends is out.
#[derive(Debug)]
pub(super) enum Then {
    /// The next request, where the connection is kept.
    Next,
    /// An inline answer that is still to come.
    Late(Box<PendingLate>),
    /// The end of the connection.
    Close(Close),
}

/// What a connection does next, when everything made for it is sent and its shard holds the lease.
pub(super) enum Follow {
    /// Waits for an inline answer that is still to come.
    Late(Box<PendingLate>),
    /// Ends.
    End(Close),
    /// Goes on with the next request: what was received of it, or what comes.
    Head,
}

/// An answer that is still to come, and what it is an answer to.
#[derive(Debug)]
pub(super) struct PendingLate {
    pub(super) later: Later,
    pub(super) context: AnswerContext,
}

impl Phase {
    /// Takes out the rest of a request body that nobody is going to read.
    pub(super) fn take_unread(&mut self) -> Unread {
        match self {
            Self::Draining { unread, .. } | Self::Waiting { unread, .. } | Self::Lingering { unread, .. } => {
                unread.take()
            }
            Self::Running(left) => left.abort(io::ErrorKind::Other),
            Self::Handshake | Self::Head(_) | Self::Body(_) | Self::Sending { .. } | Self::WebSocket { .. } => None,
        }
    }
}

impl Phase {
    /// Takes out an answer that waits for the socket or for its source. The caller puts another phase in place.
    pub(super) fn take_outgoing(&mut self) -> Option<(Box<Outgoing>, Unread)> {
        match mem::replace(self, Self::Head(Scan::default())) {
            Self::Draining { outgoing, unread } | Self::Waiting { outgoing, unread } => Some((outgoing, unread)),
            phase => {
                *self = phase;
                None
            }
        }
    }

    /// The same of one that waits for its source alone.
    pub(super) fn take_waiting(&mut self) -> Option<(Box<Outgoing>, Unread)> {
        if matches!(self, Self::Waiting { .. }) { self.take_outgoing() } else { None }
    }

    /// What waits for the socket, or for its source.
    pub(super) fn outgoing(&mut self) -> Option<&mut Outgoing> {
        match self {
            Self::Sending { blocked: Some(outgoing), .. }
            | Self::Draining { outgoing, .. }
            | Self::Waiting { outgoing, .. } => Some(outgoing),
            _ => None,
        }
    }

    /// What follows what the shard sends.
    pub(super) fn take_then(&mut self) -> Then {
        match self {
            Self::Sending { then, .. } => mem::replace(then, Then::Next),
            _ => Then::Next,
        }
    }
}

impl BodyLeft {
    /// The handler gets no more of the body.
    pub(super) fn abort(&mut self, reason: io::ErrorKind) -> Unread {
        match mem::replace(self, Self::Nothing) {
            Self::Nothing => None,
            Self::Streamed { incoming, pipe } => {
                pipe.abort(reason);
                Some(incoming)
            }
            Self::Unread(incoming) => Some(incoming),
        }
    }
}

impl From<Unread> for BodyLeft {
    fn from(unread: Unread) -> Self {
        unread.map_or(Self::Nothing, Self::Unread)
    }
}

impl Slot {
    fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            phase: Phase::Head(Scan::default()),
            receiving: false,
            reading: Reading::Open,
            input: Vec::new(),
            deadline: 0,
            look_at: 0,
        }
    }

    /// What follows when everything is sent.
    pub(super) fn follow(&self, then: Then, stopping: bool) -> Follow {
        match then {
            Then::Late(late) => Follow::Late(late),
            Then::Close(close) => Follow::End(close),
            Then::Next if stopping || (self.has_ended() && self.input.is_empty()) => {
                Follow::End(Close::Clean { large: self.connection.last_was_large() })
            }
            Then::Next => Follow::Head,
        }
    }

    /// The client sends no more.
    pub(super) fn has_ended(&self) -> bool {
        self.reading == Reading::Ended
    }

    /// What the client still sends is of no use.
    pub(super) fn read_no_more(&mut self) {
        if self.reading == Reading::Open {
            self.reading = Reading::Unread;
        }
    }

    /// The last bytes of the client have been received, or never will be.
    pub(super) fn end_reading(&mut self, reason: io::ErrorKind) {
        self.reading = Reading::Ended;
        match &mut self.phase {
            Phase::Running(left) => drop(left.abort(reason)),
            phase => drop(phase.take_unread()),
        }
    }

    /// Takes back the lease of a job that is done with its request: what the handler left of its body nobody reads.
    pub(super) fn take_back_lease(&mut self) -> Unread {
        self.connection.lease.take_back();
        let unread = self.phase.take_unread();
        if unread.is_some() {
            self.read_no_more();
        }
        unread
    }
}

/// The slots of a shard. A slot that is used again gets a new generation, so that messages and events about its former
/// connection are recognised.
#[derive(Default)]
pub(super) struct Slots {
    places: Vec<Place>,
    free: Vec<u32>,
    used: usize,
}

#[derive(Default)]
struct Place {
    generation: u32,
    slot: Option<Box<Slot>>,
}

impl Slots {
    /// Puts a connection into a free slot; `make` gets the token that names it.
    pub(super) fn insert(&mut self, make: impl FnOnce(Token) -> Arc<Connection>) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let token = Token::new(index, self.places.get(index as usize).map_or(0, |place| place.generation));
        if let Some(place) = self.places.get_mut(index as usize) {
            place.slot = Some(Box::new(Slot::new(make(token))));
            self.used += 1;
        }
        token
    }

    pub(super) fn get(&mut self, token: Token) -> Option<&mut Slot> {
        let place = self.places.get_mut(token.index as usize)?;
        if place.generation == token.generation { place.slot.as_deref_mut() } else { None }
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<Box<Slot>> {
        let place = self.places.get_mut(token.index as usize).filter(|place| place.generation == token.generation)?;
        let slot = place.slot.take()?;
        // The largest generations name the driver's own events.
        place.generation = if place.generation >= u32::MAX - 2 { 0 } else { place.generation + 1 };
        self.free.push(token.index);
        self.used -= 1;
        Some(slot)
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn tokens(&self) -> Vec<Token> {
        let used = self.places.iter().enumerate().filter(|(_, place)| place.slot.is_some());
        used.map(|(index, place)| Token::new(index as u32, place.generation)).collect()
    }
}
