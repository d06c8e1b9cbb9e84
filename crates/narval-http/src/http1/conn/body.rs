//! Request bodies: received into memory up to a limit, and streamed to their handler above it.

use std::io;

use bytes::Bytes;
use http::{Method, StatusCode};

use super::act::{Act, Body, Request};
use super::body_memory::NextStep;
use super::incoming_body::{Fed, IncomingBody};
use super::service::{Exchange, Pipe, Service};
use super::state::{BodyLeft, Receiving, Scan, State, Unread};
use super::{Conn, Input};
use crate::http1::ProtoError;
use crate::http1::head::{Framing, ParsedHead};
use crate::io::clock::millis;
use crate::limits::{BODY_AWAITED, BODY_SMALL, Limits};

impl<X: Exchange> Conn<X> {
    /// Starts a request that is not answered inline: receives its body, or hands it to a worker.
    pub(super) fn begin(
        &mut self,
        head: Box<ParsedHead>,
        input: &mut Input<'_>,
        service: &mut impl Service<X>,
    ) -> Act<X> {
        let bytes = Bytes::copy_from_slice(input.rest().get(..head.head_len).unwrap_or_default());
        input.used += head.head_len;
        if head.framing == Framing::None {
            self.run(BodyLeft::Nothing, service);
            return Act::Job(Request { bytes, head, body: Body::None });
        }
        let limits = service.limits();
        if let Framing::Length(length) = head.framing
            && length > limits.body_max
        {
            input.use_all();
            let error = ProtoError::new(StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large");
            service.reject(error, head.parts.method == Method::HEAD);
            return self.give_up_input();
        }
        let incoming = Box::new(IncomingBody::new(head.framing, service.now()));
        let mut body = service.buffer();
        if let Framing::Length(length) = head.framing {
            body.share.announce(length);
        }
        if body.share.is_refused() {
            input.use_all();
            service.refuse(head.parts.method == Method::HEAD);
            return self.give_up_input();
        }
        let expects = head.expect_continue && input.rest().is_empty();
        if body.share.is_full() || (expects && service.has_spare_streams()) {
            // The client gets `100 Continue` only when the handler wants the body.
            let pipe = service.pipe(body, incoming.rest(), expects);
            return self.stream(bytes, head, incoming, pipe, service);
        }
        if expects {
            service.send_continue();
        }
        self.deadline = incoming.next_check(service.now(), service.limits());
        let is_awaited = input.rest().is_empty();
        if is_awaited {
            self.deadline = self.deadline.min(service.now() + millis(BODY_AWAITED));
        }
        self.state = State::Body(Box::new(Receiving { incoming, body, bytes, head, is_awaited }));
        if is_awaited { Act::Wait } else { self.feed_buffer(input, service) }
    }

    /// Streams the body to a handler.
    fn stream(
        &mut self,
        bytes: Bytes,
        head: Box<ParsedHead>,
        incoming: Box<IncomingBody>,
        pipe: X::Pipe,
        service: &impl Service<X>,
    ) -> Act<X> {
        self.run(BodyLeft::Streamed { incoming, pipe: pipe.clone() }, service);
        Act::Job(Request { bytes, head, body: Body::Streamed(pipe) })
    }

    /// A worker will answer the last request.
    pub(crate) fn dispatched(&mut self, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        if let State::Answering(BodyLeft::Streamed { incoming, .. }) = &self.state {
            self.deadline = incoming.next_check(service.now(), service.limits());
            self.feed_left(input, service);
        }
        Act::Wait
    }

    /// No worker will answer the last request: the service has answered it.
    pub(crate) fn refused(&mut self, keep_alive: bool) -> Act<X> {
        if !keep_alive {
            return self.give_up_input();
        }
        self.state = State::Head(Scan::default());
        Act::Again
    }

    /// Passes input to the streamed body of a running job.
    pub(super) fn feed_left(&mut self, input: &mut Input<'_>, service: &impl Service<X>) {
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
    pub(super) fn feed_buffer(&mut self, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        let State::Body(request) = &mut self.state else { return Act::Wait };
        let Receiving { incoming, body, head, .. } = &mut **request;
        let is_head = head.parts.method == Method::HEAD;
        let limits = service.limits();
        let expected = incoming.length().map_or(usize::MAX, |length| usize::try_from(length).unwrap_or(usize::MAX));
        let expected = expected.min(limits.body_buffer_max);
        let next = match incoming.feed(input.rest(), limits, |data| body.push(data, expected)) {
            Ok(Fed { consumed, done }) => {
                input.used += consumed;
                body.next_step(limits.body_buffer_max, done)
            }
            Err(error) => {
                input.use_all();
                service.reject(error, is_head);
                return self.give_up_input();
            }
        };
        match next {
            NextStep::Receive => return Act::Wait,
            NextStep::Refuse => {
                input.use_all();
                service.refuse(is_head);
                return self.give_up_input();
            }
            NextStep::Stream => return self.stream_rest(service),
            NextStep::Answer => {}
        }
        let Some(Receiving { incoming, body, bytes, head, .. }) = self.take_body() else { return Act::Wait };
        self.run(BodyLeft::Nothing, service);
        Act::Job(Request { bytes, head, body: Body::Buffered(Box::new((body, incoming.trailers()))) })
    }

    /// Streams the rest of a body to a handler.
    fn stream_rest(&mut self, service: &impl Service<X>) -> Act<X> {
        let Some(Receiving { incoming, body, bytes, head, .. }) = self.take_body() else { return Act::Wait };
        let pipe = service.pipe(body, incoming.rest(), false);
        self.stream(bytes, head, incoming, pipe, service)
    }

    /// Takes the request whose body is being received into memory.
    fn take_body(&mut self) -> Option<Receiving> {
        match std::mem::replace(&mut self.state, State::Head(Scan::default())) {
            State::Body(request) => Some(*request),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Checks the progress of a body.
    pub(super) fn check_body(&mut self, service: &mut impl Service<X>) -> Act<X> {
        let (now, limits) = (service.now(), service.limits());
        let short = service.is_short_for_bodies();
        if let State::Body(request) = &mut self.state
            && std::mem::take(&mut request.is_awaited)
        {
            self.deadline = request.incoming.next_check(now, limits);
            let is_late = !request.incoming.has_begun() && service.has_spare_streams();
            return if is_late { self.stream_rest(service) } else { Act::Wait };
        }
        if let State::Answering(left) = &mut self.state {
            left.catch_up();
        }
        let (incoming, is_paused, is_in_demand) = match &mut self.state {
            // It waits for a thread from now on, and is not received meanwhile.
            State::Body(request) if !request.body.share.is_fair() => return self.stream_rest(service),
            State::Body(request) => (&mut request.incoming, false, short && request.body.bytes.len() > BODY_SMALL),
            State::Answering(BodyLeft::Streamed { incoming, pipe }) => (incoming, pipe.is_paused(), short),
            _ => {
                self.deadline = now + service.keep_alive();
                return Act::Wait;
            }
        };
        if incoming.progresses(now, limits, is_paused, is_in_demand) {
            self.deadline = incoming.next_check(now, limits);
            return Act::Wait;
        }
        service.count_timeout();
        match &mut self.state {
            State::Body(request) => {
                let is_head = request.head.parts.method == Method::HEAD;
                let error = ProtoError::new(StatusCode::REQUEST_TIMEOUT, "the request body arrived too slowly");
                service.time_out(error, is_head);
                self.give_up_input()
            }
            State::Answering(left) => {
                drop(left.abort(io::ErrorKind::TimedOut));
                self.read_no_more();
                self.deadline = now + service.keep_alive();
                Act::Wait
            }
            _ => Act::Wait,
        }
    }
}

/// Receives more of a body that nobody reads, while the response is sent or the connection ends. Input after it, or
/// malformed input, is discarded too: the connection ends.
pub(super) fn feed_unread(unread: &mut Unread, bytes: &[u8], limits: &Limits) {
    if let Some(incoming) = unread
        && !incoming.feed(bytes, limits, |_| {}).is_ok_and(|fed| !fed.done)
    {
        *unread = None;
    }
}
