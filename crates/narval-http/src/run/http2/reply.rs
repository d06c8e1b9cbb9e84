use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::body::{Made, Maker};
use super::event::{StreamEvent, Streamed};
use crate::http2::conn::Answer;
use crate::http2::response::informational_block;
use crate::io::driver::Token;
use crate::io::output_memory::{Holding, Share};
use crate::message::body_pipe::Feeder;
use crate::message::body_source::Wakes;
use crate::message::departure::Departure;
use crate::message::informational::Informational;
use crate::run::connection::{Connection, TxLease};
use crate::run::mailbox::{Mailbox, Message};
use crate::tls::link::Link;
use crate::ws;

/// The right to answer a request.
#[derive(Debug)]
pub(crate) enum ReplyTo {
    /// By writing to its connection.
    Connection(TxLease),
    /// By a message to the shard, which alone writes to an HTTP/2 connection.
    Stream(StreamReply),
}

impl ReplyTo {
    /// The connection.
    pub(crate) fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Connection(lease) => lease.connection().map(|connection| &**connection),
            Self::Stream(reply) => Some(&reply.connection),
        }
    }

    /// Sends an informational response before the answer, if that does not block.
    ///
    /// # Errors
    /// The connection is broken; drop the right to answer.
    pub(crate) fn inform(&self, message: &Informational<'_>) -> io::Result<bool> {
        match self {
            Self::Connection(lease) => {
                lease.connection().map_or(Ok(false), |connection| connection.send_ahead(message.encode()))
            }
            Self::Stream(reply) => {
                reply.post(StreamEvent::Inform(informational_block(message.status(), message.fields())));
                Ok(true)
            }
        }
    }

    /// Returns an unused right. Only on the shard's own thread.
    pub(crate) fn give_up(self) {
        match self {
            Self::Connection(lease) => lease.give_up(),
            Self::Stream(mut reply) => reply.is_used = true,
        }
    }
}

/// The right to answer on a stream. Dropping it without an answer resets the stream.
#[derive(Debug)]
pub(crate) struct StreamReply {
    connection: Arc<Connection>,
    stream: u32,
    is_used: bool,
}

impl StreamReply {
    pub(crate) fn new(connection: &Arc<Connection>, stream: u32) -> Self {
        Self { connection: connection.clone(), stream, is_used: false }
    }

    fn post(&self, event: StreamEvent) {
        self.connection.post(Message::Stream { token: self.connection.token, stream: self.stream, event });
    }

    /// Answers. `held`: what the answer holds until the shard has it.
    pub(crate) fn answer(mut self, answer: Answer<Streamed>, held: Share) {
        self.is_used = true;
        self.post(StreamEvent::Answer(Box::new(answer), held));
    }
}

impl Drop for StreamReply {
    fn drop(&mut self) {
        if !self.is_used {
            self.post(StreamEvent::Lost);
        }
    }
}

/// A job for a worker: produce a piece of a body. The shard is notified in any case.
pub(crate) struct MakeJob {
    connection: Arc<Connection>,
    stream: u32,
    maker: Option<Maker>,
    quantum: usize,
    departure: Departure,
}

impl MakeJob {
    pub(crate) fn new(
        connection: &Arc<Connection>,
        stream: u32,
        maker: Maker,
        quantum: usize,
        departure: Departure,
    ) -> Self {
        Self { connection: connection.clone(), stream, maker: Some(maker), quantum, departure }
    }

    /// Produces the piece, unless the client has left, and sends it to the shard.
    pub(crate) fn run(mut self) {
        if self.departure.is_gone() {
            return;
        }
        let Some(maker) = self.maker.take() else { return };
        let quantum = self.quantum;
        let made = catch_unwind(AssertUnwindSafe(|| maker.make(quantum)));
        self.post(made.unwrap_or_else(|_| Err(io::Error::other("producing a piece of a response body panicked"))));
        self.quantum = 0;
    }

    fn post(&self, made: io::Result<Made>) {
        let event = StreamEvent::Made { made, quantum: self.quantum };
        self.connection.post(Message::Stream { token: self.connection.token, stream: self.stream, event });
    }
}

impl Drop for MakeJob {
    fn drop(&mut self) {
        // Zero only after it ran.
        if self.quantum > 0 {
            self.post(Err(io::ErrorKind::Interrupted.into()));
        }
    }
}

impl std::fmt::Debug for MakeJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MakeJob({}, {} bytes)", self.stream, self.quantum)
    }
}

/// Where the request body of a stream comes from.
#[derive(Debug)]
pub(crate) struct StreamFeeder {
    connection: Arc<Connection>,
    stream: u32,
}

impl StreamFeeder {
    pub(crate) fn new(connection: &Arc<Connection>, stream: u32) -> Self {
        Self { connection: connection.clone(), stream }
    }

    fn post(&self, event: StreamEvent) {
        self.connection.post(Message::Stream { token: self.connection.token, stream: self.stream, event });
    }
}

impl Feeder for StreamFeeder {
    fn send_continue(&self) {
        self.post(StreamEvent::ContinueWanted);
    }

    fn want_body(&self) {
        self.post(StreamEvent::BodyWanted);
    }
}

/// The stream that carries a WebSocket.
#[derive(Debug)]
pub(crate) struct StreamCarrier {
    connection: Arc<Connection>,
    stream: u32,
}

impl StreamCarrier {
    pub(crate) fn new(connection: &Arc<Connection>, stream: u32) -> Self {
        Self { connection: connection.clone(), stream }
    }
}

impl ws::Carrier for StreamCarrier {
    fn link(&self) -> Option<&Link> {
        None
    }

    fn holding(&self) -> &Arc<Holding> {
        self.connection.holding()
    }

    fn tell(&self) {
        let event = StreamEvent::WebSocket;
        self.connection.post(Message::Stream { token: self.connection.token, stream: self.stream, event });
    }
}

/// Notifies a shard that the body of a stream has more data.
#[derive(Debug)]
pub(crate) struct StreamWakes {
    home: Arc<Mailbox>,
    stream: u32,
}

impl StreamWakes {
    pub(crate) fn new(home: &Arc<Mailbox>, stream: u32) -> Self {
        Self { home: home.clone(), stream }
    }
}

impl Wakes for StreamWakes {
    fn body_is_ready(&self, token: Token) {
        self.home.post(Message::Stream { token, stream: self.stream, event: StreamEvent::BodyReady });
    }
}
