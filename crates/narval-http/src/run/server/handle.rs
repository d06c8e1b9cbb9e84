//! A running server, and how it stops.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::error::ServerError;
use crate::io::listen::ListenAddress;
use crate::io::sync::Mutex;
use crate::observe::access_log::LogQueue;
use crate::observe::counters::Snapshot;
use crate::run::mailbox::{Mailbox, Message};
use crate::run::server::state::ServerState;

/// How long running requests may take after a shard has failed.
const SHARD_ENDED_GRACE: Duration = Duration::from_secs(5);
/// How long the access log may take to write its queue when the server stops.
const LOG_GRACE: Duration = Duration::from_secs(3);

/// SIGTERM, SIGINT and SIGQUIT, caught. Between [`StopSignals::catch`] and [`ServerHandle::stop_on`] they are kept: a
/// server that is told to stop as soon as it answers stops in order.
///
/// ```no_run
/// use std::time::Duration;
/// # use narval_http::{Server, StopSignals};
/// # let server = Server::builder(|| "pong").build().unwrap();
///
/// let signals = StopSignals::catch().unwrap();
/// let handle = server.spawn().unwrap();
/// handle.stop_on(signals, Duration::from_secs(30)).unwrap();
/// handle.wait().unwrap();
/// ```
#[derive(Debug)]
pub struct StopSignals {
    caught: Signals,
}

impl StopSignals {
    /// From now on, these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub fn catch() -> io::Result<Self> {
        Ok(Self { caught: Signals::new([SIGTERM, SIGINT, SIGQUIT])? })
    }
}

/// A running server. Dropping the handle leaves it running.
#[derive(Debug)]
pub struct ServerHandle {
    pub(super) inner: Arc<Running>,
    pub(super) log_thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) server: Arc<ServerState>,
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    pub(super) ended: Arc<Ended>,
    pub(super) addresses: Vec<ListenAddress>,
    pub(super) workers: usize,
    /// Unix sockets to remove at the end.
    pub(super) paths: Vec<PathBuf>,
}

impl ServerHandle {
    /// The addresses the server listens on.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.inner.addresses
    }

    /// The engine's counters.
    pub fn counters(&self) -> Snapshot {
        snapshot(&self.inner.server, self.inner.workers)
    }

    /// A function that returns the engine's counters, for a handler that publishes them. All are zero once the server
    /// has ended.
    pub fn counter_source(&self) -> impl Fn() -> Snapshot + Send + Sync + 'static {
        let (server, workers) = (Arc::downgrade(&self.inner.server), self.inner.workers);
        move || server.upgrade().map(|server| snapshot(&server, workers)).unwrap_or_default()
    }

    /// Stops the server: stops accepting, closes idle connections, gives running requests up to `grace` to finish, and
    /// aborts the rest. Returns whether everything finished.
    pub fn shutdown(&self, grace: Duration) -> bool {
        self.inner.shutdown(grace)
    }

    /// Stops the server in the same way on SIGTERM, SIGINT or SIGQUIT. A second signal stops it immediately.
    ///
    /// # Errors
    /// The thread that waits for them cannot be started.
    pub fn stop_on(&self, mut signals: StopSignals, grace: Duration) -> io::Result<()> {
        let running = self.inner.clone();
        thread::Builder::new().name("signals".into()).spawn(move || {
            let mut signals = signals.caught.forever();
            if signals.next().is_none() {
                return;
            }
            tracing::info!("stopping: running requests have {grace:?} to finish");
            let stopping = running.clone();
            let stopper = thread::Builder::new().name("shutdown".into()).spawn(move || stopping.shutdown(grace));
            if signals.next().is_some() || stopper.is_err() {
                running.halt();
            }
        })?;
        Ok(())
    }

    /// Waits until the server has stopped.
    ///
    /// # Errors
    /// [`ServerError::ShardEnded`] if it stopped by itself. What ran on other threads had some seconds to
    /// finish. The process should exit, and be restarted.
    pub fn wait(mut self) -> Result<(), ServerError> {
        let failure = self.inner.ended.wait_for_all_or_failure();
        if failure.is_some() {
            self.inner.shutdown(SHARD_ENDED_GRACE);
        }
        self.inner.clean_up();
        // The log is complete before the process ends, unless the disk is too slow.
        if let (Some(thread), Some(log)) = (self.log_thread.take(), &self.inner.server.log) {
            let until = Instant::now() + LOG_GRACE;
            let mut told = false;
            while !thread.is_finished() && Instant::now() < until {
                told = told || log.end();
                thread::sleep(Duration::from_millis(1));
            }
        }
        failure.map_or(Ok(()), |reason| Err(ServerError::ShardEnded(reason)))
    }
}

impl Running {
    fn shutdown(&self, grace: Duration) -> bool {
        for mailbox in &self.mailboxes {
            mailbox.post(Message::Stop);
        }
        let finished = self.ended.wait(grace);
        if !finished {
            self.halt();
        }
        self.server.close_queues();
        self.clean_up();
        finished && self.ended.state.lock().failure.is_none()
    }

    fn halt(&self) {
        for mailbox in &self.mailboxes {
            mailbox.post(Message::Halt);
        }
        self.ended.wait(Duration::from_secs(1));
    }

    fn clean_up(&self) {
        for path in &self.paths {
            // It may have been removed already: several paths lead here.
            drop(std::fs::remove_file(path));
        }
    }
}

/// Counts the shards that have ended.
#[derive(Debug)]
pub(super) struct Ended {
    state: Mutex<EndedState>,
    changed: Condvar,
}

#[derive(Debug)]
struct EndedState {
    running: usize,
    /// Why the first shard failed.
    failure: Option<String>,
}

impl Ended {
    pub(super) fn new(shards: usize) -> Self {
        Self { state: Mutex::new(EndedState { running: shards, failure: None }), changed: Condvar::new() }
    }

    pub(super) fn one(&self, failure: Option<String>) {
        let mut state = self.state.lock();
        state.running = state.running.saturating_sub(1);
        if state.failure.is_none() {
            state.failure = failure;
        }
        self.changed.notify_all();
    }

    /// Waits until all have ended, or one has failed; returns why.
    fn wait_for_all_or_failure(&self) -> Option<String> {
        let goes_on = |state: &mut EndedState| state.running > 0 && state.failure.is_none();
        let state = self.changed.wait_while(self.state.lock(), goes_on).unwrap_or_else(PoisonError::into_inner);
        state.failure.clone()
    }

    /// Waits until all have ended; `false` after `timeout`.
    fn wait(&self, timeout: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.state.lock(), timeout, |state| state.running > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.running == 0
    }
}

fn snapshot(server: &ServerState, workers: usize) -> Snapshot {
    let counted = server.counters.snapshot();
    let output = server.output_memory.usage();
    Snapshot {
        queue_depth: server.pool.depth(),
        body_memory_bytes: server.body_memory.used() as u64,
        output_memory_bytes: output.used as u64,
        output_memory_max_bytes: output.bytes_max as u64,
        output_memory_refused: output.refused,
        output_memory_closed: output.closed,
        bytes_received: counted.bytes_received + server.body_memory.received_by_handlers(),
        bodies_waiting: server.streams.depth(),
        bodies_streamed: server.streams.load().0,
        handshakes_running: server.admission.in_use().1,
        connections_max: server.limits.connections_max,
        queue_max: server.limits.queue_max,
        body_memory_max_bytes: server.limits.body_memory_max as u64,
        bodies_waiting_max: server.limits.bodies_waiting_max,
        bodies_streamed_max: server.limits.streamed_bodies_max,
        handshakes_max: server.limits.handshakes_max,
        workers,
        log_lines_dropped: server.log.as_ref().map_or(0, LogQueue::dropped),
        ..counted
    }
}
