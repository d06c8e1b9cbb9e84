//! The engine's counters: one block per thread, summed on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::io::sync::Mutex;
use crate::observe::busy::BusyTime;
use crate::observe::counter::Counter;
use crate::observe::histogram::{Cells, Histogram, Unit};

/// Status codes that are counted individually: 100 to 599.
const STATUSES: usize = 500;

/// Counters that a [`Snapshot`] has under the same names.
macro_rules! counters {
    ($($name:ident)*) => {
        /// The counters of one thread. Only that thread writes, so incrementing is a load and a store.
        #[derive(Debug, Default)]
        pub(crate) struct ThreadCounters {
            $(pub(crate) $name: Counter,)*
            pub(crate) connections_closed: Counter,
            pub(crate) inline_time: Cells,
            pub(crate) request_time: Cells,
            pub(crate) job_time: Cells,
            pub(crate) queue_time: Cells,
            pub(crate) queue_depth: Cells,
            pub(crate) busy: BusyTime,
            statuses: Box<[Counter]>,
        }

        fn sums(threads: &[Arc<CachePadded<ThreadCounters>>]) -> Snapshot {
            Snapshot { $($name: threads.iter().map(|block| block.$name.get()).sum(),)* ..Snapshot::default() }
        }
    };
}

counters! {
    requests_inline requests_worker bytes_sent bytes_received connections_accepted connections_refused
    connections_given_up accept_errors handshakes handshakes_failed handshakes_refused connections_http2
    answers_http2 rejected overloaded timeouts aborts panics polls completions messages inline_slow
}

impl ThreadCounters {
    fn new() -> Self {
        Self { statuses: (0..STATUSES).map(|_| Counter::default()).collect(), ..Self::default() }
    }

    pub(crate) fn status(&self, status: u16) {
        if let Some(counter) = usize::from(status).checked_sub(100).and_then(|at| self.statuses.get(at)) {
            counter.add(1);
        }
    }
}

/// The counters of all threads.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    threads: Mutex<Vec<Arc<CachePadded<ThreadCounters>>>>,
    /// The busy time in nanoseconds that was last reported. A job that ends while the sum is made may make the next sum a few
    /// nanoseconds smaller, and a counter that decreases is taken for one that was reset.
    busy_reported: AtomicU64,
}

impl Counters {
    /// Adds a block for a new thread.
    pub(crate) fn thread(&self) -> Arc<CachePadded<ThreadCounters>> {
        let block = Arc::new(CachePadded::new(ThreadCounters::new()));
        self.threads.lock().push(block.clone());
        block
    }

    /// The current sums.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let threads = self.threads.lock();
        let now = Instant::now();
        let busy: Duration = threads.iter().map(|block| block.busy.get(now)).sum();
        let busy = u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX);
        let busy = busy.max(self.busy_reported.fetch_max(busy, Ordering::Relaxed));
        let histogram =
            |unit, field: fn(&ThreadCounters) -> &Cells| Histogram::of(unit, threads.iter().map(|block| field(block)));
        let sums = sums(&threads);
        let closed = threads.iter().map(|block| block.connections_closed.get()).sum();
        let statuses = (0..STATUSES).filter_map(|at| {
            let count = threads.iter().filter_map(|block| block.statuses.get(at)).map(Counter::get).sum::<u64>();
            (count > 0).then_some((at as u16 + 100, count))
        });
        Snapshot {
            statuses: statuses.collect(),
            connections_open: sums.connections_accepted.saturating_sub(closed),
            inline_time: histogram(Unit::Time, |block| &block.inline_time),
            request_time: histogram(Unit::Time, |block| &block.request_time),
            worker_busy: Duration::from_nanos(busy),
            job_time: histogram(Unit::Time, |block| &block.job_time),
            queue_time: histogram(Unit::Time, |block| &block.queue_time),
            queue_depths: histogram(Unit::Count, |block| &block.queue_depth),
            // The server knows the rest.
            ..sums
        }
    }
}

/// The engine's counters at one moment, since the server was built unless stated otherwise.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Requests answered by [`Handler::inline`](crate::Handler::inline).
    pub requests_inline: u64,
    /// Requests answered by a worker.
    pub requests_worker: u64,
    /// Responses by status code; only codes that were sent.
    pub statuses: Vec<(u16, u64)>,
    /// Bytes written to sockets.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Connections accepted.
    pub connections_accepted: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections refused with 503 because of a limit.
    pub connections_refused: u64,
    /// Idle connections closed to make room for others.
    pub connections_given_up: u64,
    /// Completed TLS handshakes.
    pub handshakes: u64,
    /// Failed TLS handshakes.
    pub handshakes_failed: u64,
    /// Connections closed because of too many concurrent TLS handshakes.
    pub handshakes_refused: u64,
    /// Connections whose clients have chosen HTTP/2.
    pub connections_http2: u64,
    /// Responses on these connections. The other counters include them.
    pub answers_http2: u64,
    /// Failures to accept, for example for lack of file descriptors.
    pub accept_errors: u64,
    /// Malformed requests.
    pub rejected: u64,
    /// Requests answered 503 because the queue was full.
    pub overloaded: u64,
    /// Connections closed at a deadline, except idle ones.
    pub timeouts: u64,
    /// Aborted responses.
    pub aborts: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Calls of the driver's `wait`.
    pub polls: u64,
    /// Operations and readiness events completed by the driver.
    pub completions: u64,
    /// Messages from other threads that shards handled.
    pub messages: u64,
    /// Duration of inline calls; one in 64 is measured.
    pub inline_time: Histogram,
    /// Measured inline calls of more than 200 µs, which delay a whole shard.
    pub inline_slow: u64,
    /// Duration of requests that were not answered inline, from the end of the head to the last byte written to the
    /// socket; one in 16 is measured, or all with an access log.
    pub request_time: Histogram,
    /// Time that workers have spent on jobs, up to now.
    pub worker_busy: Duration,
    /// Duration of jobs: handlers, and pieces of continued responses.
    pub job_time: Histogram,
    /// How long requests waited for a worker, from the end of the head; as many are measured as of [`request_time`](Self::request_time).
    pub queue_time: Histogram,
    /// Length of the queue whenever a request was added, including that one; one in 16 is measured.
    pub queue_depths: Histogram,
    /// Requests in the queue now.
    pub queue_depth: usize,
    /// Memory used by request bodies now, in bytes.
    pub body_memory_bytes: u64,
    /// Memory that connections hold for their clients now, in bytes: answers that wait to be sent, messages of WebSockets.
    pub output_memory_bytes: u64,
    /// Its limit, [`Limits::output_memory_max`](crate::Limits::output_memory_max).
    pub output_memory_max_bytes: u64,
    /// Answers that were 503, and messages that were not decompressed, because that memory was used up.
    pub output_memory_refused: u64,
    /// Connections closed because they held most when it was used up.
    pub output_memory_closed: u64,
    /// Requests with streamed bodies that are queued for a thread now.
    pub bodies_waiting: usize,
    /// Streamed bodies whose handlers run now, or wait for a thread.
    pub bodies_streamed: usize,
    /// TLS handshakes in progress now.
    pub handshakes_running: usize,
    /// [`Limits::connections_max`](crate::Limits::connections_max).
    pub connections_max: usize,
    /// [`Limits::queue_max`](crate::Limits::queue_max).
    pub queue_max: usize,
    /// [`Limits::body_memory_max`](crate::Limits::body_memory_max).
    pub body_memory_max_bytes: u64,
    /// [`Limits::bodies_waiting_max`](crate::Limits::bodies_waiting_max).
    pub bodies_waiting_max: usize,
    /// [`Limits::streamed_bodies_max`](crate::Limits::streamed_bodies_max).
    pub bodies_streamed_max: usize,
    /// [`Limits::handshakes_max`](crate::Limits::handshakes_max).
    pub handshakes_max: usize,
    /// Worker threads.
    pub workers: usize,
    /// Access log lines dropped because the writer could not keep up.
    pub log_lines_dropped: u64,
}

impl Snapshot {
    /// All requests answered.
    pub fn requests(&self) -> u64 {
        self.requests_inline + self.requests_worker
    }
}
