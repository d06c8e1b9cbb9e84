use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderValue, StatusCode, header};

use crate::limits::Limits;
use crate::observe::access_log::{Entry, LogQueue, Watch};
use crate::observe::counters::{Counters, ThreadCounters};
use crate::run::body_memory::BodyMemory;
use crate::run::clock::Clock;
use crate::run::pool::Pool;
use crate::run::transmit::Outgoing;
use crate::tls::Acceptor;
use crate::{Body, Bytes, Handler, Peer, Prepared, Response};

/// What all threads of a server share.
pub(crate) struct ServerState {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) limits: Limits,
    /// For the workers.
    pub(crate) pool: Pool,
    /// For the threads whose handlers read bodies while they come. Such a handler waits for its client, which must cost no worker.
    pub(crate) streams: Pool,
    /// For the threads that shake hands: handlers that take long must not keep new connections waiting.
    pub(crate) handshakes: Pool,
    pub(crate) body_memory: Arc<BodyMemory>,
    pub(crate) clock: Clock,
    pub(crate) counters: Counters,
    pub(crate) log: Option<LogQueue>,
    /// No connection is kept for another request.
    pub(crate) stopping: AtomicBool,
    pub(crate) admission: Admission,
    /// Makes TLS connections of those that come in over TCP.
    pub(crate) acceptor: Option<Acceptor>,
    pub(crate) overloaded: Arc<Prepared>,
    pub(crate) failed: Arc<Prepared>,
}

impl ServerState {
    pub(crate) fn new(
        handler: Arc<dyn Handler>,
        limits: Limits,
        clock: Clock,
        log: Option<LogQueue>,
        acceptor: Option<Acceptor>,
    ) -> Self {
        let retry_after = [(header::RETRY_AFTER, HeaderValue::from(limits.retry_after_seconds))];
        let overloaded =
            Prepared::new(StatusCode::SERVICE_UNAVAILABLE, &retry_after, Bytes::from_static(b"overloaded\n"));
        let failed = Prepared::new(StatusCode::INTERNAL_SERVER_ERROR, &[], Bytes::from_static(b"internal error\n"));
        Self {
            handler,
            pool: Pool::new(limits.queue_max),
            streams: Pool::growing(limits.queue_max, limits.streamed_bodies_max),
            handshakes: Pool::new(0),
            body_memory: BodyMemory::new(limits.body_memory_max),
            clock,
            counters: Counters::default(),
            log,
            stopping: AtomicBool::new(false),
            admission: Admission::new(&limits),
            acceptor,
            overloaded: Arc::new(overloaded),
            failed: Arc::new(failed),
            limits,
        }
    }

    /// Whether a connection from `peer` is a TLS connection.
    pub(crate) fn secures(&self, peer: &Peer) -> bool {
        self.acceptor.is_some() && matches!(peer, Peer::Tcp(_))
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Whether a handler may begin although nothing of its body is there: half of the threads for that are kept for bodies that come.
    pub(crate) fn has_spare_streams(&self) -> bool {
        let (load, threads_max) = self.streams.load();
        2 * load < threads_max.max(1)
    }

    /// Whether a thread is free for a body that has no room in memory.
    pub(crate) fn has_free_stream(&self) -> bool {
        let (load, threads_max) = self.streams.load();
        load < threads_max.max(1)
    }

    /// Whether bodies that come slowly keep threads or memory from others.
    pub(crate) fn is_short_for_bodies(&self) -> bool {
        self.body_memory.is_short() || self.streams.depth() > 0
    }

    /// Lets all threads that take jobs end when they have none.
    pub(crate) fn close_queues(&self) {
        [&self.pool, &self.streams, &self.handshakes].into_iter().for_each(Pool::close);
    }

    /// Writes down that an answer is over.
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

    /// Gives a line to the access log.
    pub(crate) fn log(&self, entry: Box<Entry>, status: u16, bytes: u64, aborted: bool) {
        if let Some(log) = &self.log {
            log.push(entry, status, bytes, aborted);
        }
    }

    /// Writes down that an answer is over that was more than one send.
    pub(crate) fn record_outgoing(&self, counters: &ThreadCounters, outgoing: &mut Outgoing, aborted: bool) {
        if !outgoing.is_recorded {
            self.record(counters, outgoing.status, outgoing.sent(), aborted, outgoing.watch.take());
        } else if aborted {
            counters.aborts.add(1);
        }
    }
}

/// An answer that says in one line what is wrong with a request, and closes the connection.
pub(crate) fn reason_response(status: StatusCode, reason: &str) -> Response {
    Response::new(status)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"))
        .header(header::CONNECTION, HeaderValue::from_static("close"))
        .body(Body::bytes(format!("{reason}\n")))
}

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerState").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// A piece of a TLS handshake that waits for a thread, or has one. It counts until it is dropped, whatever becomes of the job.
#[derive(Debug)]
pub(crate) struct HandshakePermit {
    server: Arc<ServerState>,
}

impl HandshakePermit {
    /// Counts one in, if it may be worked on.
    pub(crate) fn get(server: &Arc<ServerState>) -> Option<Self> {
        let Admission { handshakes, handshakes_max, .. } = &server.admission;
        if handshakes.fetch_add(1, Ordering::Relaxed) >= *handshakes_max {
            handshakes.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self { server: server.clone() })
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.server.admission.handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The caps on connections.
#[derive(Debug)]
pub(crate) struct Admission {
    open: AtomicUsize,
    open_max: usize,
    per_ip_max: Option<usize>,
    per_ip: Mutex<HashMap<IpAddr, usize>>,
    handshakes: AtomicUsize,
    handshakes_max: usize,
}

impl Admission {
    fn new(limits: &Limits) -> Self {
        Self {
            open: AtomicUsize::new(0),
            open_max: limits.connections_max,
            per_ip_max: limits.connections_per_ip_max,
            per_ip: Mutex::default(),
            handshakes: AtomicUsize::new(0),
            handshakes_max: limits.handshakes_max,
        }
    }

    /// Counts a connection in, if it may come in.
    pub(crate) fn enter(&self, peer: &Peer) -> bool {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.open_max {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        if let (Some(max), Peer::Tcp(address)) = (self.per_ip_max, peer) {
            let mut per_ip = self.per_ip.lock().unwrap_or_else(PoisonError::into_inner);
            let count = per_ip.entry(address.ip()).or_default();
            if *count >= max {
                self.open.fetch_sub(1, Ordering::Relaxed);
                return false;
            }
            *count += 1;
        }
        true
    }

    /// Counts a connection out.
    pub(crate) fn leave(&self, peer: &Peer) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        if let (Some(_), Peer::Tcp(address)) = (self.per_ip_max, peer) {
            let mut per_ip = self.per_ip.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = per_ip.get_mut(&address.ip()) {
                *count -= 1;
                if *count == 0 {
                    per_ip.remove(&address.ip());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::run::pool::Job;
    use crate::{Request, Response};

    #[test]
    fn a_handshake_that_panics_gives_its_place_back() {
        let limits = Limits { handshakes_max: 1, ..Limits::default() };
        let handler = |_: Request| Response::new(StatusCode::OK);
        let server = Arc::new(ServerState::new(Arc::new(handler), limits, Clock::monotonic(), None, None));
        for _ in 0..3 {
            let permit = HandshakePermit::get(&server).expect("there is room");
            assert!(HandshakePermit::get(&server).is_none(), "for one");
            let worked = catch_unwind(AssertUnwindSafe(|| {
                let _permit = permit;
                panic!("a bug in the TLS library");
            }));
            assert!(worked.is_err());
        }
        // Nor is one lost that no thread took up.
        let permit = HandshakePermit::get(&server).expect("there is room");
        drop(Job::Handshake { lease: crate::run::connection::TxLease::none(), received: Vec::new(), permit });
        assert!(HandshakePermit::get(&server).is_some());
    }
}
