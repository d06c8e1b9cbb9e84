//! Request bodies: into memory up to a limit, above it to the handler while it runs.

use std::sync::Arc;

use super::serve::Begun;
use super::slot::Phase;
use super::{Shard, millis};
use crate::connection::Close;
use crate::driver::{Driver, Token};
use crate::engine::reason_response;
use crate::intake::{BodyPipe, Intake, Sink};
use crate::proto::ProtoError;
use crate::proto::head::{Framing, ParsedHead};
use crate::proto::response::AnswerTo;
use crate::transmit::encode;
use crate::{Bytes, RequestBody};

impl<D: Driver> Shard<D> {
    /// Begins to receive the body of a request, of which `input` has the first bytes (and maybe more than the body).
    /// Returns how many of them belong to the body.
    pub(super) fn begin_body(&mut self, token: Token, bytes: Bytes, head: ParsedHead, input: &[u8]) -> usize {
        let limits = &self.engine.limits;
        if let Framing::Length(length) = head.framing
            && length > limits.body_max
        {
            let error = ProtoError::new(http::StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large");
            self.reject_body(token, error);
            return input.len();
        }
        let is_small = matches!(head.framing, Framing::Length(length) if length <= limits.body_buffer_max as u64)
            || head.framing == Framing::Chunked;
        let framing = head.framing;
        // A client that waits for `100 Continue` gets it when the handler wants the body, and not before.
        let streamed = !is_small || (head.expect_continue && input.is_empty());
        let continue_due = head.expect_continue;
        let window_end = self.now + millis(limits.body_stall_timeout);
        let window = limits.body_window;
        let Some(slot) = self.slots.get(token) else { return 0 };
        if streamed {
            let pipe = Arc::new(BodyPipe::new(slot.connection.clone(), window, continue_due && input.is_empty()));
            slot.intake = Some(Box::new(Intake::new(framing, Sink::Pipe(pipe.clone()), window_end)));
            if let Begun::Answered = self.dispatch(token, bytes, head, RequestBody::streamed(pipe.clone()), Some(pipe))
            {
                return 0;
            }
        } else {
            slot.phase = Phase::Body;
            let sink = Sink::Buffer { head: bytes, parsed: head, body: Vec::new() };
            slot.intake = Some(Box::new(Intake::new(framing, sink, window_end)));
        }
        if let Some(slot) = self.slots.get(token) {
            slot.deadline = window_end;
            self.watch(token);
        }
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
        let limits = &self.engine.limits;
        let Some(slot) = self.slots.get(token) else { return input.len() };
        let Some(intake) = &mut slot.intake else { return 0 };
        let fed = match intake.feed(input, limits.body_max) {
            Ok(fed) => fed,
            Err(error) => {
                intake.refuse(error);
                let buffered = matches!(intake.sink, Sink::Buffer { .. });
                slot.intake = None;
                if buffered {
                    self.reject_body(token, error);
                } else {
                    // The handler that reads it finds out, and answers what it wants; the connection ends after that. What the
                    // client still sends is read then, so that the answer is not lost to a reset.
                    slot.must_linger = true;
                }
                return input.len();
            }
        };
        let overflows = matches!(&intake.sink, Sink::Buffer { body, .. } if body.len() > limits.body_buffer_max);
        if fed.done || overflows {
            self.body_ready(token, fed.done);
        }
        fed.consumed
    }

    /// A buffered body is complete, or too large to be buffered further: the request is dispatched.
    fn body_ready(&mut self, token: Token, complete: bool) {
        let window = self.engine.limits.body_window;
        let Some(slot) = self.slots.get(token) else { return };
        let Some(mut intake) = slot.intake.take() else { return };
        let trailers = intake.trailers();
        let Sink::Buffer { head, parsed, body } = intake.sink else { return };
        if complete {
            slot.phase = Phase::Head;
            self.dispatch(token, head, parsed, RequestBody::buffered(body.into(), trailers), None);
            return;
        }
        let pipe = Arc::new(BodyPipe::new(slot.connection.clone(), window, false));
        pipe.push(&body);
        intake.sink = Sink::Pipe(pipe.clone());
        let window_end = intake.window_end();
        slot.intake = Some(intake);
        self.dispatch(token, head, parsed, RequestBody::streamed(pipe.clone()), Some(pipe));
        if let Some(slot) = self.slots.get(token)
            && slot.intake.is_some()
        {
            slot.deadline = window_end;
            self.watch(token);
        }
    }

    /// Answers a body that breaks a rule, and closes.
    fn reject_body(&mut self, token: Token, error: ProtoError) {
        self.counters.rejected.add(1);
        let to = AnswerTo { version: http::Version::HTTP_11, is_head: false, keep_alive: false };
        let mut out = self.take_out();
        let encoded = encode(reason_response(error.status, error.reason), to, &mut out);
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
