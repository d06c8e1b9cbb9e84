//! Request bodies: received into memory up to a limit, and streamed to their handler above it.

use std::io;

use bytes::Bytes;
use http::Method;

use super::act::Act;
use super::state::{BodyLeft, Scan, State};
use super::{Conn, Input};
use crate::http1::head::ParsedHead;
use crate::message::body::memory::NextStep;
use crate::run::intake::incoming_body::Fed;
use crate::run::intake::{Begun, InMemory, Look, Request, look_at_piped, too_slow};
use crate::run::service::Service;

impl Conn {
    /// Starts a request with a body.
    pub(super) fn begin_body(
        &mut self,
        bytes: Bytes,
        head: Box<ParsedHead>,
        input: &mut Input<'_>,
        service: &mut Service<'_>,
    ) -> Act {
        let is_head = head.parts.method == Method::HEAD;
        let (framing, is_awaited) = (head.framing, input.rest().is_empty());
        match InMemory::begin(bytes, head, framing, is_awaited, service) {
            Begun::Rejected(error) => {
                service.reject(error, is_head);
                self.give_up(input)
            }
            Begun::Refused => {
                service.refuse(is_head);
                self.give_up(input)
            }
            Begun::Stream(request) => self.stream(request, is_awaited, input, service),
            Begun::Receive(request) => {
                if request.expects_continue() {
                    service.connection.send_continue();
                }
                self.deadline = request.first_look(service);
                self.state = State::Body(Box::new(request));
                if is_awaited { Act::Wait } else { self.feed_buffer(input, service) }
            }
        }
    }

    /// The request is rejected: no further input is used.
    fn give_up(&mut self, input: &mut Input<'_>) -> Act {
        input.use_all();
        self.give_up_input()
    }

    /// Streams the rest of a body to a handler. `is_first`: the client may wait for `100 Continue`.
    fn stream(&mut self, request: InMemory, is_first: bool, input: &mut Input<'_>, service: &Service<'_>) -> Act {
        let continue_due = is_first && request.expects_continue();
        let (request, incoming, pipe) = request.streamed(|body, rest| service.pipe(body, rest, continue_due));
        let check = incoming.next_check(service.now, service.limits());
        self.run(BodyLeft::Streamed { incoming, pipe }, service);
        self.deadline = check;
        self.feed_left(input, service);
        Act::Job(request)
    }

    /// A worker is to answer a request of which everything has come.
    pub(super) fn job(&mut self, request: Request, service: &Service<'_>) -> Act {
        self.run(BodyLeft::Nothing, service);
        Act::Job(request)
    }

    /// Passes input to the streamed body of a running job.
    pub(super) fn feed_left(&mut self, input: &mut Input<'_>, service: &Service<'_>) {
        let State::Answering(left) = &mut self.state else { return };
        left.catch_up();
        let limits = service.limits();
        let fed = match left {
            BodyLeft::Nothing => return,
            BodyLeft::Streamed { incoming, pipe } => {
                let fed = incoming.feed(input.rest(), limits, |data| pipe.push(data));
                match &fed {
                    Ok(Fed { done: true, .. }) => pipe.complete(incoming.trailers()),
                    Ok(_) => {}
                    // The handler gets the error, and may answer as it likes; the connection ends after that.
                    Err(error) => pipe.refuse(*error),
                }
                fed
            }
        };
        match fed {
            Ok(Fed { consumed, done: false }) => input.used += consumed,
            Ok(Fed { consumed, done: true }) => {
                input.used += consumed;
                *left = BodyLeft::Nothing;
            }
            Err(_) => {
                // Further input is then discarded, so that the response is not lost to a reset.
                input.use_all();
                *left = BodyLeft::Nothing;
                self.read_no_more();
            }
        }
    }

    /// Passes input to a body that is received into memory.
    pub(super) fn feed_buffer(&mut self, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        let State::Body(request) = &mut self.state else { return Act::Wait };
        let is_head = request.head.parts.method == Method::HEAD;
        let next = match request.feed(input.rest(), service.limits(), true) {
            Ok((consumed, next)) => {
                input.used += consumed;
                next
            }
            Err(error) => {
                service.reject(error, is_head);
                return self.give_up(input);
            }
        };
        match next {
            NextStep::Receive => Act::Wait,
            NextStep::Refuse => {
                service.refuse(is_head);
                self.give_up(input)
            }
            NextStep::Stream => self.stream_rest(input, service),
            NextStep::Answer => {
                let Some(request) = self.take_body() else { return Act::Wait };
                let trailers = request.incoming.trailers();
                self.job(request.whole(trailers), service)
            }
        }
    }

    /// Streams the rest of a body to a handler.
    fn stream_rest(&mut self, input: &mut Input<'_>, service: &Service<'_>) -> Act {
        let Some(request) = self.take_body() else { return Act::Wait };
        self.stream(request, false, input, service)
    }

    /// Takes the request whose body is being received into memory.
    fn take_body(&mut self) -> Option<InMemory> {
        match std::mem::replace(&mut self.state, State::Head(Scan::default())) {
            State::Body(request) => Some(*request),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Checks the progress of a body.
    pub(super) fn check_body(&mut self, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        let looked = match &mut self.state {
            State::Body(request) => request.look(service),
            State::Answering(left) => {
                left.catch_up();
                match left {
                    BodyLeft::Streamed { incoming, pipe } => look_at_piped(incoming, pipe, service),
                    BodyLeft::Nothing => Look::Again(service.now + service.keep_alive),
                }
            }
            State::Head(_) => Look::Again(service.now + service.keep_alive),
        };
        match looked {
            Look::Again(at) => {
                self.deadline = at;
                return Act::Wait;
            }
            Look::Stream => return self.stream_rest(input, service),
            Look::TooSlow => service.counters.timeouts.add(1),
        }
        match &mut self.state {
            State::Body(request) => {
                let is_head = request.head.parts.method == Method::HEAD;
                let response = service.server.reject(too_slow());
                service.answer_last(response, is_head);
                self.give_up_input()
            }
            State::Answering(left) => {
                drop(left.abort(io::ErrorKind::TimedOut));
                self.read_no_more();
                self.deadline = service.now + service.keep_alive;
                Act::Wait
            }
            State::Head(_) => Act::Wait,
        }
    }
}
