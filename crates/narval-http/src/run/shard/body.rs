//! Request bodies: into memory up to a limit, above it to a handler that reads them while they come.

use std::io;
use std::sync::Arc;

use super::serve::Begun;
use super::slot::Phase;
use super::{Shard, millis};
use crate::http1::ProtoError;
use crate::http1::head::{Framing, ParsedHead};
use crate::http1::response_head::AnswerTo;
use crate::io::driver::{Driver, Token};
use crate::message::response::reason_response;
use crate::run::connection::Connection;
use crate::run::incoming_body::{BodyPipe, Buffered, IncomingBody, Sink};
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
        let framing = head.framing;
        let expects = head.expect_continue && input.is_empty();
        let window_end = self.now + millis(limits.body_stall_timeout);
        let body = Buffered::new(&self.server.body_memory);
        let Some(slot) = self.slots.get(token) else { return 0 };
        if expects && self.server.has_spare_streams() {
            // It gets its `100 Continue` when the handler wants the body, and not before.
            let pipe = Arc::new(BodyPipe::new(slot.connection.clone(), limits.body_window, true, body));
            slot.incoming = Some(Box::new(IncomingBody::new(framing, Sink::Pipe(pipe.clone()), window_end)));
            if let Begun::Answered = self.dispatch(token, bytes, head, RequestBody::streamed(pipe.clone()), Some(pipe))
            {
                return 0;
            }
        } else {
            if expects {
                slot.connection.send_continue();
            }
            slot.phase = Phase::Body;
            let sink = Sink::Buffer { head: bytes, parsed: Box::new(head), body };
            slot.incoming = Some(Box::new(IncomingBody::new(framing, sink, window_end)));
        }
        self.watch_body(token);
        if input.is_empty() { 0 } else { self.feed(token, input) }
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
                Phase::Head => self.serve(token, &[]),
                Phase::Running => self.serve_waiting(token),
                _ => {}
            }
        }
    }

    /// Gives input to the body; returns how much of it belongs there.
    fn feed(&mut self, token: Token, input: &[u8]) -> usize {
        let limits = &self.server.limits;
        let Some(slot) = self.slots.get(token) else { return input.len() };
        let Some(incoming) = &mut slot.incoming else { return 0 };
        let fed = match incoming.feed(input, limits) {
            Ok(fed) => fed,
            Err(error) => {
                incoming.refuse(error);
                let (buffered, is_head) = (matches!(incoming.sink, Sink::Buffer { .. }), incoming.is_head());
                slot.incoming = None;
                if buffered {
                    self.reject_body(token, error, is_head);
                } else {
                    // The handler that reads it finds out, and answers what it wants; the connection ends after that. What the
                    // client still sends is read then, so that the answer is not lost to a reset.
                    slot.must_linger = true;
                }
                return input.len();
            }
        };
        let next = match &incoming.sink {
            Sink::Buffer { body, .. } => what_next(body, fed.done, &self.server),
            Sink::Pipe(_) | Sink::Discard if fed.done => {
                slot.incoming = None;
                return fed.consumed;
            }
            Sink::Pipe(_) | Sink::Discard => Next::Receive,
        };
        match next {
            Next::Receive => {}
            Next::Dispatch => self.body_complete(token),
            Next::Stream => self.stream_body(token),
            Next::Refuse => {
                self.counters.overloaded.add(1);
                let is_head = incoming.is_head();
                slot.incoming = None;
                self.reject_with(token, self.server.overloaded.clone().into(), is_head);
                return input.len();
            }
        }
        fed.consumed
    }

    /// The whole body is in memory: the request is dispatched.
    fn body_complete(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let Some(incoming) = slot.incoming.take() else { return };
        let trailers = incoming.trailers();
        let Sink::Buffer { head, parsed, body } = incoming.sink else { return };
        slot.phase = Phase::Head;
        self.dispatch(token, head, *parsed, RequestBody::buffered(body, trailers), None);
    }

    /// As much of a body is in memory as may be: its handler is to read the rest while it comes.
    fn stream_body(&mut self, token: Token) {
        let window = self.server.limits.body_window;
        let Some(slot) = self.slots.get(token) else { return };
        let Some(mut incoming) = slot.incoming.take() else { return };
        let Sink::Buffer { head, parsed, body } = incoming.sink else { return };
        let pipe = Arc::new(BodyPipe::new(slot.connection.clone(), window, false, body));
        incoming.sink = Sink::Pipe(pipe.clone());
        slot.incoming = Some(incoming);
        self.dispatch(token, head, *parsed, RequestBody::streamed(pipe.clone()), Some(pipe));
        self.watch_body(token);
    }

    /// Sees to it that the progress of a body is looked at in time.
    fn watch_body(&mut self, token: Token) {
        let now = self.now;
        if let Some(slot) = self.slots.get(token)
            && let Some(incoming) = &slot.incoming
        {
            slot.deadline = incoming.next_look(now, &self.server.limits);
            self.watch(token);
        }
    }

    /// The progress of a body is to be looked at.
    pub(super) fn on_body_deadline(&mut self, token: Token) {
        let limits = &self.server.limits;
        let short = self.server.is_short_for_bodies();
        let Some(slot) = self.slots.get(token) else { return };
        let Some(incoming) = &mut slot.incoming else { return self.close(token) };
        if incoming.progresses(self.now, limits, short) {
            slot.deadline = incoming.next_look(self.now, limits);
            return;
        }
        self.counters.timeouts.add(1);
        incoming.break_off(io::ErrorKind::TimedOut);
        let is_head = incoming.is_head();
        slot.incoming = None;
        if slot.phase == Phase::Body {
            let reason = "the request body came too slowly";
            return self.reject_with(token, reason_response(http::StatusCode::REQUEST_TIMEOUT, reason), is_head);
        }
        slot.must_linger = true;
        slot.deadline = self.now + millis(limits.keep_alive_timeout);
        if slot.connection.lease.wait_for() == Holder::Shard {
            self.close(token);
        }
    }

    /// More of a body that nobody reads, while its answer goes out or the connection ends.
    pub(super) fn on_unwanted_body(&mut self, token: Token, bytes: &[u8]) {
        let limits = &self.server.limits;
        if let Some(slot) = self.slots.get(token)
            && let Some(incoming) = &mut slot.incoming
        {
            // What is behind it, or can't be understood, is of no use either: the connection ends.
            match incoming.feed(bytes, limits) {
                Ok(fed) if !fed.done => {}
                Ok(_) | Err(_) => slot.incoming = None,
            }
        }
        self.receive(token);
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
            slot.phase = Phase::Head;
            slot.closing = Some(Close::Clean { large: false });
            slot.must_linger = true;
        }
        if self.send(token, out) {
            self.after_answer(token);
        }
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
