//! Taking a request in, whichever version of HTTP brings it: its body is received into memory up to a limit, and streamed to its
//! handler above it.

pub(crate) mod incoming_body;
pub(crate) mod request;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use self::incoming_body::IncomingBody;
pub(crate) use self::request::Request;
use crate::http1::ProtoError;
use crate::http1::head::{Framing, ParsedHead};
use crate::io::clock::{Millis, millis};
use crate::limits::{BODY_AWAITED, BODY_SMALL, Limits};
use crate::message::body::memory::{Buffered, NextStep};
use crate::message::body::pipe::BodyPipe;
use crate::message::request::RequestBody;
use crate::run::service::Service;

/// A request whose body is received into memory.
pub(crate) struct InMemory {
    pub(crate) incoming: Box<IncomingBody>,
    pub(crate) body: Buffered,
    pub(crate) bytes: Bytes,
    pub(crate) head: Box<ParsedHead>,
    /// The first look is for whether any of it has arrived.
    pub(crate) is_awaited: bool,
}

/// How a request with a body begins.
pub(crate) enum Begun {
    /// Its body is too large.
    Rejected(ProtoError),
    /// There is no memory for it.
    Refused,
    /// Its handler reads the body, once a thread is free.
    Stream(InMemory),
    /// The body is received first.
    Receive(InMemory),
}

/// What a look at a body has shown.
pub(crate) enum Look {
    /// To look again at that time.
    Again(Millis),
    /// The rest is streamed to a handler.
    Stream,
    /// The client is too slow.
    TooSlow,
}

impl InMemory {
    /// Begins a request with a body. `framing`: where that ends, if its head does not say so as HTTP/1 does; `is_awaited`: nothing of
    /// it has arrived.
    pub(crate) fn begin(
        bytes: Bytes,
        head: Box<ParsedHead>,
        framing: Framing,
        is_awaited: bool,
        host: &Service<'_>,
    ) -> Begun {
        if let Framing::Length(length) = head.framing
            && length > host.limits().body_max
        {
            return Begun::Rejected(ProtoError::new(StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large"));
        }
        let (incoming, mut body) =
            (Box::new(IncomingBody::new(framing, host.now)), Buffered::new(&host.server.body_memory));
        if let Some(length) = incoming.length() {
            body.share.announce(length);
        }
        if body.share.is_refused() {
            return Begun::Refused;
        }
        let is_streamed = body.share.is_full();
        let request = Self { incoming, body, bytes, head, is_awaited };
        // The client gets `100 Continue` only when the handler wants the body.
        if is_streamed || (request.expects_continue() && host.server.has_spare_streams()) {
            return Begun::Stream(request);
        }
        Begun::Receive(request)
    }

    /// Whether the client waits for `100 Continue` at the beginning.
    pub(crate) fn expects_continue(&self) -> bool {
        self.is_awaited && self.head.expect_continue
    }

    /// When to look at it for the first time.
    pub(crate) fn first_look(&self, host: &Service<'_>) -> Millis {
        let check = self.incoming.next_check(host.now, host.limits());
        if self.is_awaited { check.min(host.now + millis(BODY_AWAITED)) } else { check }
    }

    /// Takes in what has come; returns how much of that belongs to the body, and what is next. `shows_end`: the body itself says where
    /// it ends.
    ///
    /// # Errors
    /// See [`IncomingBody::feed`].
    pub(crate) fn feed(
        &mut self,
        data: &[u8],
        limits: &Limits,
        shows_end: bool,
    ) -> Result<(usize, NextStep), ProtoError> {
        let Self { incoming, body, .. } = self;
        let expected = incoming.length().map_or(usize::MAX, |length| usize::try_from(length).unwrap_or(usize::MAX));
        let expected = expected.min(limits.body_buffer_max);
        let fed = incoming.feed(data, limits, |data| body.push(data, expected))?;
        Ok((fed.consumed, body.next_step(limits.body_buffer_max, fed.done && shows_end)))
    }

    /// Looks whether the client is fast enough, and whether the body may stay in memory.
    pub(crate) fn look(&mut self, host: &Service<'_>) -> Look {
        let (now, limits) = (host.now, host.limits());
        // It waits for a thread from now on, and is not received meanwhile.
        if !self.body.share.is_fair() {
            return Look::Stream;
        }
        if self.is_awaited {
            if !self.incoming.has_begun() && host.server.has_spare_streams() {
                return Look::Stream;
            }
            self.is_awaited = false;
            return Look::Again(self.incoming.next_check(now, limits));
        }
        let is_in_demand = host.server.is_short_for_bodies() && self.body.bytes.len() > BODY_SMALL;
        let next = self.incoming.look(now, limits, false, is_in_demand);
        next.map_or(Look::TooSlow, Look::Again)
    }

    /// The request with its whole body.
    pub(crate) fn whole(self, trailers: HeaderMap) -> Request {
        let Self { body, bytes, head, .. } = self;
        Request { bytes, head, body: Some(Box::new(RequestBody::buffered(body, trailers))) }
    }

    /// The request with a pipe, which `pipe` makes of what has come and how much follows, and what is received into that.
    pub(crate) fn streamed(
        self,
        pipe: impl FnOnce(Buffered, Option<u64>) -> Arc<BodyPipe>,
    ) -> (Request, Box<IncomingBody>, Arc<BodyPipe>) {
        let Self { incoming, body, bytes, head, .. } = self;
        let pipe = pipe(body, incoming.rest());
        let body = Some(Box::new(RequestBody::streamed(pipe.clone())));
        (Request { bytes, head, body }, incoming, pipe)
    }
}

/// Looks whether the client sends a streamed body fast enough.
pub(crate) fn look_at_piped(incoming: &mut IncomingBody, pipe: &BodyPipe, host: &Service<'_>) -> Look {
    let next = incoming.look(host.now, host.limits(), pipe.is_paused(), host.server.is_short_for_bodies());
    next.map_or(Look::TooSlow, Look::Again)
}

/// What a client is told whose body came too slowly.
pub(crate) fn too_slow() -> ProtoError {
    ProtoError::new(StatusCode::REQUEST_TIMEOUT, "the request body arrived too slowly")
}
