//! Connections to PostgreSQL: a bounded pool with deadlines, and what is answered while the database is away.
//!
//! Nothing here depends on a session: each transaction sets what it needs for itself. So `pgbouncer` may hand out connections by transaction.
//! Statements are prepared where nothing stands between this process and the server.

mod connect;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, Config, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::Address;
use super::failed::Failed;
use crate::index::IndexError;
use crate::index::tx::Sql;

/// The most connections of one process, besides the one that watches for changes.
const CONNECTIONS_MAX: usize = 16;

/// How long a request waits for one of them.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// How long the end of a transaction that failed may take.
const ROLLBACK_MAX: Duration = Duration::from_secs(5);

/// How long a connection is kept that nobody uses.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A connection, with the runtime that moves its bytes while somebody waits for an answer.
pub(super) struct Connection {
    runtime: Runtime,
    client: Client,
    used: Instant,
    /// Whether it is known to be outside any transaction.
    is_idle: bool,
    /// The number of the server when it was opened.
    server: u64,
    /// Whether it is a session of its own at the server.
    is_direct: bool,
    /// Statements that it had, by their addresses; those that it had more than once are prepared. There are as many as the program has.
    prepared: HashMap<usize, Option<Statement>>,
}

/// How a statement is sent.
pub(super) enum Sent {
    Whole,
    /// It is prepared first, for the next time.
    Prepare,
    Prepared(Statement),
}

impl Connection {
    fn open(host: &Config, timeout: Duration, tls: &MakeRustlsConnect) -> Result<Self, Failed> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| Failed::Row(format!("no resources for a connection: {error}")))?;
        let connected = runtime.block_on(async {
            let connected = tokio::time::timeout(timeout, connect::connect(host, tls.clone())).await;
            connected.map_err(|_| Failed::Deadline(timeout))?
        });
        match connected {
            Ok((client, is_direct)) => {
                let (used, prepared) = (Instant::now(), HashMap::new());
                Ok(Self { runtime, client, used, is_idle: true, server: 0, is_direct, prepared })
            }
            Err(error) => {
                // A look-up of the name may hang; it is not waited for.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Does something, within a deadline. After any error, whatever was begun is undone.
    pub(super) fn run<T>(
        &mut self,
        deadline: Duration,
        work: impl AsyncFnOnce(&Client) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        self.ask(deadline, work).inspect_err(|error| self.undo(error))
    }

    /// As [`run`](Self::run), as a part of something that is undone by the caller.
    pub(super) fn ask<T>(
        &mut self,
        deadline: Duration,
        work: impl AsyncFnOnce(&Client) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let Self { runtime, client, used, is_idle, .. } = self;
        let mut done = None;
        drive(runtime, deadline, pin!(async { done = Some(work(client).await) }));
        *used = Instant::now();
        let done = done.unwrap_or(Err(Failed::Deadline(deadline)));
        *is_idle &= done.is_ok();
        done
    }

    /// How a statement is to be sent: a server takes longer to read and plan most of them than to carry them out.
    pub(super) fn sent(&mut self, sql: &'static Sql) -> Sent {
        if !self.is_direct {
            return Sent::Whole;
        }
        match self.prepared.entry(std::ptr::from_ref(sql).addr()) {
            Entry::Vacant(entry) => {
                entry.insert(None);
                Sent::Whole
            }
            Entry::Occupied(entry) => entry.get().clone().map_or(Sent::Prepare, Sent::Prepared),
        }
    }

    /// What was [sent](Self::sent) is prepared from now on, or is not.
    pub(super) fn is_prepared(&mut self, sql: &'static Sql, statement: Option<Statement>) {
        self.prepared.insert(std::ptr::from_ref(sql).addr(), statement);
    }

    /// Rolls back whatever was begun before this error. What is not known to leave a connection in order ends its use.
    pub(super) fn undo(&mut self, error: &Failed) {
        let Self { runtime, client, is_idle, .. } = self;
        *is_idle = false;
        if error.leaves_usable() {
            drive(runtime, ROLLBACK_MAX, pin!(async { *is_idle = client.batch_execute("rollback").await.is_ok() }));
        }
    }

    /// Whether it may still be used: the server has not closed it, as far as is known here.
    fn is_open(&self) -> bool {
        // Lets the end of the connection be noticed.
        self.runtime.block_on(tokio::task::yield_now());
        self.is_idle && !self.client.is_closed() && self.used.elapsed() < IDLE_MAX
    }
}

/// Does some work until the deadline. The type of the work is erased: a copy of the runtime's loop for each statement would be half a megabyte
/// of code.
fn drive(runtime: &Runtime, deadline: Duration, work: Pin<&mut dyn Future<Output = ()>>) {
    // Whoever waits for the result sees that there is none.
    runtime.block_on(async { tokio::time::timeout(deadline, work).await }).ok();
}

/// The connections of a process.
pub(super) struct Pool {
    address: Address,
    /// The number of the host that was reached last: the others are tried after it.
    host: AtomicUsize,
    tls: MakeRustlsConnect,
    state: Mutex<State>,
    returned: Condvar,
}

struct State {
    idle: Vec<Connection>,
    /// How many are in use.
    out: usize,
    /// How often the server has changed, or was away.
    server: u64,
    /// How many connections led to the server itself. Ports can be the same by chance, so one is not enough, and none is believed after one that did not.
    direct: Option<u32>,
    /// Why the database cannot be reached. Nobody tries until [`Pool::is_back`].
    unavailable: Option<String>,
}

impl Pool {
    pub(super) fn new(address: Address, tls: MakeRustlsConnect) -> Self {
        let state = State { idle: Vec::new(), out: 0, server: 0, direct: Some(0), unavailable: None };
        Self { address, host: AtomicUsize::new(0), tls, state: Mutex::new(state), returned: Condvar::new() }
    }

    /// What the database is called in messages.
    pub(super) fn name(&self) -> &str {
        &self.address.name
    }

    /// A connection beside those of the pool.
    pub(super) fn open(&self) -> Result<Connection, Failed> {
        let (hosts, timeout) = (&self.address.hosts, self.address.timeout());
        // Before it is opened: it may be one of the server that is not the primary any more.
        let server = self.state().server;
        let first = self.host.load(Ordering::Relaxed);
        let mut opened = Err(Failed::Row("the address has no host".to_owned()));
        for (at, host) in hosts.iter().enumerate().cycle().skip(first).take(hosts.len()) {
            opened = Connection::open(host, timeout, &self.tls);
            if let Ok(connection) = &mut opened {
                connection.server = server;
                connection.is_direct = self.is_direct(connection.is_direct);
                self.host.store(at, Ordering::Relaxed);
                break;
            }
        }
        opened
    }

    /// Whether a connection that seems to lead to the server itself is believed to.
    fn is_direct(&self, seems_direct: bool) -> bool {
        let mut state = self.state();
        state.direct = state.direct.filter(|_| seems_direct).map(|count| count.saturating_add(1));
        state.direct.is_some_and(|count| count > 1)
    }

    /// A connection, and whether it was used before: it may turn out to be closed then.
    pub(super) fn take(&self) -> Result<(Connection, bool), IndexError> {
        let until = Instant::now() + WAIT_MAX;
        let mut state = self.state();
        loop {
            if let Some(reason) = &state.unavailable {
                return Err(IndexError::Unavailable { index: self.name().to_owned(), reason: reason.clone() });
            }
            if let Some(connection) = state.idle.pop() {
                state.out += 1;
                drop(state);
                if connection.is_open() {
                    return Ok((connection, true));
                }
                drop(connection);
                return Ok((self.open_counted()?, false));
            }
            if state.out < CONNECTIONS_MAX {
                state.out += 1;
                drop(state);
                return Ok((self.open_counted()?, false));
            }
            let wait = until.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                let reason = format!("all {CONNECTIONS_MAX} connections are in use");
                return Err(IndexError::Unavailable { index: self.name().to_owned(), reason });
            }
            state = self.returned.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Opens a connection that is counted as in use already.
    fn open_counted(&self) -> Result<Connection, IndexError> {
        self.open().map_err(|error| {
            self.lost(&error);
            error.at(self.name())
        })
    }

    /// A connection that is not needed any more.
    pub(super) fn give_back(&self, connection: Connection) {
        let mut state = self.state();
        state.out = state.out.saturating_sub(1);
        // The next one would find itself in the middle of a transaction.
        let broken = if connection.is_idle && connection.server == state.server {
            state.idle.push(connection);
            None
        } else {
            Some(connection)
        };
        drop((state, broken));
        self.returned.notify_one();
    }

    /// A connection that is of no use any more, and is dropped.
    pub(super) fn lost(&self, error: &Failed) {
        self.outdated();
        if error.breaks_connection() {
            self.set_unavailable(error);
        }
    }

    /// As [`Pool::lost`], of one that may simply be too old: the next one tells.
    pub(super) fn outdated(&self) {
        let mut state = self.state();
        state.out = state.out.saturating_sub(1);
        // Those of the same age may be closed, too.
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        self.returned.notify_one();
        drop(idle);
    }

    /// Another server is the primary: connections to the former one, which may still answer, are of no use any more.
    pub(super) fn has_another_server(&self) {
        let mut state = self.state();
        state.server += 1;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }

    /// Nobody is to wait for the database until it is back.
    pub(super) fn set_unavailable(&self, error: &Failed) {
        let reason = error.reason();
        let mut state = self.state();
        if state.unavailable.is_none() {
            tracing::error!("the index '{}' cannot be reached: {reason}. What is in memory is served on", self.name());
        }
        if state.unavailable.replace(reason).is_none() {
            state.server += 1;
        }
        drop(state);
        self.returned.notify_all();
    }

    /// Changes when the database was away, and when another server is the primary.
    pub(super) fn server(&self) -> u64 {
        self.state().server
    }

    /// The database answers.
    pub(super) fn is_back(&self) {
        if self.state().unavailable.take().is_some() {
            tracing::info!("the index '{}' is reached again", self.name());
        }
    }

    /// Whether nobody waits for the database now.
    #[cfg(test)]
    pub(super) fn is_known_to_be_away(&self) -> bool {
        self.state().unavailable.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
