//! What a shard provides to its HTTP/1 connections: inline answers, buffers, limits, the time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use http::{Method, StatusCode, Version};

use crate::http1::ProtoError;
use crate::http1::conn::{Close, Exchange, Inline, Service};
use crate::http1::head::{LastHead, ParsedHead};
use crate::http1::response_head::AnswerTo;
use crate::http2::conn::HeadBuilder;
use crate::intake::Host;
use crate::intake::body_memory::Buffered;
use crate::io::clock::{Millis, millis};
use crate::io::out_buf::OutBuf;
use crate::limits::{INLINE_BATCH_MAX, Limits, RECEIVE_BUFFER, RECEIVE_TIGHT};
use crate::message::body::pipe::BodyPipe;
use crate::message::response::Held;
use crate::observe::access_log::{Entry, Watch};
use crate::observe::counters::ThreadCounters;
use crate::observe::request_id::RequestIds;
use crate::run::answer_context::AnswerContext;
use crate::run::connection::Connection;
use crate::run::pending_late::PendingLate;
use crate::run::server::state::ServerState;
use crate::run::transmit::{Encoded, Outgoing, Rest, encode};
use crate::{HeadRef, Response};

/// One in this many inline calls is timed.
const INLINE_SAMPLE: u64 = 64;
/// An inline call that takes longer delays the whole shard.
const INLINE_SLOW: Duration = Duration::from_micros(200);

/// What all connections of a shard share.
pub(super) struct Local {
    pub(super) server: Arc<ServerState>,
    pub(super) counters: Arc<CachePadded<ThreadCounters>>,
    pub(super) now: Millis,
    /// Gathers inline responses. Boxed so that bytes that were just written are not moved.
    pub(super) out: Box<OutBuf>,
    /// The last encoded response. Dropped after the poll: decrementing the refcount right after the memcpy would stall
    /// on it.
    pub(super) spent: Option<Held>,
    /// Builds the heads of HTTP/2 requests.
    pub(super) head: HeadBuilder,
    /// The last request head, in case the next one repeats it.
    last_head: LastHead,
    /// Until then, the thread's `Date` line is current.
    pub(super) date_until: Millis,
    /// From the engine's limits.
    keep_alive: Millis,
    inline_calls: u64,
    pub(super) request_ids: RequestIds,
}

/// The same, for one connection.
pub(super) struct At<'a> {
    pub(super) local: &'a mut Local,
    pub(super) connection: &'a Arc<Connection>,
}

impl<'a> At<'a> {
    pub(super) fn connection(&self) -> &'a Arc<Connection> {
        self.connection
    }
}

/// What HTTP/1 connections carry for a shard.
pub(super) enum Exchanged {}

impl Exchange for Exchanged {
    type Answer = Outgoing;
    type Later = Box<PendingLate>;
    type Pipe = Arc<BodyPipe>;
}

impl Local {
    pub(super) fn new(server: Arc<ServerState>) -> Self {
        Self {
            counters: server.counters.thread(),
            now: server.clock.now(),
            out: Box::default(),
            spent: None,
            head: HeadBuilder::default(),
            last_head: LastHead::default(),
            date_until: 0,
            keep_alive: millis(server.limits.keep_alive_timeout),
            inline_calls: 0,
            request_ids: RequestIds::new(server.request_ids_from_proxy),
            server,
        }
    }

    #[inline(always)]
    pub(super) fn at<'a>(&'a mut self, connection: &'a Arc<Connection>) -> At<'a> {
        At { local: self, connection }
    }

    /// How much a connection receives at once.
    #[inline(always)]
    pub(super) fn receive_max(&self) -> usize {
        if self.server.body_memory.is_tight() { RECEIVE_TIGHT } else { RECEIVE_BUFFER }
    }

    /// The access log's entry of a request, if there is a log.
    #[inline(always)]
    pub(super) fn entry(&mut self, head: &HeadRef<'_>) -> Option<Box<Entry>> {
        self.server.entry(head, || self.request_ids.next(head))
    }

    /// Clears the buffer for responses, which are sent.
    #[inline]
    pub(super) fn clear_out(&mut self) {
        if self.out.memory.capacity() > 2 * INLINE_BATCH_MAX {
            self.out.memory = Vec::new();
        }
        self.out.clear();
    }

    /// Keeps the memory of a buffer for reuse.
    pub(super) fn reuse(&mut self, mut buffer: OutBuf) {
        let capacity = buffer.memory.capacity();
        if self.out.is_empty() && capacity > self.out.memory.capacity() && capacity <= 2 * INLINE_BATCH_MAX {
            buffer.clear();
            *self.out = buffer;
        }
    }

    /// Asks the handler; measures a sample of the calls.
    #[inline(always)]
    pub(super) fn call_inline(&mut self, head: &HeadRef<'_>) -> Option<Response> {
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

    /// Asks the handler whether WebSockets over HTTP/2 are offered to a client. Not if it panics.
    pub(super) fn accepts_websockets(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.server.handler.accepts_websockets())).unwrap_or_else(|_| {
            self.counters.panics.add(1);
            tracing::error!("a handler panicked when it was asked for WebSockets: not offered");
            false
        })
    }

    /// Encodes a response that ends its connection.
    fn answer_last(&mut self, response: Response, is_head: bool) {
        let encoded = encode(response, last_answer(is_head), &mut self.out);
        self.counters.status(encoded.status.as_u16());
    }
}

impl Host for At<'_> {
    #[inline(always)]
    fn now(&self) -> Millis {
        self.local.now
    }

    #[inline(always)]
    fn limits(&self) -> &Limits {
        &self.local.server.limits
    }

    #[inline(always)]
    fn is_stopping(&self) -> bool {
        self.local.server.is_stopping()
    }

    fn buffer(&self) -> Buffered {
        Buffered::new(&self.local.server.body_memory)
    }

    fn has_spare_streams(&self) -> bool {
        self.local.server.has_spare_streams()
    }

    fn is_short_for_bodies(&self) -> bool {
        self.local.server.is_short_for_bodies()
    }

    fn count_timeout(&self) {
        self.local.counters.timeouts.add(1);
    }
}

impl Service<Exchanged> for At<'_> {
    #[inline(always)]
    fn keep_alive(&self) -> Millis {
        self.local.keep_alive
    }

    #[inline(always)]
    fn heads(&mut self) -> (&mut LastHead, &Limits) {
        (&mut self.local.last_head, &self.local.server.limits)
    }

    #[inline(always)]
    fn inline(&mut self, head: Box<ParsedHead>, bytes: &[u8], for_engine: bool) -> Inline<Exchanged> {
        let local = &mut *self.local;
        let view = HeadRef::new(bytes, &head.parts, self.connection.remote());
        let answer = if for_engine { Some(Response::new(StatusCode::NO_CONTENT)) } else { local.call_inline(&view) };
        let Some(response) = answer else { return Inline::Job(head) };
        let entry = local.entry(&view);
        local.counters.requests_inline.add(1);
        if response.late.is_some() {
            return late(response, &head, entry);
        }
        let before = local.out.len();
        let mut encoded = encode(response, answer_to(&head), &mut local.out);
        local.last_head.give_back(head);
        local.spent = encoded.spent.take();
        let status = encoded.status.as_u16();
        if !matches!(encoded.rest, Rest::None) {
            return more(std::mem::take(&mut *local.out), encoded, entry);
        }
        let bytes = (local.out.len() - before) as u64;
        local.server.record(&local.counters, status, bytes, false, None);
        if let Some(entry) = entry {
            local.server.log(entry, status, bytes, false);
        }
        if !encoded.keep_alive {
            local.out.ends = true;
            return Inline::Last(Close::after(local.out.len() as u64));
        }
        if !local.out.tail.is_empty() || local.out.len() > INLINE_BATCH_MAX { Inline::Enough } else { Inline::Answered }
    }

    #[inline(always)]
    fn has_output(&self) -> bool {
        !self.local.out.is_empty()
    }

    fn reject(&mut self, error: ProtoError, is_head: bool) {
        self.local.counters.rejected.add(1);
        let response = self.local.server.reject(error);
        self.local.answer_last(response, is_head);
    }

    fn time_out(&mut self, error: ProtoError, is_head: bool) {
        let response = self.local.server.reject(error);
        self.local.answer_last(response, is_head);
    }

    fn refuse(&mut self, is_head: bool) {
        self.local.counters.overloaded.add(1);
        let overloaded = self.local.server.overloaded.clone();
        self.local.answer_last(overloaded.into(), is_head);
    }

    fn pipe(&self, begun: Buffered, rest: Option<u64>, continue_due: bool) -> Arc<BodyPipe> {
        let window = self.local.server.limits.body_window;
        // On a TLS connection only the shard may receive: other records may arrive between those of the body.
        let rest = rest.filter(|_| self.connection.tls.is_none());
        Arc::new(BodyPipe::new(self.connection.carrier(), window, continue_due, begun).with_rest(rest))
    }

    fn send_continue(&self) {
        self.connection.send_continue();
    }

    fn last_was_large(&self) -> bool {
        self.connection.last_was_large()
    }
}

/// An inline response that is not only memory, after the gathered ones.
#[cold]
#[inline(never)]
fn more(collected: OutBuf, encoded: Encoded, entry: Option<Box<Entry>>) -> Inline<Exchanged> {
    let mut outgoing = match encoded.rest {
        Rest::File(range) => Outgoing::file(collected, range),
        Rest::Feed { feed, is_chunked } => Outgoing::feed(collected, feed, is_chunked),
        Rest::None => Outgoing::memory(collected),
    };
    (outgoing.keep_alive, outgoing.status) = (encoded.keep_alive, encoded.status.as_u16());
    outgoing.kept = encoded.kept;
    outgoing.watch = Watch::of(entry);
    Inline::Answer(Box::new(outgoing))
}

/// An inline answer that follows later.
#[cold]
#[inline(never)]
fn late(response: Response, head: &ParsedHead, entry: Option<Box<Entry>>) -> Inline<Exchanged> {
    let watch = Watch::of(entry);
    let context = AnswerContext { watch, ..AnswerContext::new(answer_to(head), None) };
    let late = response.late.map(|later| Box::new(PendingLate { later: *later, context }));
    late.map_or(Inline::Answered, Inline::Later)
}

pub(super) fn answer_to(head: &ParsedHead) -> AnswerTo {
    AnswerTo { version: head.parts.version, is_head: head.parts.method == Method::HEAD, keep_alive: head.keep_alive }
}

/// For a response that ends its connection.
fn last_answer(is_head: bool) -> AnswerTo {
    AnswerTo { version: Version::HTTP_11, is_head, keep_alive: false }
}
