//! What a shard provides to its connections: inline answers, buffers, limits, the time.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use http::{Method, Version};

use crate::http1::head::{LastHead, ParsedHead};
use crate::http1::head_parts::HeadRef;
use crate::http1::response_head::AnswerTo;
use crate::http2::head::HeadBuilder;
use crate::io::clock::{Millis, millis};
use crate::io::out_buf::OutBuf;
use crate::limits::{INLINE_BATCH_MAX, Limits, RECEIVE_BUFFER, RECEIVE_TIGHT};
use crate::message::response::{Held, Response};
use crate::observe::access_log::Entry;
use crate::observe::counters::ThreadCounters;
use crate::observe::request_id::RequestIds;
use crate::run::connection::Connection;
use crate::run::job::Work;
use crate::run::server::state::ServerState;
use crate::run::transmit::encode;

/// One in this many inline calls is timed.
const INLINE_SAMPLE: u64 = 64;
/// An inline call that takes longer delays the whole shard.
const INLINE_SLOW: Duration = Duration::from_micros(200);

/// What all connections of a shard share.
pub(crate) struct Local {
    pub(in crate::run) server: Arc<ServerState>,
    pub(in crate::run) counters: Arc<CachePadded<ThreadCounters>>,
    pub(in crate::run) now: Millis,
    /// Gathers inline responses. Boxed so that bytes that were just written are not moved.
    pub(in crate::run) out: Box<OutBuf>,
    /// The last encoded response. Dropped after the poll: decrementing the refcount right after the memcpy would stall
    /// on it.
    pub(in crate::run) spent: Option<Held>,
    /// Builds the heads of HTTP/2 requests.
    pub(in crate::run) head: HeadBuilder,
    /// The last request head, in case the next one repeats it.
    pub(in crate::run) last_head: LastHead,
    /// Until then, the thread's `Date` line is current.
    pub(in crate::run) date_until: Millis,
    /// From the engine's limits.
    pub(in crate::run) keep_alive: Millis,
    /// What other threads are to do for the HTTP/2 connection that is told something.
    pub(in crate::run) work: VecDeque<Work>,
    inline_calls: u64,
    pub(in crate::run) request_ids: RequestIds,
}

/// What a connection needs from its server. None of it blocks: inline responses are gathered in `out`, and sent before its next action.
/// `http1/service.rs` and `http2/service.rs` have what only one version of HTTP needs.
pub(crate) struct Service<'a> {
    local: &'a mut Local,
    pub(in crate::run) connection: &'a Arc<Connection>,
}

impl Deref for Service<'_> {
    type Target = Local;

    #[inline(always)]
    fn deref(&self) -> &Local {
        self.local
    }
}

impl DerefMut for Service<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Local {
        self.local
    }
}

impl Local {
    pub(in crate::run) fn new(server: Arc<ServerState>) -> Self {
        Self {
            counters: server.counters.thread(),
            now: server.clock.now(),
            out: Box::default(),
            spent: None,
            head: HeadBuilder::default(),
            last_head: LastHead::default(),
            date_until: 0,
            keep_alive: millis(server.limits.keep_alive_timeout),
            work: VecDeque::new(),
            inline_calls: 0,
            request_ids: RequestIds::new(server.request_ids_from_proxy),
            server,
        }
    }

    #[inline(always)]
    pub(in crate::run) fn at<'a>(&'a mut self, connection: &'a Arc<Connection>) -> Service<'a> {
        Service { local: self, connection }
    }

    /// How much a connection receives at once.
    #[inline(always)]
    pub(in crate::run) fn receive_max(&self) -> usize {
        if self.server.body_memory.is_tight() { RECEIVE_TIGHT } else { RECEIVE_BUFFER }
    }

    /// The access log's entry of a request, if there is a log.
    #[inline(always)]
    pub(in crate::run) fn entry(&mut self, head: &HeadRef<'_>) -> Option<Box<Entry>> {
        self.server.entry(head, || self.request_ids.next(head))
    }

    /// Clears the buffer for responses, which are sent.
    #[inline]
    pub(in crate::run) fn clear_out(&mut self) {
        if self.out.memory.capacity() > 2 * INLINE_BATCH_MAX {
            self.out.memory = Vec::new();
        }
        self.out.clear();
    }

    /// Keeps the memory of a buffer for reuse.
    pub(in crate::run) fn reuse(&mut self, mut buffer: OutBuf) {
        let capacity = buffer.memory.capacity();
        if self.out.is_empty() && capacity > self.out.memory.capacity() && capacity <= 2 * INLINE_BATCH_MAX {
            buffer.clear();
            *self.out = buffer;
        }
    }

    /// Asks the handler; measures a sample of the calls.
    #[inline(always)]
    pub(in crate::run) fn call_inline(&mut self, head: &HeadRef<'_>) -> Option<Response> {
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
    pub(in crate::run) fn accepts_websockets(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.server.handler.accepts_websockets())).unwrap_or_else(|_| {
            self.counters.panics.add(1);
            tracing::error!("a handler panicked when it was asked for WebSockets: not offered");
            false
        })
    }

    /// Encodes a response that ends its connection.
    pub(in crate::run) fn answer_last(&mut self, response: Response, is_head: bool) {
        let encoded = encode(response, last_answer(is_head), &mut self.out);
        self.counters.status(encoded.status.as_u16());
    }
}

impl Service<'_> {
    /// The limits of the server.
    #[inline(always)]
    pub(in crate::run) fn limits(&self) -> &Limits {
        &self.local.server.limits
    }

    /// Whether connections are closed after the current requests.
    #[inline(always)]
    pub(in crate::run) fn is_stopping(&self) -> bool {
        self.local.server.is_stopping()
    }
}

pub(in crate::run) fn answer_to(head: &ParsedHead) -> AnswerTo {
    AnswerTo { version: head.parts.version, is_head: head.parts.method == Method::HEAD, keep_alive: head.keep_alive }
}

/// For a response that ends its connection.
fn last_answer(is_head: bool) -> AnswerTo {
    AnswerTo { version: Version::HTTP_11, is_head, keep_alive: false }
}
