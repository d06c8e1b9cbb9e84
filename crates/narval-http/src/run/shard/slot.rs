use std::sync::Arc;

use crate::http1::head::HeadScan;
use crate::io::clock::Millis;
use crate::io::driver::Token;
use crate::message::responder::Later;
use crate::run::answer_context::AnswerContext;
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
    /// The client sends no more.
    pub(super) input_ended: bool,
    /// How far `input` has been searched for the end of a head.
    pub(super) scan: HeadScan,
    /// Received and not yet used: part of a head, or pipelined requests.
    pub(super) input: Vec<u8>,
    /// A request body that is being received.
    pub(super) incoming: Option<Box<IncomingBody>>,
    /// What the connection is after a 101.
    pub(super) websocket: Option<Box<ws::Stream>>,
    /// For a WebSocket: the driver tells when the socket takes bytes again.
    pub(super) awaiting_writable: bool,
    /// An answer that waits for the socket.
    pub(super) outgoing: Option<Box<Outgoing>>,
    /// An inline answer that is still to come: it has its turn when what is being sent is out.
    pub(super) late: Option<Box<PendingLate>>,
    /// How to end when what is being sent is out.
    pub(super) closing: Option<Close>,
    pub(super) deadline: Millis,
    /// When the timer wheel will look here next; 0: it won't.
    pub(super) look_at: Millis,
    /// A head has begun, and its deadline stands.
    pub(super) head_begun: bool,
    /// The client may still be sending: closing must wait for it.
    pub(super) must_linger: bool,
    /// While lingering: when it is over in any case.
    pub(super) linger_until: Millis,
    /// Input discarded while lingering.
    pub(super) discarded: usize,
}

const _: () = assert!(size_of::<Slot>() <= 256);

/// An answer that is still to come, and what it is an answer to.
pub(super) struct PendingLate {
    pub(super) later: Later,
    pub(super) context: AnswerContext,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A TLS handshake; `input` holds what was received while a job works on what came before.
    Handshake,
    /// Waiting for a request's head.
    Head,
    /// Receiving a body to be buffered.
    Body,
    /// A job holds the lease (or has quietly given it back).
    Running,
    /// The driver sends what the shard made.
    Sending,
    /// An answer waits for the socket to take more.
    Draining,
    /// An answer waits for its source to have more.
    Waiting,
    /// It is a WebSocket.
    WebSocket,
    /// All is sent; the client's remaining input is discarded, so that closing does not reset what it has not read yet.
    Lingering,
}

impl Slot {
    fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            phase: Phase::Head,
            receiving: false,
            input_ended: false,
            scan: HeadScan::default(),
            input: Vec::new(),
            incoming: None,
            websocket: None,
            awaiting_writable: false,
            outgoing: None,
            late: None,
            closing: None,
            deadline: 0,
            look_at: 0,
            head_begun: false,
            must_linger: false,
            linger_until: 0,
            discarded: 0,
        }
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
