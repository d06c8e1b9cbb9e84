use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderValue, StatusCode, header};

use crate::http1::ProtoError;
use crate::http1::head_parts::HeadRef;
use crate::http1::response_head::Prepared;
use crate::io::clock::Clock;
use crate::io::output_memory::OutputMemory;
use crate::limits::{CHECKS_MAX, Limits, PREPARED_MAX};
use crate::message::body::memory::BodyMemory;
use crate::message::handler::Handler;
use crate::message::reject::Reject;
use crate::message::response::Response;
use crate::observe::access_log::{Entry, LogQueue, Watch};
use crate::observe::complaints::Complaints;
use crate::observe::counters::{Counters, ThreadCounters};
use crate::observe::request_id::RequestId;
use crate::peer::{Peer, Proxies};
use crate::run::admission::Admission;
use crate::run::pool::Pool;
use crate::run::transmit::Outgoing;
use crate::tls::Acceptor;

/// What all threads of a server share.
pub(crate) struct ServerState {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) limits: Limits,
    /// The queue of the workers.
    pub(crate) pool: Pool,
    /// The queue of the threads for handlers that read streamed bodies. Such a handler waits for its client, which must
    /// not block a worker.
    pub(crate) streams: Pool,
    /// The queue of the thread that answers [`check_paths`](Self::check_paths): whoever asks how the server is does so when it is busy.
    pub(crate) checks: Pool,
    /// The paths of checks.
    pub(crate) check_paths: Vec<String>,
    /// The queue of the threads for TLS handshakes: slow handlers must not delay new connections.
    pub(crate) handshakes: Pool,
    pub(crate) body_memory: Arc<BodyMemory>,
    /// What connections hold for their clients.
    pub(crate) output_memory: Arc<OutputMemory>,
    pub(crate) clock: Clock,
    pub(crate) counters: Counters,
    pub(crate) log: Option<LogQueue>,
    /// Whether ids of requests that clients send are used.
    pub(crate) request_ids_from_proxy: bool,
    /// Connections are closed after the current request.
    pub(crate) stopping: AtomicBool,
    pub(crate) admission: Arc<Admission>,
    pub(crate) complaints: Complaints,
    /// Accepts TLS on TCP connections.
    pub(crate) acceptor: Option<Acceptor>,
    /// Whether TLS connections may speak HTTP/2.
    pub(crate) http2: bool,
    /// The trusted proxies, if there are any.
    pub(crate) proxies: Option<Arc<Proxies>>,
    pub(crate) overloaded: Arc<Prepared>,
    pub(crate) failed: Arc<Prepared>,
}

impl ServerState {
    /// The state of a server without TLS, log and proxies.
    pub(crate) fn new(handler: Arc<dyn Handler>, limits: Limits, clock: Clock) -> Self {
        let retry_after = HeaderValue::from(limits.retry_after_seconds);
        let overloaded =
            Reject::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded").header(header::RETRY_AFTER, retry_after);
        let overloaded = prepared(rejected(&*handler, overloaded));
        let failed = prepared(rejected(&*handler, Reject::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error")));
        Self {
            handler,
            pool: Pool::new(limits.queue_max),
            streams: Pool::growing(limits.bodies_waiting_max, limits.streamed_bodies_max),
            checks: Pool::new(CHECKS_MAX),
            check_paths: Vec::new(),
            handshakes: Pool::new(0),
            body_memory: BodyMemory::new(limits.body_memory_max),
            output_memory: OutputMemory::new(limits.output_memory_max),
            clock,
            counters: Counters::default(),
            log: None,
            request_ids_from_proxy: false,
            stopping: AtomicBool::new(false),
            admission: Arc::new(Admission::new(&limits)),
            complaints: Complaints::default(),
            acceptor: None,
            http2: true,
            proxies: None,
            overloaded: Arc::new(overloaded),
            failed: Arc::new(failed),
            limits,
        }
    }

    /// The response for what is wrong with a request itself; it closes the connection.
    pub(crate) fn reject(&self, error: ProtoError) -> Response {
        rejected(&*self.handler, error.into()).header(header::CONNECTION, HeaderValue::from_static("close"))
    }

    /// Whether a connection from `peer` is a TLS connection.
    pub(crate) fn secures(&self, peer: &Peer) -> bool {
        self.acceptor.is_some() && matches!(peer, Peer::Tcp(_))
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Whether a handler may start before any of its body has arrived: half of the threads are reserved for bodies that
    /// are arriving.
    pub(crate) fn has_spare_streams(&self) -> bool {
        let (load, threads_max) = self.streams.load();
        2 * load < threads_max.max(1)
    }

    /// Whether threads or memory are short, so that slow bodies delay others.
    pub(crate) fn is_short_for_bodies(&self) -> bool {
        self.body_memory.is_short() || self.streams.depth() > 0
    }

    /// Whether a request for this path is a check.
    pub(crate) fn is_check(&self, path: &str) -> bool {
        self.check_paths.iter().any(|check| check == path)
    }

    /// Makes all threads that take jobs end once they have none.
    pub(crate) fn close_queues(&self) {
        [&self.pool, &self.streams, &self.checks, &self.handshakes].into_iter().for_each(Pool::close);
    }

    /// Records the end of a response.
    pub(crate) fn record(
        &self,
        counters: &ThreadCounters,
        status: u16,
        bytes: u64,
        aborted: bool,
        watch: Option<Box<Watch>>,
    ) {
        counters.bytes_sent.add(bytes);
        counters.status(status);
        if aborted {
            counters.aborts.add(1);
        }
        if let Some(watch) = watch {
            counters.request_time.add_time(watch.started.elapsed());
            if let Some(entry) = watch.entry {
                self.log(entry, status, bytes, aborted);
            }
        }
    }

    /// The access log's entry of a request, if there is a log.
    #[inline(always)]
    pub(crate) fn entry(&self, head: &HeadRef<'_>, id: impl FnOnce() -> RequestId) -> Option<Box<Entry>> {
        self.log.as_ref()?;
        Some(Box::new(if self.proxies.is_some() { Entry::with_proxies(head, id()) } else { Entry::new(head, id()) }))
    }

    /// Queues a line for the access log.
    pub(crate) fn log(&self, entry: Box<Entry>, status: u16, bytes: u64, aborted: bool) {
        if let Some(log) = &self.log {
            log.push(entry, status, bytes, aborted);
        }
    }

    /// Records the end of a response that took more than one send.
    pub(crate) fn record_outgoing(&self, counters: &ThreadCounters, outgoing: &mut Outgoing, aborted: bool) {
        if !outgoing.is_recorded {
            self.record(counters, outgoing.status, outgoing.sent(), aborted, outgoing.watch.take());
        } else if aborted {
            counters.aborts.add(1);
        }
    }
}

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerState").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// What the handler makes of a rejected request. It must not panic on a shard's thread, nor answer later.
fn rejected(handler: &dyn Handler, reject: Reject) -> Response {
    let answered = catch_unwind(AssertUnwindSafe(|| handler.rejected(reject.clone())));
    let answered = answered.ok().filter(|response| response.late.is_none() && response.upgrade.is_none());
    answered.unwrap_or_else(|| Response::failure(reject))
}

/// A response that is made once, and sent often.
fn prepared(response: Response) -> Prepared {
    let (status, fields) = (response.status(), response.headers());
    // A body that is no memory of this size is nothing for an overloaded server to send.
    Prepared::new(status, &fields, response.into_bytes(PREPARED_MAX).unwrap_or_default())
}
