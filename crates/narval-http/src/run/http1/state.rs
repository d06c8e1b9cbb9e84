use std::io;
use std::mem;
use std::sync::Arc;

use crate::http1::head::HeadScan;
use crate::message::body::pipe::{BodyPipe, Receiver};
use crate::run::closing::Unread;
use crate::run::intake::InMemory;
use crate::run::intake::incoming_body::IncomingBody;

/// The client's side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The client may send more.
    Open,
    /// The client may send more, which is discarded: the connection ends, and closing must wait until the rest is
    /// received.
    Unread,
    /// The client has ended its input.
    Ended,
}

/// The state of a connection, with the data of each state.
pub(super) enum State {
    /// Waiting for a request's head.
    Head(Scan),
    /// Receiving a request body into memory.
    Body(Box<InMemory>),
    /// The last request is being answered.
    Answering(BodyLeft),
}

/// How far a head has been received.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// How far the input has been searched for the end of the head.
    pub(super) scan: HeadScan,
    /// Part of the head has arrived, and its deadline is fixed.
    pub(super) has_begun: bool,
}

/// The unreceived part of the body of a request that is being answered.
pub(super) enum BodyLeft {
    /// Nothing: it is complete, or there is none.
    Nothing,
    /// The handler reads it from a pipe, until the response begins.
    Streamed { incoming: Box<IncomingBody>, pipe: Arc<BodyPipe> },
}

impl State {
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Head(_) => "Head",
            Self::Body(_) => "Body",
            Self::Answering(_) => "Answering",
        }
    }
}

impl BodyLeft {
    /// Counts bytes that the handler has received itself.
    pub(super) fn catch_up(&mut self) {
        if let Self::Streamed { incoming, pipe } = self {
            let received = pipe.take_received();
            if received > 0 && incoming.skip(received) {
                *self = Self::Nothing;
            }
        }
    }

    /// Whether the connection must receive more. `has_input`: what it has is not used yet; `is_receiving`: it does so already.
    pub(super) fn is_received_here(&mut self, has_input: bool, is_receiving: bool) -> bool {
        self.catch_up();
        let Self::Streamed { incoming, pipe } = self else { return !has_input };
        if is_receiving {
            return true;
        }
        let receiver = pipe.receiver();
        if receiver == Receiver::Nobody {
            incoming.pause();
        }
        receiver == Receiver::Connection
    }

    /// The handler gets no more of the body.
    pub(super) fn abort(&mut self, reason: io::ErrorKind) -> Unread {
        self.catch_up();
        match mem::replace(self, Self::Nothing) {
            Self::Nothing => None,
            Self::Streamed { incoming, pipe } => {
                pipe.abort(reason);
                Some(incoming)
            }
        }
    }
}
