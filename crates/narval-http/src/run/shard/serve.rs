//! From received bytes to answers: heads are parsed, inline answers are gathered and sent at once, everything else becomes
//! a job.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use http::{Method, StatusCode, Version};

use super::slot::{BodyLeft, PendingLate, Phase, Scan, Slot, Then};
use super::{Shard, millis};
use crate::http1::ProtoError;
use crate::http1::head::{Framing, ParsedHead, begins_with_head};
use crate::http1::response_head::AnswerTo;
use crate::io::driver::{Completion, Driver, Op, Token};
use crate::io::out_buf::OutBuf;
use crate::limits::{INLINE_BATCH_MAX, LARGE_ANSWER, SENDFILE_MIN, SHARD_FILE_BYTES_PER_TURN};
use crate::message::response::reason_response;
use crate::observe::access_log::{Entry, Watch};
use crate::run::answer_context::AnswerContext;
use crate::run::connection::Connection;
use crate::run::job::{Call, Job};
use crate::run::lease::Holder;
use crate::run::mailbox::Close;
use crate::run::send_piece::{Next, Over, send_piece};
use crate::run::transmit::{Outgoing, Rest, encode};
use crate::run::worker;
use crate::{Bytes, HeadRef, Request, RequestBody, Response};

/// One inline call in so many is timed.
const INLINE_SAMPLE: u64 = 64;
/// One request in so many is timed that is not answered inline.
const REQUEST_SAMPLE: u64 = 16;
/// An inline call that takes longer holds up a whole shard.
const INLINE_SLOW: Duration = Duration::from_micros(200);

/// Why gathering inline answers stopped.
enum Stop {
    /// All requests that are complete have been answered.
    InputUsed,
    /// Enough has been gathered: send, then go on.
    Flush,
    /// A request that is not answered inline; its head is still in the input.
    Job(Box<ParsedHead>),
    /// The last answer's body is not in memory.
    Rest { rest: Rest, keep_alive: bool, status: u16, entry: Option<Box<Entry>> },
    /// Enough has been gathered: send, and then this. The last answer ends the connection, or is still to come.
    Over(Then),
    /// The input is not HTTP.
    Reject(ProtoError),
}

impl<D: Driver<Connection>> Shard<D> {
    /// Answers the requests in what was received before and `bytes`. The shard holds the lease, and nothing is being sent.
    #[inline(always)]
    pub(super) fn serve(&mut self, token: Token, bytes: &[u8]) {
        let Some(slot) = self.slots.get(token) else { return };
        if slot.input.is_empty() {
            let used = self.serve_input(token, bytes);
            if used >= bytes.len() {
                return;
            }
            self.keep(token, bytes.get(used..).unwrap_or_default());
        } else {
            let mut input = std::mem::take(&mut slot.input);
            input.extend_from_slice(bytes);
            let used = self.serve_more(token, &input);
            self.keep(token, input.get(used..).unwrap_or_default());
        }
        self.serve_waiting(token);
    }

    /// Serves input that waits for a job, as far as jobs have ended.
    pub(super) fn serve_waiting(&mut self, token: Token) {
        while self.serve_kept(token) {}
    }

    /// Keeps what was received and not used yet; nothing comes before it.
    pub(super) fn keep(&mut self, token: Token, rest: &[u8]) {
        if let Some(slot) = self.slots.get(token)
            && !matches!(slot.phase, Phase::Lingering { .. })
            && !rest.is_empty()
        {
            slot.input.extend_from_slice(rest);
        }
    }

    /// Input that waits for a job: asks for a message at its end, or goes on if it has ended. True: look again.
    fn serve_kept(&mut self, token: Token) -> bool {
        let Some(slot) = self.slots.get(token) else { return false };
        if !matches!(slot.phase, Phase::Running(BodyLeft::Nothing))
            || slot.input.is_empty()
            || slot.connection.lease.wait_for() == Holder::Job
        {
            return false;
        }
        slot.phase = Phase::Head(Scan::default());
        let input = std::mem::take(&mut slot.input);
        let used = self.serve_more(token, &input);
        self.keep(token, input.get(used..).unwrap_or_default());
        true
    }

    #[inline(never)]
    pub(super) fn serve_again(&mut self, token: Token, bytes: &[u8]) {
        self.serve(token, bytes);
    }

    #[inline(never)]
    fn serve_more(&mut self, token: Token, input: &[u8]) -> usize {
        self.serve_input(token, input)
    }

    /// Returns how many bytes of `input` were used.
    #[inline(always)]
    fn serve_input(&mut self, token: Token, input: &[u8]) -> usize {
        let (mut used, mut files_sent) = (0, 0);
        loop {
            let mut out = self.take_out();
            let stop = self.answer_inline(token, input, &mut used, &mut out);
            let stop = match stop {
                Stop::Rest { rest, keep_alive, status, entry } => {
                    let bytes = std::mem::take(&mut *out);
                    self.give_back(out);
                    let mut outgoing = match rest {
                        Rest::File(range) => Outgoing::file(bytes, range),
                        Rest::Stream(stream) => Outgoing::stream(bytes, stream),
                        Rest::None => Outgoing::memory(bytes),
                    };
                    (outgoing.keep_alive, outgoing.status) = (keep_alive, status);
                    outgoing.watch = entry.map(|entry| Box::new(Watch { started: Instant::now(), entry: Some(entry) }));
                    match self.answer_rest(token, outgoing, &mut files_sent) {
                        Begun::Elsewhere => return used,
                        Begun::Answered => continue,
                    }
                }
                Stop::Reject(error) => {
                    self.reject_head(token, error, input.get(used..).unwrap_or_default(), &mut out);
                    used = input.len();
                    Stop::Over(Then::Close(Close::Clean { large: false }))
                }
                stop => stop,
            };
            // What ends or interrupts the connection's requests waits with the rest of the bytes, where the socket is full.
            if let Stop::Over(then) = stop {
                if let Some(then) = self.send(token, out, then) {
                    self.after_answer(token, then, None);
                }
                return used;
            }
            if self.send(token, out, Then::Next).is_none() {
                return used;
            }
            match stop {
                Stop::Flush | Stop::Over(_) => {}
                Stop::Job(head) => match self.begin(token, *head, input, &mut used) {
                    Begun::Elsewhere => return used,
                    Begun::Answered => {}
                },
                Stop::InputUsed | Stop::Rest { .. } | Stop::Reject(_) => {
                    self.wait_for_head(token, used > 0, used < input.len());
                    return used;
                }
            }
        }
    }

    /// Answers what is no request. What follows it can't be understood; it is only read so that the answer is not lost to a
    /// reset.
    #[cold]
    fn reject_head(&mut self, token: Token, error: ProtoError, input: &[u8], out: &mut OutBuf) {
        self.counters.rejected.add(1);
        let to = AnswerTo { version: Version::HTTP_11, is_head: begins_with_head(input), keep_alive: false };
        let encoded = encode(reason_response(error.status, error.reason), to, out);
        self.counters.status(encoded.status.as_u16());
        if let Some(slot) = self.slots.get(token) {
            slot.read_no_more();
        }
    }

    /// The connection waits for (the rest of) a head. `has_answered`: one was answered just now. `has_begun`: some of the next is
    /// there.
    fn wait_for_head(&mut self, token: Token, has_answered: bool, has_begun: bool) {
        let now = self.now;
        let Some(slot) = self.slots.get(token) else { return };
        if slot.has_ended() {
            return self.end_cleanly(token);
        }
        let Phase::Head(scan) = &mut slot.phase else { return };
        let idle_until = now + self.keep_alive_timeout;
        if !has_begun {
            slot.deadline = idle_until;
        } else if !scan.has_begun {
            // Absolute: bytes that trickle in don't move it.
            scan.has_begun = true;
            let until = if has_answered { idle_until } else { slot.deadline };
            slot.deadline = until.min(now + millis(self.server.limits.head_timeout));
            self.watch(token);
        }
    }

    #[inline(always)]
    fn answer_inline(&mut self, token: Token, input: &[u8], used: &mut usize, out: &mut OutBuf) -> Stop {
        let stopping = self.server.is_stopping();
        let Some(slot) = self.slots.get(token) else { return Stop::InputUsed };
        let peer = slot.connection.peer.clone();
        // After an answer it is a fresh one.
        let Phase::Head(kept) = &mut slot.phase else { return Stop::InputUsed };
        let mut scan = std::mem::take(kept);
        loop {
            let rest = input.get(*used..).unwrap_or_default();
            if rest.is_empty() {
                return Stop::InputUsed;
            }
            let limits = &self.server.limits.head;
            let mut for_engine = false;
            let known = if scan.scan.is_fresh() { self.last_head.read(rest, limits) } else { None };
            let mut head = match known {
                Some(head) => head,
                None => match scan.scan.parse_into(rest, limits, &mut self.last_head.spare_fields()) {
                    Ok(Some(head)) => {
                        for_engine = is_about_the_server(rest, &head) && !limits.asterisk_allowed;
                        self.last_head.learn(rest, &head);
                        self.last_head.place(head)
                    }
                    Ok(None) => {
                        if let Some(slot) = self.slots.get(token) {
                            slot.phase = Phase::Head(scan);
                        }
                        return Stop::InputUsed;
                    }
                    Err(error) => return Stop::Reject(error),
                },
            };
            head.keep_alive &= !stopping;
            if head.framing != Framing::None {
                return Stop::Job(head);
            }
            let bytes = rest.get(..head.head_len).unwrap_or_default();
            let view = HeadRef::new(bytes, &head.parts, &peer);
            let answer = if for_engine { Some(Response::new(StatusCode::NO_CONTENT)) } else { self.call_inline(&view) };
            let Some(response) = answer else { return Stop::Job(head) };
            let entry = self.server.log.is_some().then(|| Box::new(Entry::new(&view)));
            *used += head.head_len;
            scan.has_begun = false;
            self.counters.requests_inline.add(1);
            if response.late.is_some() {
                return late(response, &head, entry);
            }
            let before = out.len();
            let encoded = encode(response, answer_to(&head), out);
            self.last_head.give_back(head);
            self.spent = encoded.spent;
            if !matches!(encoded.rest, Rest::None) {
                let status = encoded.status.as_u16();
                return Stop::Rest { rest: encoded.rest, keep_alive: encoded.keep_alive, status, entry };
            }
            let bytes = (out.len() - before) as u64;
            let status = encoded.status.as_u16();
            self.server.record(&self.counters, status, bytes, false, None);
            if let Some(entry) = entry {
                self.server.log(entry, status, bytes, false);
            }
            if !encoded.keep_alive {
                out.ends = true;
                return Stop::Over(Then::Close(Close::after(out.len() as u64)));
            }
            if !out.tail.is_empty() || out.len() > INLINE_BATCH_MAX {
                return Stop::Flush;
            }
        }
    }

    /// Asks the handler; measures a sample of the calls.
    #[inline(always)]
    fn call_inline(&mut self, head: &HeadRef<'_>) -> Option<Response> {
        self.inline_calls = self.inline_calls.wrapping_add(1);
        let started = self.inline_calls.is_multiple_of(INLINE_SAMPLE).then(Instant::now);
        let handler = &self.server.handler;
        let answer = catch_unwind(AssertUnwindSafe(|| handler.inline(head))).unwrap_or_else(|_| {
            self.counters.panics.add(1);
            tracing::error!(target = head.target(), "an inline handler panicked: answered 500");
            Some(self.server.failed.clone().into())
        });
        if let Some(started) = started {
            let took = started.elapsed();
            self.counters.inline_time.add_time(took);
            if took > INLINE_SLOW {
                self.counters.inline_slow.add(1);
                tracing::warn!(target = head.target(), "an inline answer took {} µs", took.as_micros());
            }
        }
        answer
    }

    /// Sends an inline answer whose body is not in memory.
    ///
    /// `files_sent`: how much of that the shard has done itself for this connection in this turn. A client that asks for
    /// many files at once must not keep it from the others.
    fn answer_rest(&mut self, token: Token, outgoing: Outgoing, files_sent: &mut u64) -> Begun {
        if let Some(slot) = self.slots.get(token)
            && *files_sent < SHARD_FILE_BYTES_PER_TURN
            && self.file_bytes_left > 0
            && let Some(budget) = outgoing.at_hand(&slot.connection, &mut self.probes, self.now)
        {
            return self.send_at_once(token, outgoing, budget, files_sent);
        }
        // Looked at from time to time: a job that finishes quietly starts the idle time itself.
        let idle_until = self.now + self.keep_alive_timeout;
        if let Some(slot) = self.slots.get(token) {
            slot.deadline = idle_until;
        }
        if let Some(lease) = self.lease_to_job(token, BodyLeft::Nothing) {
            self.server.pool.push_continued(Job::Continue { lease, outgoing: Box::new(outgoing) });
        }
        Begun::Elsewhere
    }

    /// Sends an inline answer whose body hardly blocks. A worker would be woken for it, and often the shard for its end:
    /// that costs as much as sending 100 KB.
    fn send_at_once(&mut self, token: Token, mut outgoing: Outgoing, budget: u64, files_sent: &mut u64) -> Begun {
        let Some(slot) = self.slots.get(token) else { return Begun::Elsewhere };
        if !outgoing.keep_alive {
            slot.connection.socket.cork(true);
        }
        let next = send_piece(&mut outgoing, &slot.connection, budget, &self.server, &self.counters);
        self.file_bytes_left = self.file_bytes_left.saturating_sub(outgoing.sent());
        match next {
            Next::Over(over) => {
                slot.connection.answered(self.now, over.large);
                *files_sent += outgoing.sent();
                self.reuse(outgoing.into_buffers().0);
                match over.close {
                    None => return Begun::Answered,
                    Some(close) => self.after_answer(token, Then::Close(close), None),
                }
            }
            Next::AtRoom | Next::AtOnce | Next::AtSource => self.drain(token, Box::new(outgoing), None),
        }
        Begun::Elsewhere
    }

    /// An inline answer is still to come: until then its job has the connection, though no worker has the job.
    pub(super) fn wait_for_late(&mut self, token: Token, late: PendingLate) {
        let idle_until = self.now + self.keep_alive_timeout;
        let Some(lease) = self.lease_to_job(token, BodyLeft::Nothing) else { return };
        let PendingLate { later, context } = late;
        if let Some(late) = later.wait(lease, context, &self.server) {
            self.server.pool.push_continued(Job::Late(Box::new(late)));
        }
        if let Some(slot) = self.slots.get(token) {
            slot.deadline = idle_until;
        }
        self.watch(token);
    }

    /// Begins a request that is not answered inline: its body is received, or it is dispatched.
    fn begin(&mut self, token: Token, head: ParsedHead, input: &[u8], used: &mut usize) -> Begun {
        let rest = input.get(*used..).unwrap_or_default();
        let bytes = Bytes::copy_from_slice(rest.get(..head.head_len).unwrap_or_default());
        *used += head.head_len;
        if head.framing != Framing::None {
            let rest = input.get(*used..).unwrap_or_default();
            *used += self.begin_body(token, bytes, head, rest);
            // All of it was there, and the queue was full: it is answered, and what is behind it is the next request.
            let is_answered = |slot: &mut Slot| matches!(slot.phase, Phase::Head(_));
            return if self.slots.get(token).is_some_and(is_answered) { Begun::Answered } else { Begun::Elsewhere };
        }
        self.dispatch(token, bytes, head, RequestBody::default(), BodyLeft::Nothing)
    }

    /// Hands a request to the workers.
    pub(super) fn dispatch(
        &mut self,
        token: Token,
        bytes: Bytes,
        head: ParsedHead,
        body: RequestBody,
        left: BodyLeft,
    ) -> Begun {
        let Some(slot) = self.slots.get(token) else { return Begun::Elsewhere };
        let connection = slot.connection.clone();
        let to = answer_to(&head);
        let request = Request::new(bytes, head.parts, connection.peer.clone(), body);
        self.dispatched = self.dispatched.wrapping_add(1);
        let is_sampled = self.dispatched.is_multiple_of(REQUEST_SAMPLE);
        let entry = self.server.log.is_some().then(|| Box::new(Entry::new(&request.head())));
        let watch = (is_sampled || entry.is_some()).then(|| Box::new(Watch { started: Instant::now(), entry }));
        // Looked at from time to time: a job that finishes quietly starts the idle time itself.
        slot.deadline = self.now + self.keep_alive_timeout;
        let pipe = match &left {
            BodyLeft::Streamed { pipe, .. } => Some(pipe.clone()),
            BodyLeft::Nothing | BodyLeft::Unread(_) => None,
        };
        let streamed = pipe.is_some();
        let Some(lease) = self.lease_to_job(token, left) else { return Begun::Elsewhere };
        let call = Call { lease, request, context: AnswerContext { to, body: pipe, watch } };
        let queue = if streamed { &self.server.streams } else { &self.server.pool };
        match queue.push(Box::new(call)) {
            Ok(depth) => {
                if streamed {
                    worker::start_where_wanted(&self.server);
                }
                if is_sampled {
                    self.counters.queue_depth.add_count(depth as u64);
                }
                self.watch(token);
                Begun::Elsewhere
            }
            Err(call) => {
                self.counters.overloaded.add(1);
                call.lease.give_up();
                self.refuse(token, to, call.context.watch, streamed)
            }
        }
    }

    /// Answers 503 to a request that finds the queue full.
    fn refuse(&mut self, token: Token, mut to: AnswerTo, watch: Option<Box<Watch>>, streamed: bool) -> Begun {
        to.keep_alive &= !streamed;
        let mut out = self.take_out();
        let encoded = encode(self.server.overloaded.clone().into(), to, &mut out);
        self.server.record(&self.counters, encoded.status.as_u16(), out.len() as u64, false, watch);
        if let Some(slot) = self.slots.get(token) {
            slot.phase = Phase::Head(Scan::default());
            if !encoded.keep_alive {
                slot.read_no_more();
            }
        }
        let then = Over::complete(encoded.keep_alive, out.len() as u64).close.map_or(Then::Next, Then::Close);
        match self.send(token, out, then) {
            Some(Then::Next) => Begun::Answered,
            Some(then) => {
                self.after_answer(token, then, None);
                Begun::Elsewhere
            }
            None => Begun::Elsewhere,
        }
    }

    /// Sends what the shard made. When all of it is out, returns what follows; until then that is kept with the connection, if
    /// that is not gone.
    #[inline(always)]
    pub(super) fn send(&mut self, token: Token, mut out: Box<OutBuf>, then: Then) -> Option<Then> {
        let slot = self.slots.get(token)?;
        if let Err(error) = slot.connection.seal(&mut out) {
            self.on_send_error(token, &error);
            return None;
        }
        if !out.is_empty() {
            slot.connection.answered(self.now, out.len() as u64 > LARGE_ANSWER);
        }
        self.send_sealed(token, out, then)
    }

    #[inline(always)]
    fn send_sealed(&mut self, token: Token, mut out: Box<OutBuf>, then: Then) -> Option<Then> {
        while !out.is_empty() {
            match self.driver.send_now(token, &mut out) {
                Some(Ok(())) => continue,
                Some(Err(error)) => {
                    self.on_unsent(token, &error, *out, then);
                    return None;
                }
                None => {}
            }
            match self.driver.submit(Op::Send(token, std::mem::take(&mut *out))) {
                Some(Completion::Sent { result: Ok(()), buf, .. }) => *out = buf,
                Some(Completion::Sent { result: Err(error), buf, .. }) => {
                    self.on_unsent(token, &error, buf, then);
                    return None;
                }
                Some(_) | None => {
                    self.give_back(out);
                    self.await_sent(token, then);
                    return None;
                }
            }
        }
        self.give_back(out);
        Some(then)
    }

    /// The driver sends, and will tell.
    fn await_sent(&mut self, token: Token, then: Then) {
        let stall = millis(self.server.limits.write_stall_timeout);
        if let Some(slot) = self.slots.get(token) {
            slot.phase = Phase::Sending { blocked: None, then };
            slot.deadline = self.now + stall;
            self.watch(token);
        }
    }

    /// A send that took its time is done, wholly or in part.
    pub(super) fn on_sent(&mut self, token: Token, result: io::Result<()>, buf: OutBuf) {
        let Some(slot) = self.slots.get(token) else { return };
        let then = slot.phase.take_then();
        if let Err(error) = result {
            return self.on_unsent(token, &error, buf, then);
        }
        let then = if buf.is_empty() {
            self.reuse(buf);
            Some(then)
        } else {
            self.send_sealed(token, Box::new(buf), then)
        };
        if let Some(then) = then {
            self.after_answer(token, then, None);
        }
    }

    /// The socket took nothing: it is full, or broken.
    #[cold]
    fn on_unsent(&mut self, token: Token, error: &io::Error, buf: OutBuf, then: Then) {
        if error.kind() != io::ErrorKind::WouldBlock {
            return self.on_send_error(token, error);
        }
        let length = buf.len() as u64;
        let mut outgoing = Outgoing::sealed(buf, length);
        (outgoing.keep_alive, outgoing.is_recorded) = (true, true);
        self.await_room(token, Box::new(outgoing), |outgoing| Phase::Sending { blocked: Some(outgoing), then });
    }

    fn on_send_error(&mut self, token: Token, error: &io::Error) {
        tracing::trace!(%error, "a connection broke while it was answered");
        self.close(token);
    }

    /// A buffer for answers. It goes from hand to hand in its box: what was just written is not to be moved.
    pub(super) fn take_out(&mut self) -> Box<OutBuf> {
        self.out.take().unwrap_or_default()
    }

    /// Keeps it for the next answers.
    #[inline]
    pub(super) fn give_back(&mut self, mut out: Box<OutBuf>) {
        if out.memory.capacity() > 2 * INLINE_BATCH_MAX {
            out.memory = Vec::new();
        }
        out.clear();
        self.out = Some(out);
    }

    /// Keeps the memory of a buffer that had another way.
    pub(super) fn reuse(&mut self, mut out: OutBuf) {
        let kept = self.out.get_or_insert_default();
        if out.memory.capacity() > kept.memory.capacity() && out.memory.capacity() <= 2 * INLINE_BATCH_MAX {
            out.clear();
            **kept = out;
        }
    }
}

/// What became of a request.
pub(super) enum Begun {
    /// A job has it, or the connection waits for something, or is gone.
    Elsewhere,
    /// It is answered, and the next one can be looked at.
    Answered,
}

/// An inline answer that is still to come.
#[cold]
#[inline(never)]
fn late(response: Response, head: &ParsedHead, entry: Option<Box<Entry>>) -> Stop {
    let watch = entry.map(|entry| Box::new(Watch { started: Instant::now(), entry: Some(entry) }));
    let context = AnswerContext { to: answer_to(head), body: None, watch };
    let late = response.late.map(|later| Box::new(PendingLate { later: *later, context }));
    late.map_or(Stop::InputUsed, |late| Stop::Over(Then::Late(late)))
}

/// Whether it is `OPTIONS *`, which asks the server as such whether it is there (RFC 9110 section 9.3.7).
fn is_about_the_server(input: &[u8], head: &ParsedHead) -> bool {
    input.get(head.parts.target.start as usize) == Some(&b'*') && head.parts.method == Method::OPTIONS
}

fn answer_to(head: &ParsedHead) -> AnswerTo {
    AnswerTo { version: head.parts.version, is_head: head.parts.method == Method::HEAD, keep_alive: head.keep_alive }
}

const _: () = assert!(SENDFILE_MIN > LARGE_ANSWER, "a file sent from the shard is a large answer");
