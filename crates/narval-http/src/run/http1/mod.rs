//! An HTTP/1 connection without a socket. Its inputs are bytes, answers, writability and the time; its outputs say what
//! it wants: to read, to write, to have a worker answer a request, to be called at a deadline, to end.
//!
//! Nothing here knows of shards, drivers or threads. What a connection needs from its server is a [`Service`]; the next
//! action is a value, an [`Act`].
//!
//! ```text
//!          received            Act::Job
//!   Head ───────────→ Body ───────────→ Answering
//!     │ ↑             Act::Job, Act::Answer, Act::Later ↑ │ answered
//!     │ └───────────────────────────────────────────────│─┘
//!     └─────────────────────────────────────────────────┘      Head, Body, answered: Act::End
//! ```
//!
//! Whoever performs the acts first sends the responses that were gathered meanwhile, and sends answers to their end.

mod act;
mod body;
mod end;
mod service;
mod state;

use std::io;
use std::mem;

use bytes::Bytes;
use http::Method;

pub(crate) use self::act::Act;
use self::service::Inline;
use self::state::{BodyLeft, Reading, Scan, State};
use crate::http1::ProtoError;
use crate::http1::head::{Framing, ParsedHead, begins_with_head};
use crate::io::clock::{Millis, millis};
use crate::io::over::Close;
use crate::limits::Limits;
use crate::run::closing::Unread;
use crate::run::event::Event;
use crate::run::intake::Request;
use crate::run::service::Service;

/// An HTTP/1 connection. An idle one holds no buffer.
pub(crate) struct Conn {
    state: State,
    reading: Reading,
    /// When to call [`tick`](Self::tick).
    deadline: Millis,
    /// There was no request yet.
    is_new: bool,
}

/// What a connection waits for once its [`Act`] is performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wants {
    /// Bytes from the client.
    pub(crate) read: bool,
    /// The end of its job, reported by [`Event::Answered`].
    pub(crate) answer: bool,
    /// [`Event::Tick`] at this time.
    pub(crate) deadline: Millis,
}

/// Received bytes, and how many of them are used.
pub(crate) struct Input<'a> {
    bytes: &'a [u8],
    used: usize,
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, used: 0 }
    }

    /// The unused bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.used..).unwrap_or_default()
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    fn use_all(&mut self) {
        self.used = self.bytes.len();
    }
}

impl Conn {
    /// A connection whose first head must be complete by `deadline`.
    pub(crate) fn new(deadline: Millis) -> Self {
        Self { state: State::Head(Scan::default()), reading: Reading::Open, deadline, is_new: true }
    }

    /// What it waits for now.
    #[inline(always)]
    fn wants(&mut self, has_input: bool, is_receiving: bool, service: &Service<'_>) -> Wants {
        let mut wants = Wants { read: self.reading != Reading::Ended, answer: false, deadline: self.deadline };
        if let State::Answering(left) = &mut self.state {
            wants.answer = has_input || self.reading != Reading::Open || service.is_stopping();
            wants.read &= left.is_received_here(has_input, is_receiving);
        }
        wants
    }

    /// Whether it waits for a request, and nothing is being sent.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Head(_))
    }

    /// Since when it waits for a request; `None` if it does not.
    pub(crate) fn idle_since(&self, limits: &Limits) -> Option<Millis> {
        let timeout = if self.is_new { limits.head_timeout } else { limits.keep_alive_timeout };
        self.is_idle().then(|| self.deadline.saturating_sub(millis(timeout)))
    }

    /// Handles what has happened. Received bytes are the end of `input`; `is_receiving`: the next ones are being received already.
    #[inline(always)]
    pub(crate) fn on(
        &mut self,
        event: Event<'_>,
        input: &mut Input<'_>,
        is_receiving: bool,
        service: &mut Service<'_>,
    ) -> (Act, Wants) {
        let act = self.act_on(event, input, service);
        (act, self.wants(!input.rest().is_empty(), is_receiving, service))
    }

    #[inline(always)]
    fn act_on(&mut self, event: Event<'_>, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        match event {
            Event::Received(_) => self.received(input, service),
            Event::InputEnded(reason) => self.input_ended(reason, service),
            Event::Undecodable => self.fail(),
            Event::Tick => self.tick(input, service),
            Event::Stop => self.stop(input, service),
            Event::Answered(close) => self.answered(close, input, service),
            Event::AnsweredAt(at) => {
                drop(self.take_unread());
                self.wait_for_head(at, service);
                Act::Wait
            }
            Event::Unsent => {
                // Nothing else is answered until everything is sent.
                self.state = State::Answering(BodyLeft::Nothing);
                self.deadline = service.now + millis(service.limits().write_stall_timeout);
                Act::Wait
            }
            Event::Ready => self.go_on(input, service),
            // A note may say that the handler has read: that changes what it waits for. It has no streams.
            Event::Writable | Event::Noted(..) | Event::Refused(_) | Event::GivenUp => Act::Wait,
        }
    }

    /// Handles received bytes.
    #[inline(always)]
    fn received(&mut self, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        if let State::Head(_) = self.state {
            return self.serve(input, service);
        }
        self.received_otherwise(input, service)
    }

    #[inline(never)]
    fn received_otherwise(&mut self, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        match &self.state {
            State::Head(_) => return self.serve(input, service),
            State::Body(_) => return self.feed_buffer(input, service),
            State::Answering(_) => self.feed_left(input, service),
        }
        Act::Wait
    }

    /// Answers requests that are complete and can be answered inline.
    #[inline(always)]
    fn serve(&mut self, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        // After a response, this is a new scan.
        let State::Head(kept) = &mut self.state else { return Act::Wait };
        let mut scan = mem::take(kept);
        let from = input.used;
        let stopping = service.is_stopping();
        loop {
            let rest = input.rest();
            if rest.is_empty() {
                break;
            }
            let local = &mut **service;
            let (last, limits) = (&mut local.last_head, &local.server.limits.head);
            let mut for_engine = false;
            let known = if scan.scan.is_fresh() { last.read(rest, limits) } else { None };
            let mut head = match known {
                Some(head) => head,
                None => match scan.scan.parse_into(rest, limits, &mut last.spare_fields()) {
                    Ok(Some(head)) => {
                        for_engine = is_about_the_server(rest, &head) && !limits.asterisk_allowed;
                        last.learn(rest, &head);
                        last.place(head)
                    }
                    Ok(None) => {
                        self.state = State::Head(scan);
                        break;
                    }
                    Err(error) => return self.reject_head(error, input, service),
                },
            };
            scan.has_begun = false;
            self.is_new = false;
            head.keep_alive &= !stopping;
            if head.framing != Framing::None {
                return self.at_job(head, input, service);
            }
            let length = head.head_len;
            let bytes = rest.get(..length).unwrap_or_default();
            match service.inline(head, bytes, for_engine) {
                Inline::Job(head) => return self.at_job(head, input, service),
                Inline::Answered => input.used += length,
                Inline::Enough => {
                    input.used += length;
                    return Act::Again;
                }
                Inline::Last(close) => {
                    input.used += length;
                    return self.end(close, None);
                }
                Inline::Answer(answer) => {
                    input.used += length;
                    self.run(BodyLeft::Nothing, service);
                    return Act::Answer(answer);
                }
                Inline::Later(later) => {
                    input.used += length;
                    self.run(BodyLeft::Nothing, service);
                    return Act::Later(later);
                }
            }
        }
        self.await_head(input.used > from, !input.rest().is_empty(), service);
        if self.reading == Reading::Ended { self.end_cleanly(service) } else { Act::Wait }
    }

    /// Waits for a head, or the rest of it. `has_answered`: a request was just answered. `has_begun`: part of the next
    /// head is there.
    #[inline(always)]
    fn await_head(&mut self, has_answered: bool, has_begun: bool, service: &Service<'_>) {
        let idle_until = service.now + service.keep_alive;
        let State::Head(scan) = &mut self.state else { return };
        if !has_begun {
            self.deadline = idle_until;
        } else if !scan.has_begun {
            // Absolute: trickling bytes do not postpone it.
            scan.has_begun = true;
            let until = if has_answered { idle_until } else { self.deadline };
            self.deadline = until.min(service.now + millis(service.limits().head_timeout));
        }
    }

    /// A request that is not answered inline: the responses before it are sent first, and then its head is read again.
    fn at_job(&mut self, head: Box<ParsedHead>, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        if !service.out.is_empty() {
            return Act::Again;
        }
        let bytes = Bytes::copy_from_slice(input.rest().get(..head.head_len).unwrap_or_default());
        input.used += head.head_len;
        match head.framing {
            Framing::None => self.job(Request { bytes, head, body: None }, service),
            _ => self.begin_body(bytes, head, input, service),
        }
    }

    /// Rejects a malformed request. Later input cannot be parsed; it is only discarded so that the response is not lost
    /// to a reset.
    #[cold]
    fn reject_head(&mut self, error: ProtoError, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        service.reject(error, begins_with_head(input.rest()));
        input.use_all();
        self.give_up_input()
    }

    /// The current response ends the connection; further input is discarded.
    fn give_up_input(&mut self) -> Act {
        self.state = State::Head(Scan::default());
        self.read_no_more();
        self.end(Close::Clean { large: false }, None)
    }

    /// The last request is being answered from now on. Whether its job has ended without a message is checked periodically.
    fn run(&mut self, left: BodyLeft, service: &Service<'_>) {
        self.state = State::Answering(left);
        self.deadline = service.now + service.keep_alive;
    }

    /// The last request is answered, and the connection is kept unless it has to `close`.
    fn answered(&mut self, close: Option<Close>, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        let unread = self.take_unread();
        match close {
            Some(close) => self.end(close, unread),
            None if unread.is_some() => self.end(Close::Clean { large: service.connection.last_was_large() }, unread),
            None => {
                self.wait_for_head(service.now, service);
                self.go_on(input, service)
            }
        }
    }

    fn wait_for_head(&mut self, since: Millis, service: &Service<'_>) {
        self.state = State::Head(Scan::default());
        self.deadline = since + service.keep_alive;
    }

    /// Takes the part of the request body that nobody has read.
    fn take_unread(&mut self) -> Unread {
        let State::Answering(left) = &mut self.state else { return None };
        let unread = left.abort(io::ErrorKind::Other);
        if unread.is_some() {
            self.read_no_more();
        }
        unread
    }

    /// Everything so far is sent.
    fn go_on(&mut self, input: &mut Input<'_>, service: &mut Service<'_>) -> Act {
        if !self.is_idle() {
            return Act::Wait;
        }
        let has_ended = self.reading == Reading::Ended && input.rest().is_empty();
        if service.is_stopping() || self.reading == Reading::Unread || has_ended {
            return self.end_cleanly(service);
        }
        if input.rest().is_empty() { Act::Wait } else { self.serve(input, service) }
    }

    /// The client has ended its input (`UnexpectedEof`; it may still read), or the connection broke.
    fn input_ended(&mut self, reason: io::ErrorKind, service: &mut Service<'_>) -> Act {
        self.reading = Reading::Ended;
        match &mut self.state {
            // Its job gets the error when it sends.
            State::Answering(left) => {
                drop(left.abort(reason));
                Act::Wait
            }
            State::Head(_) | State::Body(_) if reason == io::ErrorKind::UnexpectedEof => self.end_cleanly(service),
            State::Head(_) | State::Body(_) => Act::Drop,
        }
    }

    /// The layer below can no longer decode the client's input, and has an alert to send.
    fn fail(&mut self) -> Act {
        self.read_no_more();
        if self.is_idle() { self.end(Close::Clean { large: false }, None) } else { Act::Wait }
    }

    /// Further input is discarded.
    fn read_no_more(&mut self) {
        if self.reading == Reading::Open {
            self.reading = Reading::Unread;
        }
    }
}

/// Whether this is `OPTIONS *`, which is about the server as a whole (RFC 9110 section 9.3.7).
fn is_about_the_server(input: &[u8], head: &ParsedHead) -> bool {
    input.get(head.parts.target.start as usize) == Some(&b'*') && head.parts.method == Method::OPTIONS
}
