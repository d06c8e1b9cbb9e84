//! Request bodies: into memory up to a limit, above it to a handler that reads them while they come.

use std::io;
use std::sync::Arc;

use super::serve::Begun;
use super::slot::{Body, BodyLeft, Phase, Scan, Then, Unread};
use super::{Shard, millis};
use crate::http1::ProtoError;
use crate::http1::head::{Framing, ParsedHead};
use crate::http1::response_head::AnswerTo;
use crate::io::driver::{Driver, Token};
use crate::limits::{BODY_SMALL, Limits};
use crate::message::response::reason_response;
use crate::run::body_pipe::{BodyPipe, Buffered};
use crate::run::connection::Connection;
use crate::run::incoming_body::{Fed, IncomingBody};
use crate::run::lease::Holder;
use crate::run::mailbox::Close;
use crate::run::server_state::ServerState;
use crate::run::transmit::encode;
use crate::{Bytes, RequestBody, Response};

impl<D: Driver<Connection>> Shard<D> {
    /// Begins to receive the body of a request, of which `input` has the first bytes (and maybe more than the body).
    /// Returns how many of them belong to the body.
    pub(super) fn begin_body(&mut self, token: Token, bytes: Bytes, head: ParsedHead, input: &[u8]) -> usize {
        let limits = &self.server.limits;
        if let Framing::Length(length) = head.framing
            && length > limits.body_max
        {
            let error = ProtoError::new(http::StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large");
            self.reject_body(token, error, head.parts.method == http::Method::HEAD);
            return input.len();
        }
        let expects = head.expect_continue && input.is_empty();
        let window_end = self.now + millis(limits.body_stall_timeout);
        let body = Buffered::new(&self.server.body_memory);
        let incoming = Box::new(IncomingBody::new(head.framing, window_end));
        let Some(slot) = self.slots.get(token) else { return 0 };
        if expects && self.server.has_spare_streams() {
            // It gets its `100 Continue` when the handler wants the body, and not before.
            let pipe = Arc::new(BodyPipe::new(slot.connection.clone(), limits.body_window, true, body));
            if let Begun::Answered = self.dispatch_streamed(token, bytes, head, incoming, pipe) {
                return 0;
            }
        } else {
            if expects {
                slot.connection.send_continue();
            }
            slot.phase = Phase::Body(Box::new(Body { incoming, body, head: bytes, parsed: Box::new(head) }));
        }
        self.watch_body(token);
        if input.is_empty() { 0 } else { self.feed(token, input) }
    }

    fn dispatch_streamed(
        &mut self,
        token: Token,
        bytes: Bytes,
        head: ParsedHead,
        incoming: Box<IncomingBody>,
        pipe: Arc<BodyPipe>,
    ) -> Begun {
        let body = RequestBody::streamed(pipe.clone());
        self.dispatch(token, bytes, head, body, BodyLeft::Streamed { incoming, pipe })
    }

    /// Input while a body is being received.
    pub(super) fn on_body(&mut self, token: Token, input: &[u8]) {
        let used = self.feed(token, input);
        self.keep(token, input.get(used..).unwrap_or_default());
        // The body may have been the last that was missing, or its request was refused: what is behind it is the next.
        if let Some(slot) = self.slots.get(token)
            && !slot.input.is_empty()
        {
            match slot.phase {
                Phase::Head(_) => self.serve(token, &[]),
                Phase::Running(_) => self.serve_waiting(token),
                _ => {}
            }
        }
    }

    /// Gives input to the body; returns how much of it belongs there.
    fn feed(&mut self, token: Token, input: &[u8]) -> usize {
        let limits = &self.server.limits;
        let Some(slot) = self.slots.get(token) else { return input.len() };
        match &mut slot.phase {
            Phase::Body(_) => return self.feed_buffer(token, input),
            Phase::Running(left @ BodyLeft::Streamed { .. }) => {
                let BodyLeft::Streamed { incoming, pipe } = left else { return 0 };
                match incoming.feed(input, limits, |data| pipe.push(data)) {
                    Ok(Fed { consumed, done }) => {
                        if done {
                            pipe.complete(incoming.trailers());
                            *left = BodyLeft::Nothing;
                        }
                        return consumed;
                    }
                    Err(error) => pipe.refuse(error),
                }
                *left = BodyLeft::Nothing;
            }
            Phase::Running(left @ BodyLeft::Unread(_)) => {
                let BodyLeft::Unread(incoming) = left else { return 0 };
                match incoming.feed(input, limits, |_| {}) {
                    Ok(Fed { consumed, done }) => {
                        if done {
                            *left = BodyLeft::Nothing;
                        }
                        return consumed;
                    }
                    Err(_) => *left = BodyLeft::Nothing,
                }
            }
            _ => return 0,
        }
        // The handler that reads it finds out, and answers what it wants; the connection ends after that. What the client still
        // sends is read then, so that the answer is not lost to a reset.
        slot.read_no_more();
        input.len()
    }

    /// Gives input to a body that is received into memory; returns how much of it belongs there.
    fn feed_buffer(&mut self, token: Token, input: &[u8]) -> usize {
        let limits = &self.server.limits;
        let Some(slot) = self.slots.get(token) else { return input.len() };
        let Phase::Body(request) = &mut slot.phase else { return 0 };
        let Body { incoming, body, parsed, .. } = &mut **request;
        let is_head = parsed.parts.method == http::Method::HEAD;
        let expected = incoming.length().map_or(usize::MAX, |length| usize::try_from(length).unwrap_or(usize::MAX));
        let expected = expected.min(limits.body_buffer_max);
        let fed = match incoming.feed(input, limits, |data| body.push(data, expected)) {
            Ok(fed) => fed,
            Err(error) => {
                self.reject_body(token, error, is_head);
                return input.len();
            }
        };
        match what_next(body, fed.done, &self.server) {
            Next::Receive => {}
            Next::Dispatch => self.body_complete(token),
            Next::Stream => self.stream_body(token),
            Next::Refuse => {
                self.counters.overloaded.add(1);
                self.reject_with(token, self.server.overloaded.clone().into(), is_head);
                return input.len();
            }
        }
        fed.consumed
    }

    /// The whole body is in memory: the request is dispatched.
    fn body_complete(&mut self, token: Token) {
        let Some(Body { incoming, body, head, parsed }) = self.take_body(token) else { return };
        let body = RequestBody::buffered(body, incoming.trailers());
        self.dispatch(token, head, *parsed, body, BodyLeft::Nothing);
    }

    /// As much of a body is in memory as may be: its handler is to read the rest while it comes.
    fn stream_body(&mut self, token: Token) {
        let window = self.server.limits.body_window;
        let Some(Body { incoming, body, head, parsed }) = self.take_body(token) else { return };
        let Some(slot) = self.slots.get(token) else { return };
        let pipe = Arc::new(BodyPipe::new(slot.connection.clone(), window, false, body));
        self.dispatch_streamed(token, head, *parsed, incoming, pipe);
        self.watch_body(token);
    }

    /// Takes out a request whose body was received; it is about to be dispatched.
    fn take_body(&mut self, token: Token) -> Option<Body> {
        let slot = self.slots.get(token)?;
        match std::mem::replace(&mut slot.phase, Phase::Head(Scan::default())) {
            Phase::Body(body) => Some(*body),
            phase => {
                slot.phase = phase;
                None
            }
        }
    }

    /// Has the progress of a body checked in time.
    fn watch_body(&mut self, token: Token) {
        let now = self.now;
        let Some(slot) = self.slots.get(token) else { return };
        let incoming = match &slot.phase {
            Phase::Body(body) => &body.incoming,
            Phase::Running(BodyLeft::Streamed { incoming, .. } | BodyLeft::Unread(incoming)) => incoming,
            _ => return,
        };
        slot.deadline = incoming.next_check(now, &self.server.limits);
        self.watch(token);
    }

    /// The progress of a body is to be checked.
    pub(super) fn on_body_deadline(&mut self, token: Token) {
        let (now, limits) = (self.now, &self.server.limits);
        let short = self.server.is_short_for_bodies();
        let Some(slot) = self.slots.get(token) else { return };
        let (incoming, is_paused, is_in_demand) = match &mut slot.phase {
            Phase::Body(body) => {
                let is_costly = body.body.bytes.len() > BODY_SMALL || !body.body.share.is_fair();
                (&mut body.incoming, false, short && is_costly)
            }
            Phase::Running(BodyLeft::Streamed { incoming, pipe }) => (incoming, pipe.is_paused(), short),
            Phase::Running(BodyLeft::Unread(incoming)) => (incoming, false, false),
            _ => return self.close(token),
        };
        if incoming.progresses(now, limits, is_paused, is_in_demand) {
            slot.deadline = incoming.next_check(now, limits);
            return;
        }
        self.counters.timeouts.add(1);
        match &mut slot.phase {
            Phase::Body(body) => {
                let is_head = body.parsed.parts.method == http::Method::HEAD;
                let reason = "the request body came too slowly";
                return self.reject_with(token, reason_response(http::StatusCode::REQUEST_TIMEOUT, reason), is_head);
            }
            Phase::Running(left) => drop(left.abort(io::ErrorKind::TimedOut)),
            _ => {}
        }
        slot.read_no_more();
        slot.deadline = now + millis(limits.keep_alive_timeout);
        if slot.connection.lease.wait_for() == Holder::Shard {
            self.close(token);
        }
    }

    /// Answers a body that breaks a rule, and closes.
    fn reject_body(&mut self, token: Token, error: ProtoError, is_head: bool) {
        self.counters.rejected.add(1);
        self.reject_with(token, reason_response(error.status, error.reason), is_head);
    }

    /// Answers this instead of receiving the body, and closes.
    fn reject_with(&mut self, token: Token, response: Response, is_head: bool) {
        let to = AnswerTo { version: http::Version::HTTP_11, is_head, keep_alive: false };
        let mut out = self.take_out();
        let encoded = encode(response, to, &mut out);
        self.counters.status(encoded.status.as_u16());
        if let Some(slot) = self.slots.get(token) {
            slot.phase = Phase::Head(Scan::default());
            slot.read_no_more();
        }
        if let Some(then) = self.send(token, out, Then::Close(Close::Clean { large: false })) {
            self.after_answer(token, then, None);
        }
    }
}

/// Receives more of a body that nobody reads, while its answer goes out or the connection ends. What is behind it, or can't be
/// understood, is of no use either: the connection ends.
pub(super) fn feed_unread(unread: &mut Unread, bytes: &[u8], limits: &Limits) {
    if let Some(incoming) = unread
        && !incoming.feed(bytes, limits, |_| {}).is_ok_and(|fed| !fed.done)
    {
        *unread = None;
    }
}

/// What is to be done with a body that is being received into memory.
enum Next {
    /// Receive more of it.
    Receive,
    /// It is complete.
    Dispatch,
    /// A handler is to read the rest while it comes.
    Stream,
    /// There is no memory for it.
    Refuse,
}

fn what_next(body: &Buffered, is_complete: bool, server: &ServerState) -> Next {
    if !body.share.fits() {
        Next::Refuse
    } else if is_complete {
        Next::Dispatch
    } else if body.bytes.len() > server.limits.body_buffer_max {
        Next::Stream
    } else if body.share.is_fair() {
        Next::Receive
    } else if server.has_free_stream() {
        Next::Stream
    } else {
        Next::Refuse
    }
}
