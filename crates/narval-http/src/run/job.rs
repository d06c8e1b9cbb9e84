use std::sync::Arc;

use crate::message::body::produced::Maker;
use crate::message::departure::Departure;
use crate::message::request::Request;
use crate::message::responder::LateAnswer;
use crate::run::admission::HandshakePermit;
use crate::run::answer_context::{AnswerContext, PendingLate};
use crate::run::intake::request as intake;
use crate::run::reply::Reply;
use crate::run::transmit::Outgoing;
use crate::ws;

/// Work for a worker.
#[derive(Debug)]
pub(crate) enum Job {
    /// A request to answer.
    Answer(Box<Call>),
    /// A response to continue sending.
    Continue { lease: Reply, outgoing: Box<Outgoing> },
    /// The next piece of a response body on a stream.
    Make { reply_to: Reply, maker: Maker, quantum: usize, departure: Departure },
    /// An answer that arrived after its handler had returned.
    Late(Box<LateCall>),
    /// Events of a WebSocket; at most one such job per socket.
    WebSocket(Arc<ws::Shared>),
    /// Received bytes of a TLS handshake.
    Handshake { lease: Reply, received: Vec<u8>, permit: HandshakePermit },
    /// Freed memory is to be given back to the system.
    GiveBack,
}

/// What other threads are to do for a stream of an HTTP/2 connection.
pub(crate) enum Work {
    /// Answer this request. The connection is told if no worker takes it.
    Request { stream: u32, request: intake::Request, departure: Departure },
    /// Wait for the answer, which follows later.
    Later { stream: u32, later: Box<PendingLate>, departure: Departure },
    /// Produce about this many bytes.
    Make { stream: u32, maker: Maker, quantum: usize, departure: Departure },
}

/// A request, with the right to answer it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) reply_to: Reply,
    pub(crate) request: Request,
    pub(crate) context: AnswerContext,
    /// Its client was there when it was queued. A stream that is reset along with its request counts until its handler has
    /// run: a client that opens and resets streams is not served faster than one that waits (Rapid Reset, CVE-2023-44487).
    pub(crate) had_client: bool,
}

/// A late answer, with the right to send it.
#[derive(Debug)]
pub(crate) struct LateCall {
    pub(crate) reply_to: Reply,
    pub(crate) context: AnswerContext,
    pub(crate) answer: LateAnswer,
}
