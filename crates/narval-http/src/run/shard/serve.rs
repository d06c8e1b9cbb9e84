//! From received bytes to answers: heads are parsed, inline answers are gathered and sent at once, everything else becomes
//! a job.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use http::{Method, StatusCode, Version};

use super::slot::{PendingLate, Phase, Slot};
use super::{Shard, millis};
use crate::http1::ProtoError;
use crate::http1::head::{Framing, ParsedHead, begins_with_head};
use crate::http1::response_head::AnswerTo;
use crate::io::driver::{Completion, Driver, Op, Token};
use crate::io::out_buf::OutBuf;
use crate::limits::{INLINE_BATCH_MAX, LARGE_ANSWER, SENDFILE_MIN, SHARD_FILE_BYTES_PER_TURN};
use crate::message::panic_guard;
use crate::message::response::reason_response;
use crate::observe::access_log::{Entry, Watch};
use crate::run::answer_context::AnswerContext;
use crate::run::connection::Connection;
use crate::run::job::{Call, Job};
use crate::run::lease::Holder;
use crate::run::mailbox::Close;
use crate::run::transmit::{Outgoing, Rest, Step, encode};
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
    /// The last answer is still to come.
    Late(Box<PendingLate>),
    /// The last answer ends the connection.
    Close,
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
            && slot.phase != Phase::Lingering
            && !rest.is_empty()
        {
            slot.input.extend_from_slice(rest);
        }
    }

    /// Input that waits for a job: asks for a message at its end, or goes on if it has ended. True: look again.
    fn serve_kept(&mut self, token: Token) -> bool {
        let Some(slot) = self.slots.get(token) else { return false };
        if slot.phase != Phase::Running
            || slot.incoming.is_some()
            || slot.input.is_empty()
            || slot.connection.lease.wait_for() == Holder::Job
        {
            return false;
        }
        slot.phase = Phase::Head;
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
            match stop {
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
                Stop::Close => {
                    out.ends = true;
                    self.close_after(token, Close::Clean { large: false });
                }
                Stop::Reject(error) => {
                    self.counters.rejected.add(1);
                    let is_head = begins_with_head(input.get(used..).unwrap_or_default());
                    let to = AnswerTo { version: Version::HTTP_11, is_head, keep_alive: false };
                    let encoded = encode(reason_response(error.status, error.reason), to, &mut out);
                    self.counters.status(encoded.status.as_u16());
                    // What follows can't be understood; it is only read so that the answer is not lost to a reset.
                    if let Some(slot) = self.slots.get(token) {
                        slot.closing = Some(Close::Clean { large: false });
                        slot.must_linger = true;
                    }
                    used = input.len();
                }
                Stop::Late(late) => {
                    if let Some(slot) = self.slots.get(token) {
                        slot.late = Some(late);
                    }
                    if self.send(token, out) {
                        self.wait_for_late(token);
                    }
                    return used;
                }
                Stop::InputUsed | Stop::Flush | Stop::Job(_) => {}
            }
            if !self.send(token, out) {
                return used;
            }
            match stop {
                Stop::Flush | Stop::Late(_) => {}
                Stop::Job(head) => match self.begin(token, *head, input, &mut used) {
                    Begun::Elsewhere => return used,
                    Begun::Answered => {}
                },
                Stop::Close | Stop::Reject(_) => {
                    self.after_answer(token);
                    return used;
                }
                Stop::InputUsed | Stop::Rest { .. } => {
                    self.wait_for_head(token, used < input.len());
                    return used;
                }
            }
        }
    }

    /// The connection waits for (the rest of) a head.
    fn wait_for_head(&mut self, token: Token, has_begun: bool) {
        let now = self.now;
        let Some(slot) = self.slots.get(token) else { return };
        if slot.input_ended {
            return self.end_behind_input(token);
        }
        if !has_begun {
            slot.head_begun = false;
            slot.deadline = now + self.keep_alive_timeout;
        } else if !slot.head_begun {
            // Absolute: bytes that trickle in don't move it.
            slot.head_begun = true;
            slot.deadline = slot.deadline.min(now + millis(self.server.limits.head_timeout));
            self.watch(token);
        }
    }

    #[inline(always)]
    fn answer_inline(&mut self, token: Token, input: &[u8], used: &mut usize, out: &mut OutBuf) -> Stop {
        let stopping = self.server.is_stopping();
        let Some(slot) = self.slots.get(token) else { return Stop::InputUsed };
        let idle_until = self.now + self.keep_alive_timeout;
        let peer = slot.connection.peer.clone();
        let mut scan = std::mem::take(&mut slot.scan);
        loop {
            let rest = input.get(*used..).unwrap_or_default();
            if rest.is_empty() {
                return Stop::InputUsed;
            }
            let limits = &self.server.limits.head;
            let mut for_engine = false;
            let known = if scan.is_fresh() { self.last_head.read(rest, limits) } else { None };
            let mut head = match known {
                Some(head) => head,
                None => match scan.parse_into(rest, limits, &mut self.last_head.spare_fields()) {
                    Ok(Some(head)) => {
                        for_engine = is_about_the_server(rest, &head) && !limits.asterisk_allowed;
                        self.last_head.learn(rest, &head);
                        self.last_head.place(head)
                    }
                    Ok(None) => {
                        if let Some(slot) = self.slots.get(token) {
                            slot.scan = scan;
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
            if let Some(slot) = self.slots.get(token) {
                slot.head_begun = false;
                slot.deadline = idle_until;
            }
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
                return Stop::Close;
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
        if let Some(lease) = self.lease_to_job(token) {
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
        let driven = outgoing.drive(&slot.connection, budget);
        self.file_bytes_left = self.file_bytes_left.saturating_sub(outgoing.sent());
        match driven {
            Ok(Step::Complete) => {
                slot.connection.answered(self.now, outgoing.sent() > LARGE_ANSWER);
                *files_sent += outgoing.sent();
                let keep_alive = outgoing.keep_alive;
                if !keep_alive {
                    slot.closing = Some(Close::after(outgoing.sent()));
                }
                self.server.record_outgoing(&self.counters, &mut outgoing, false);
                self.reuse(outgoing.into_buffers().0);
                if keep_alive {
                    return Begun::Answered;
                }
                self.after_answer(token);
            }
            Ok(Step::Blocked | Step::Yield | Step::Waiting) => self.drain(token, Box::new(outgoing)),
            Err(error) => {
                tracing::debug!(%error, sent = outgoing.sent(), "an answer was aborted");
                slot.closing = Some(Close::Abort);
                self.counters.panics.add(u64::from(panic_guard::is_panic(&error)));
                self.server.record_outgoing(&self.counters, &mut outgoing, true);
                self.after_answer(token);
            }
        }
        Begun::Elsewhere
    }

    /// An inline answer is still to come: until then its job has the connection, though no worker has the job.
    pub(super) fn wait_for_late(&mut self, token: Token) {
        let idle_until = self.now + self.keep_alive_timeout;
        let Some(late) = self.slots.get(token).and_then(|slot| slot.late.take()) else { return };
        let Some(lease) = self.lease_to_job(token) else { return };
        let PendingLate { later, context } = *late;
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
            let is_answered = |slot: &mut Slot| slot.phase == Phase::Head && slot.closing.is_none();
            return if self.slots.get(token).is_some_and(is_answered) { Begun::Answered } else { Begun::Elsewhere };
        }
        self.dispatch(token, bytes, head, RequestBody::default(), None)
    }

    /// Hands a request to the workers.
    pub(super) fn dispatch(
        &mut self,
        token: Token,
        bytes: Bytes,
        head: ParsedHead,
        body: RequestBody,
        pipe: Option<std::sync::Arc<crate::run::incoming_body::BodyPipe>>,
    ) -> Begun {
        let Some(slot) = self.slots.get(token) else { return Begun::Elsewhere };
        let connection = slot.connection.clone();
        let to = answer_to(&head);
        let request = Request::new(bytes, head.parts, connection.peer.clone(), body);
        self.dispatched = self.dispatched.wrapping_add(1);
        let is_sampled = self.dispatched.is_multiple_of(REQUEST_SAMPLE);
        let entry = self.server.log.is_some().then(|| Box::new(Entry::new(&request.head())));
        let watch = (is_sampled || entry.is_some()).then(|| Box::new(Watch { started: Instant::now(), entry }));
        slot.head_begun = false;
        // Looked at from time to time: a job that finishes quietly starts the idle time itself.
        slot.deadline = self.now + self.keep_alive_timeout;
        let Some(lease) = self.lease_to_job(token) else { return Begun::Elsewhere };
        let streamed = pipe.is_some();
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
            slot.phase = Phase::Head;
            slot.incoming = None;
            if !encoded.keep_alive {
                slot.closing = Some(Close::Clean { large: false });
                slot.must_linger = true;
            }
        }
        if !self.send(token, out) {
            return Begun::Elsewhere;
        }
        if !encoded.keep_alive {
            self.after_answer(token);
            return Begun::Elsewhere;
        }
        Begun::Answered
    }

    fn close_after(&mut self, token: Token, close: Close) {
        if let Some(slot) = self.slots.get(token) {
            slot.closing = Some(close);
        }
    }

    /// Sends what the shard made. True: it is all out. False: it is being sent (or the connection is gone).
    #[inline(always)]
    pub(super) fn send(&mut self, token: Token, mut out: Box<OutBuf>) -> bool {
        if let Some(slot) = self.slots.get(token)
            && let Err(error) = slot.connection.seal(&mut out)
        {
            self.on_send_error(token, &error);
            return false;
        }
        self.send_sealed(token, out)
    }

    #[inline(always)]
    fn send_sealed(&mut self, token: Token, mut out: Box<OutBuf>) -> bool {
        let large = out.len() as u64 > LARGE_ANSWER;
        if !out.is_empty()
            && let Some(slot) = self.slots.get(token)
        {
            slot.connection.answered(self.now, large);
        }
        while !out.is_empty() {
            match self.driver.send_now(token, &mut out) {
                Some(Ok(())) => continue,
                Some(Err(error)) => {
                    self.on_unsent(token, &error, *out);
                    return false;
                }
                None => {}
            }
            match self.driver.submit(Op::Send(token, std::mem::take(&mut *out))) {
                Some(Completion::Sent { result: Ok(()), buf, .. }) => *out = buf,
                Some(Completion::Sent { result: Err(error), buf, .. }) => {
                    self.on_unsent(token, &error, buf);
                    return false;
                }
                Some(_) | None => {
                    self.give_back(out);
                    let stall = millis(self.server.limits.write_stall_timeout);
                    if let Some(slot) = self.slots.get(token) {
                        slot.phase = Phase::Sending;
                        slot.deadline = self.now + stall;
                        self.watch(token);
                    }
                    return false;
                }
            }
        }
        self.give_back(out);
        true
    }

    /// A send that took its time is done, wholly or in part.
    pub(super) fn on_sent(&mut self, token: Token, result: io::Result<()>, buf: OutBuf) {
        if self.slots.get(token).is_none() {
            return;
        }
        if let Err(error) = result {
            return self.on_unsent(token, &error, buf);
        }
        if buf.is_empty() {
            self.reuse(buf);
            self.after_answer(token);
        } else if self.send_sealed(token, Box::new(buf)) {
            self.after_answer(token);
        }
    }

    /// The socket took nothing: it is full, or broken.
    fn on_unsent(&mut self, token: Token, error: &io::Error, buf: OutBuf) {
        if error.kind() != io::ErrorKind::WouldBlock {
            return self.on_send_error(token, error);
        }
        let length = buf.len() as u64;
        let mut outgoing = Outgoing::sealed(buf, length);
        (outgoing.keep_alive, outgoing.is_recorded) = (true, true);
        self.drain(token, Box::new(outgoing));
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
    late.map_or(Stop::InputUsed, Stop::Late)
}

/// Whether it is `OPTIONS *`, which asks the server as such whether it is there (RFC 9110 section 9.3.7).
fn is_about_the_server(input: &[u8], head: &ParsedHead) -> bool {
    input.get(head.parts.target.start as usize) == Some(&b'*') && head.parts.method == Method::OPTIONS
}

fn answer_to(head: &ParsedHead) -> AnswerTo {
    AnswerTo { version: head.parts.version, is_head: head.parts.method == Method::HEAD, keep_alive: head.keep_alive }
}

const _: () = assert!(SENDFILE_MIN > LARGE_ANSWER, "a file sent from the shard is a large answer");
