//! An HTTP/1 connection without a socket. Its inputs are bytes, answers, writability and the time; its outputs say what
//! it wants: to read, to write, to have a worker answer a request, to be called at a deadline, to end.
//!
//! Nothing here knows of shards, drivers or threads. What a connection needs from its server is a [`Service`]; the next
//! action is a value, an [`Act`]. The simulator runs it within a whole server; a property test and a fuzz target run it
//! alone.
//!
//! ```text
//!          received            Act::Job            answered
//!   Head ───────────→ Body ───────────→ Running ─────────────→ Head
//!     │ inline answer                      │ handed_back         ↑
//!     ├──→ Sending ────────────────────────┼─────────────────────┤ flushed
//!     └────────────────────────────→ Draining ⇄ Waiting ─────────┘ drove
//!                                    any of them: Act::End
//! ```

mod act;
mod body;
pub(crate) mod body_memory;
mod closing;
mod end;
pub(crate) mod incoming_body;
mod over;
mod service;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::mem;

use http::Method;

pub(crate) use self::act::{Act, Body, Request, Then};
pub(crate) use self::closing::{Closing, End};
pub(crate) use self::over::{Close, Next, Over};
pub(crate) use self::service::{Answer, Exchange, Inline, Pipe, Receiver, Service};
use self::state::{BodyLeft, Reading, Scan, State, Unread};
use crate::http1::ProtoError;
use crate::http1::head::{Framing, ParsedHead, begins_with_head};
use crate::io::clock::{Millis, millis};
use crate::limits::{Limits, SOURCE_WAIT_MAX};

/// An HTTP/1 connection. An idle one holds no buffer.
pub(crate) struct Conn<X: Exchange> {
    state: State<X>,
    reading: Reading,
    /// Received bytes that are not used yet: part of a head, or pipelined requests.
    input: Vec<u8>,
    /// When to call [`tick`](Self::tick).
    deadline: Millis,
    /// There was no request yet.
    is_new: bool,
}

/// What a connection waits for, in addition to its last [`Act`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wants {
    /// Bytes from the client.
    pub(crate) read: bool,
    /// The end of its job, reported with [`Conn::answered`].
    pub(crate) answer: bool,
    /// [`Conn::tick`] at this time.
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

impl<X: Exchange> Conn<X> {
    /// A connection whose first head must be complete by `deadline`.
    pub(crate) fn new(deadline: Millis) -> Self {
        Self { state: State::Head(Scan::default()), reading: Reading::Open, input: Vec::new(), deadline, is_new: true }
    }

    /// What it waits for now. `is_reading`: a receive is already in progress.
    #[inline(always)]
    pub(crate) fn wants(&mut self, is_reading: bool, stopping: bool) -> Wants {
        let answer = self.wants_answer(stopping);
        Wants { read: !is_reading && self.wants_read(), answer, deadline: self.deadline }
    }

    #[inline(always)]
    fn wants_read(&mut self) -> bool {
        if self.reading == Reading::Ended {
            return false;
        }
        match &mut self.state {
            State::Head(_) | State::Body(_) => true,
            State::Running(BodyLeft::Nothing) | State::Sending { .. } => self.input.is_empty(),
            State::Running(left) => {
                left.catch_up();
                if let BodyLeft::Nothing = left { self.input.is_empty() } else { left.is_received_here() }
            }
            State::Draining { unread, .. } | State::Waiting { unread, .. } => self.input.is_empty() || unread.is_some(),
        }
    }

    /// Whether something waits for the end of a job.
    #[inline(always)]
    fn wants_answer(&self, stopping: bool) -> bool {
        matches!(self.state, State::Running(_)) && (stopping || self.reading != Reading::Open || !self.input.is_empty())
    }

    /// Whether a job works on a request that was received completely. Its end is not reported unless the connection
    /// [wants](Wants::answer) that.
    #[inline(always)]
    pub(crate) fn may_be_answered(&self) -> bool {
        matches!(self.state, State::Running(BodyLeft::Nothing))
    }

    /// Its job has [ended](Self::may_be_answered), and the connection is kept.
    #[inline(always)]
    pub(crate) fn answered_quietly(&mut self, service: &impl Service<X>) {
        self.state = State::Head(Scan::default());
        self.deadline = service.now() + service.keep_alive();
    }

    /// Whether a job has the request.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// When to call [`tick`](Self::tick).
    pub(crate) fn deadline(&self) -> Millis {
        self.deadline
    }

    /// Whether it waits for a request, and nothing is being sent.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Head(_))
    }

    /// Since when it waits for the first byte of a request; `None` if it does not.
    pub(crate) fn idle_since(&self, limits: &Limits) -> Option<Millis> {
        let is_waiting = self.is_idle() && self.input.is_empty();
        let timeout = if self.is_new { limits.head_timeout } else { limits.keep_alive_timeout };
        is_waiting.then(|| self.deadline.saturating_sub(millis(timeout)))
    }

    /// Whether something is being sent.
    pub(crate) fn is_answering(&self) -> bool {
        matches!(self.state, State::Sending { .. } | State::Draining { .. } | State::Waiting { .. })
    }

    /// Takes the unused input. Each event takes it, and [keeps](Self::keep) the rest.
    #[inline(always)]
    pub(crate) fn take_input(&mut self) -> Vec<u8> {
        mem::take(&mut self.input)
    }

    /// Stores the part of `input` that an event did not use.
    pub(crate) fn keep(&mut self, mut input: Vec<u8>, used: usize) {
        input.drain(..used);
        self.input = input;
    }

    /// Handles received bytes. If [`may_be_answered`](Self::may_be_answered), the caller has checked whether the job is
    /// done.
    #[inline(always)]
    pub(crate) fn received(&mut self, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        if let State::Head(_) = self.state {
            return self.serve(input, service);
        }
        self.received_otherwise(input, service)
    }

    #[inline(never)]
    fn received_otherwise(&mut self, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        match &mut self.state {
            State::Head(_) => return self.serve(input, service),
            State::Body(_) => return self.feed_buffer(input, service),
            State::Running(BodyLeft::Nothing) | State::Sending { .. } => {}
            State::Running(_) => self.feed_left(input, service),
            State::Draining { unread, .. } | State::Waiting { unread, .. } => {
                if unread.is_some() {
                    body::feed_unread(unread, input.rest(), service.limits());
                    input.use_all();
                }
            }
        }
        Act::Wait
    }

    /// Answers requests that are complete and can be answered inline.
    #[inline(always)]
    fn serve(&mut self, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
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
            let (last, limits) = service.heads();
            let limits = &limits.head;
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
                    return Act::Write(Then::Next);
                }
                Inline::Last(close) => {
                    input.used += length;
                    return Act::Write(Then::Close(close));
                }
                Inline::Answer(answer) => {
                    input.used += length;
                    return Act::Answer(answer);
                }
                Inline::Later(later) => {
                    input.used += length;
                    return Act::Write(Then::Later(later));
                }
            }
        }
        self.await_head(input.used > from, !input.rest().is_empty(), service);
        if service.has_output() { Act::Write(Then::Wait) } else { self.waiting(service) }
    }

    /// Waits for a head, or the rest of it. `has_answered`: a request was just answered. `has_begun`: part of the next
    /// head is there.
    #[inline(always)]
    fn await_head(&mut self, has_answered: bool, has_begun: bool, service: &impl Service<X>) {
        let idle_until = service.now() + service.keep_alive();
        let State::Head(scan) = &mut self.state else { return };
        if !has_begun {
            self.deadline = idle_until;
        } else if !scan.has_begun {
            // Absolute: trickling bytes do not postpone it.
            scan.has_begun = true;
            let until = if has_answered { idle_until } else { self.deadline };
            self.deadline = until.min(service.now() + millis(service.limits().head_timeout));
        }
    }

    /// All input is used.
    #[inline(always)]
    fn waiting(&mut self, service: &impl Service<X>) -> Act<X> {
        if self.reading == Reading::Ended { self.end_cleanly(service) } else { Act::Wait }
    }

    /// A request that is not answered inline: the responses before it are sent first.
    fn at_job(&mut self, head: Box<ParsedHead>, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        if service.has_output() { Act::Write(Then::Begin(head)) } else { self.begin(head, input, service) }
    }

    /// Rejects a malformed request. Later input cannot be parsed; it is only discarded so that the response is not lost
    /// to a reset.
    #[cold]
    fn reject_head(&mut self, error: ProtoError, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        service.reject(error, begins_with_head(input.rest()));
        input.use_all();
        self.give_up_input()
    }

    /// The current response ends the connection; further input is discarded.
    fn give_up_input(&mut self) -> Act<X> {
        self.state = State::Head(Scan::default());
        self.read_no_more();
        Act::Write(Then::Close(Close::Clean { large: false }))
    }

    /// The gathered responses were sent immediately.
    #[inline(always)]
    pub(crate) fn sent(&mut self, then: Then<X>, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        match then {
            Then::Wait => self.waiting(service),
            then => self.sent_before(then, input, service),
        }
    }

    #[inline(never)]
    fn sent_before(&mut self, then: Then<X>, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        match then {
            Then::Wait => self.waiting(service),
            Then::Next => self.serve(input, service),
            Then::Begin(head) => self.begin(head, input, service),
            Then::Later(later) => {
                self.run(BodyLeft::Nothing, service);
                Act::Later(later)
            }
            Then::Close(close) => self.end(close, None),
        }
    }

    /// The gathered responses are being sent: by the driver, or as `blocked` once the socket is writable.
    pub(crate) fn sending(
        &mut self,
        blocked: Option<Box<X::Answer>>,
        then: Then<X>,
        service: &impl Service<X>,
    ) -> Act<X> {
        // A head that is still in the input is parsed again.
        let then = if let Then::Begin(_) | Then::Wait = then { Then::Next } else { then };
        let stall = millis(service.limits().write_stall_timeout);
        match blocked {
            None => {
                self.state = State::Sending { blocked: None, then };
                self.deadline = service.now() + stall;
                Act::Wait
            }
            Some(mut answer) => {
                self.deadline = answer.progress(service.now()).until(stall);
                self.state = State::Sending { blocked: Some(answer), then };
                Act::AwaitRoom
            }
        }
    }

    /// Takes what follows the send in progress.
    pub(crate) fn take_then(&mut self) -> Then<X> {
        match &mut self.state {
            State::Sending { then, .. } => mem::replace(then, Then::Next),
            _ => Then::Next,
        }
    }

    /// The send in progress has completed.
    pub(crate) fn flushed(&mut self, then: Then<X>, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        self.follow(then, None, input, service)
    }

    /// Everything for this connection is sent. `unread`: the unreceived rest of the body of the answered request.
    fn follow(
        &mut self,
        then: Then<X>,
        unread: Unread,
        input: &mut Input<'_>,
        service: &mut impl Service<X>,
    ) -> Act<X> {
        match then {
            Then::Later(later) => {
                self.run(BodyLeft::Nothing, service);
                Act::Later(later)
            }
            Then::Close(close) => self.end(close, unread),
            _ if service.is_stopping()
                || self.reading == Reading::Unread
                || (self.reading == Reading::Ended && input.rest().is_empty()) =>
            {
                self.end(Close::Clean { large: service.last_was_large() }, unread)
            }
            _ => {
                self.state = State::Head(Scan::default());
                self.deadline = service.now() + service.keep_alive();
                if input.rest().is_empty() { Act::Wait } else { self.serve(input, service) }
            }
        }
    }

    /// A job has the lease from now on. Checked periodically: a job that ends without a message starts the idle time
    /// itself.
    fn run(&mut self, left: BodyLeft<X::Pipe>, service: &impl Service<X>) {
        self.state = State::Running(left);
        self.deadline = service.now() + service.keep_alive();
    }

    /// A job is done, and has returned the lease.
    pub(crate) fn answered(
        &mut self,
        close: Option<Close>,
        input: &mut Input<'_>,
        service: &mut impl Service<X>,
    ) -> Act<X> {
        let unread = self.take_back();
        self.follow(close.map_or(Then::Next, Then::Close), unread, input, service)
    }

    /// A job could not send all of a response, and has returned the lease.
    pub(crate) fn handed_back(&mut self, answer: Box<X::Answer>, service: &mut impl Service<X>) -> Act<X> {
        let unread = self.take_back();
        if answer.is_waiting() {
            self.await_source(answer, unread, service)
        } else {
            self.drain(answer, unread, service)
        }
    }

    /// Takes the part of the request body that the handler left unread.
    fn take_back(&mut self) -> Unread {
        let unread = self.state.take_unread();
        if unread.is_some() {
            self.read_no_more();
        }
        unread
    }

    /// A worker sends the [started](Act::Answer) response.
    pub(crate) fn handed_over(&mut self, service: &impl Service<X>) -> Act<X> {
        self.run(BodyLeft::Nothing, service);
        Act::Wait
    }

    /// A piece of the [started](Act::Answer) response was sent, or failed.
    pub(crate) fn began(
        &mut self,
        next: Next,
        answer: Box<X::Answer>,
        input: &mut Input<'_>,
        service: &mut impl Service<X>,
    ) -> Act<X> {
        match next {
            Next::Over(Over { close: None, .. }) => self.serve(input, service),
            Next::Over(Over { close: Some(close), .. }) => self.end(close, None),
            Next::AtRoom | Next::AtOnce | Next::AtSource => self.drain(answer, None, service),
        }
    }

    /// Makes a response wait for the socket.
    fn drain(&mut self, mut answer: Box<X::Answer>, unread: Unread, service: &impl Service<X>) -> Act<X> {
        // It may have passed already; then it is the next event.
        self.deadline = answer.progress(service.now()).until(millis(service.limits().write_stall_timeout));
        self.state = State::Draining { answer, unread };
        Act::AwaitRoom
    }

    /// Makes a response wait for its source.
    fn await_source(&mut self, mut answer: Box<X::Answer>, unread: Unread, service: &mut impl Service<X>) -> Act<X> {
        let at_most = service.wait(&mut answer);
        self.state = State::Waiting { answer, unread };
        self.deadline = service.now() + millis(at_most.min(SOURCE_WAIT_MAX)).max(1);
        if at_most.is_zero() {
            // Through the queue: a source that alternates all the time must not occupy the shard.
            self.go_on_by_worker(service)
        } else if service.is_stopping() || self.reading == Reading::Ended {
            self.hang_up(service)
        } else {
            Act::Wait
        }
    }

    /// The socket is writable, or (`source`) the source has data.
    pub(crate) fn writable(&mut self, source: bool) -> Act<X> {
        match &self.state {
            State::Waiting { .. } => Act::Drive,
            State::Sending { blocked: Some(_), .. } | State::Draining { .. } if !source => Act::Drive,
            _ => Act::Wait,
        }
    }

    /// The response to continue. `true`: it is in memory, and only the connection knows what follows it, so no worker
    /// may take it.
    pub(crate) fn answer(&mut self) -> Option<(&mut X::Answer, bool)> {
        match &mut self.state {
            State::Sending { blocked: Some(answer), .. } => Some((answer, true)),
            State::Draining { answer, .. } | State::Waiting { answer, .. } => Some((answer, false)),
            _ => None,
        }
    }

    /// A piece of the [response](Self::answer) was sent, or failed.
    pub(crate) fn drove(&mut self, next: Next, input: &mut Input<'_>, service: &mut impl Service<X>) -> Act<X> {
        match (next, mem::replace(&mut self.state, State::Head(Scan::default()))) {
            (Next::Over(over), state) => {
                let (then, unread) = match state {
                    State::Sending { then, .. } => (then, None),
                    State::Draining { unread, .. } | State::Waiting { unread, .. } => (Then::Next, unread),
                    _ => (Then::Next, None),
                };
                self.follow(over.close.map_or(then, Then::Close), unread, input, service)
            }
            (Next::AtSource, State::Draining { answer, unread } | State::Waiting { answer, unread }) => {
                self.await_source(answer, unread, service)
            }
            (_, State::Waiting { answer, unread }) => self.drain(answer, unread, service),
            // The socket may have room: only a full one reports that it is writable again.
            (_, state) => {
                self.state = state;
                Act::AwaitRoom
            }
        }
    }

    /// The next bytes of the [response](Self::answer) may block.
    pub(crate) fn go_on_by_worker(&mut self, service: &impl Service<X>) -> Act<X> {
        match mem::replace(&mut self.state, State::Head(Scan::default())) {
            State::Draining { answer, unread } | State::Waiting { answer, unread } => {
                self.run(unread.into(), service);
                Act::Continue(answer)
            }
            state => {
                self.state = state;
                Act::Wait
            }
        }
    }

    /// The client has ended its input (`UnexpectedEof`; it may still read), or the connection broke.
    pub(crate) fn input_ended(&mut self, reason: io::ErrorKind, service: &mut impl Service<X>) -> Act<X> {
        self.reading = Reading::Ended;
        let is_broken = reason != io::ErrorKind::UnexpectedEof;
        if let State::Running(left) = &mut self.state {
            // A running job gets the error when it sends.
            drop(left.abort(reason));
            return Act::Wait;
        }
        drop(self.state.take_unread());
        match self.state {
            _ if is_broken => Act::Drop,
            State::Head(_) | State::Body(_) => self.end_cleanly(service),
            State::Waiting { .. } => self.hang_up(service),
            State::Running(_) | State::Sending { .. } | State::Draining { .. } => Act::Wait,
        }
    }

    /// The layer below can no longer decode the client's input, and has an alert to send.
    pub(crate) fn fail(&mut self) -> Act<X> {
        self.give_up_input()
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
