use std::sync::Arc;

use http::Version;

use crate::io::clock::Millis;
use crate::io::driver::Token;
use crate::io::out_buf::OutBuf;
use crate::io::output_memory::Share;
use crate::io::over::Close;
use crate::limits::Limits;
use crate::message::departure::{Departure, Here};
use crate::message::informational::Informational;
use crate::run::answer_context::PendingLate;
use crate::run::closing::Closing;
use crate::run::connection::Connection;
use crate::run::http1::Conn;
use crate::run::http2::conn::{Conn as Http2Conn, Wants};
use crate::run::transmit::Outgoing;
use crate::ws;

/// A shard's state of a connection. An idle one holds no buffer.
pub(super) struct Slot {
    pub(super) connection: Arc<Connection>,
    pub(super) protocol: Protocol,
    /// Received bytes that are not used yet: part of a head, pipelined requests, what arrives while a job processes a part of a
    /// handshake. An HTTP/2 connection keeps parts of frames itself.
    pub(super) input: Box<[u8]>,
    /// The client has ended its input.
    pub(super) has_ended: bool,
    /// The driver will report when the socket is writable.
    pub(super) awaits_room: bool,
    pub(super) delivery: Delivery,
    /// A receive is in progress.
    pub(super) receiving: bool,
    /// It waits for bytes from its client.
    pub(super) wants_read: bool,
    /// An HTTP/1 connection waits for the end of its job.
    pub(super) wants_answer: bool,
    /// It must be closed, and nothing else done.
    pub(super) is_gone: bool,
    /// When the protocol's timer is due.
    pub(super) deadline: Millis,
    /// Tells whoever works for the last request of an HTTP/1 connection when its client leaves.
    pub(super) departure: Departure,
    /// When to look at such a client; 0 while it is being received from.
    pub(super) look_at: Millis,
    /// Bytes for the client that the shard itself holds; those of HTTP/1 answers have their own share.
    pub(super) held: Share,
}

const _: () = assert!(size_of::<Slot>() <= 128, "there are many of them, and most are idle");

/// The protocol of a connection.
pub(super) enum Protocol {
    /// The header of the PROXY protocol is expected; it is incomplete so far.
    ProxyHeader,
    /// A TLS handshake.
    Handshake,
    /// HTTP/1.
    Http1(Conn),
    /// HTTP/2.
    Http2(Box<Http2>),
    /// WebSocket.
    WebSocket(Box<ws::Stream>),
    /// Any of them, after its last byte.
    Closing(Box<Closing>),
}

/// An HTTP/2 connection and its output.
pub(super) struct Http2 {
    pub(super) conn: Http2Conn,
    pub(super) wants: Wants,
    /// Sealed bytes that the socket has not taken.
    pub(super) wire: OutBuf,
    /// It is among the connections that send in turn.
    pub(super) awaits_turn: bool,
    /// The connection knows that its output waits for the socket.
    pub(super) is_blocked: bool,
}

impl Http2 {
    pub(super) fn new(now: Millis, websockets: bool, limits: &Limits) -> Self {
        let conn = Http2Conn::new(now, websockets, limits);
        Self { wants: conn.wants(), conn, wire: OutBuf::default(), awaits_turn: false, is_blocked: false }
    }
}

/// Where the answer to the last request of an HTTP/1 connection is.
#[derive(Default)]
pub(super) enum Delivery {
    /// There is none.
    #[default]
    Idle,
    /// A job has it, and the lease, unless it has ended without a message. A handshake's job always sends one.
    Away,
    /// The driver sends the gathered responses.
    InFlight(After),
    /// It waits for the socket.
    AtSocket(Box<Outgoing>),
    /// It waits for its source.
    AtSource(Box<Outgoing>),
}

/// What follows gathered responses that are not sent yet.
pub(super) enum After {
    /// The next request.
    Next,
    /// The end of the connection.
    Close(Close),
    /// An answer that follows later.
    Late(Box<PendingLate>),
}

impl Delivery {
    /// When to look at it.
    #[inline(always)]
    fn deadline(&self) -> Millis {
        match self {
            // That of the protocol.
            Self::Idle | Self::Away | Self::InFlight(_) => Millis::MAX,
            Self::AtSocket(outgoing) | Self::AtSource(outgoing) => outgoing.until,
        }
    }

    /// Whether it waits for its source.
    pub(super) fn is_at_source(&self) -> bool {
        matches!(self, Self::AtSource(_))
    }

    /// Whether the shard sends it.
    pub(super) fn is_here(&self) -> bool {
        !matches!(self, Self::Idle | Self::Away)
    }
}

impl Slot {
    pub(super) fn token(&self) -> Token {
        self.connection.token
    }

    /// When something is due: for the protocol, its answer on its way, or a client that may have left.
    #[inline(always)]
    pub(super) fn due(&self) -> Millis {
        let look_at = if self.look_at == 0 { Millis::MAX } else { self.look_at };
        self.deadline.min(self.delivery.deadline()).min(look_at)
    }

    /// A request is handed to a job.
    pub(super) fn await_answer(&mut self, version: Version) -> Here {
        self.connection.await_answer();
        let here = Here::new(Informational::is_known_to(version));
        self.departure = here.departure().clone();
        here
    }

    /// Whether a job has the lease, as far as the shard knows.
    pub(super) fn is_away(&self) -> bool {
        matches!(self.delivery, Delivery::Away)
    }

    /// A job has ended, and says so.
    pub(super) fn take_lease_back(&mut self) {
        self.connection.lease.take_back();
        self.delivery = Delivery::Idle;
    }

    /// Its protocol is HTTP/1 from now on.
    pub(super) fn begin_http1(&mut self, deadline: Millis) {
        self.protocol = Protocol::Http1(Conn::new(deadline));
        (self.deadline, self.wants_read) = (deadline, true);
    }

    /// Keeps received bytes behind those that it has.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        let mut input = std::mem::take(&mut self.input).into_vec();
        input.extend_from_slice(bytes);
        self.input = input.into_boxed_slice();
    }

    /// The HTTP/1 connection, if it is one.
    #[inline(always)]
    pub(super) fn http1(&mut self) -> Option<&mut Conn> {
        match &mut self.protocol {
            Protocol::Http1(conn) => Some(conn),
            _ => None,
        }
    }

    /// Its state, for the log of a simulation.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn describe(&self) -> String {
        match &self.protocol {
            Protocol::ProxyHeader => "a PROXY header".to_owned(),
            Protocol::Handshake => "a TLS handshake".to_owned(),
            Protocol::Http1(conn) => conn.describe(),
            Protocol::Http2(http2) => http2.conn.describe(),
            Protocol::WebSocket(stream) => format!("{stream:?}"),
            Protocol::Closing(_) => "the end".to_owned(),
        }
    }
}

/// The slots of a shard. A reused slot gets a new generation, so stale messages and events about its previous
/// connection are recognised.
#[derive(Default)]
pub(super) struct Slots {
    places: Vec<Place>,
    free: Vec<u32>,
    used: usize,
    /// The place of the next [look](Self::next_token).
    hand: usize,
}

#[derive(Default)]
struct Place {
    generation: u32,
    /// `None` while an event is handled.
    slot: Option<Box<Slot>>,
}

impl Slots {
    /// Puts a connection into a free slot; `make` gets its token.
    pub(super) fn insert(&mut self, make: impl FnOnce(Token) -> Slot) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let token = Token::new(index, self.places.get(index as usize).map_or(0, |place| place.generation));
        if let Some(place) = self.places.get_mut(index as usize) {
            place.slot = Some(Box::new(make(token)));
            self.used += 1;
        }
        token
    }

    /// Takes a slot out while an event is handled; afterwards [put it back](Self::put) or [remove it](Self::remove).
    #[inline(always)]
    pub(super) fn take(&mut self, token: Token) -> Option<Box<Slot>> {
        let place = self.places.get_mut(token.index as usize)?;
        if place.generation == token.generation { place.slot.take() } else { None }
    }

    /// Puts a taken slot back.
    #[inline(always)]
    pub(super) fn put(&mut self, slot: Box<Slot>) {
        if let Some(place) = self.places.get_mut(slot.token().index as usize) {
            place.slot = Some(slot);
        }
    }

    /// Frees a taken slot: its connection is closed.
    pub(super) fn remove(&mut self, token: Token) {
        if let Some(place) = self.places.get_mut(token.index as usize) {
            // The largest generations are reserved for the driver's own events.
            place.generation = if place.generation >= u32::MAX - 2 { 0 } else { place.generation + 1 };
            self.free.push(token.index);
            self.used -= 1;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// The connection of the next place, if it has one; after the last place comes the first.
    pub(super) fn next_token(&mut self) -> Option<Token> {
        self.hand = if self.hand + 1 < self.places.len() { self.hand + 1 } else { 0 };
        let place = self.places.get(self.hand).filter(|place| place.slot.is_some())?;
        Some(Token::new(self.hand as u32, place.generation))
    }

    pub(super) fn tokens(&self) -> Vec<Token> {
        let used = self.places.iter().enumerate().filter(|(_, place)| place.slot.is_some());
        used.map(|(index, place)| Token::new(index as u32, place.generation)).collect()
    }
}
