//! The index in PostgreSQL as a simulated node sees it: its pool, its transactions and what notices changes are the real ones, and the server is.
//!
//! Each statement is a step of the simulation, so the transactions of different tasks interleave between statements. One task runs at a time: a lock
//! that another one has is not waited for, but tried again when others have run (`lock_timeout` is a millisecond). The server's time is that of the
//! simulation: its `now()` and `clock_timestamp()` are hidden by functions of the same names.

use std::cell::Cell;
use std::sync::mpsc::channel;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::Address;
use super::failed::Failed;
use super::pool::{Connection, Pool};
use super::sql::{get, p, query_opt};
use super::transaction::Database;
use super::{History, Node, Nodes, Postgres, count, schema, watch};
use crate::index::memory::Memory;
use crate::index::tx::{DEADLINE, DEADLINE_LARGE, How, Reading, Tx, TxError, Work};
use crate::index::{Index, IndexError};
use crate::records::leases::Fence;
use crate::records::paths::{CacheId, PathTotals};
use crate::simulator::rule::{Rule, holds};
use crate::simulator::server::Shared;
use crate::simulator::task::{Task, current};
use narval_client::clock;

/// Says what time it is, and when the transaction began. Returns the process that serves the connection.
const SET_CLOCK: &str = "select pg_backend_pid(), set_config('simulated.clock', $1, false), set_config('simulated.begun', $2, false), \
     set_config('lock_timeout', '1', true)";

static TLS: LazyLock<MakeRustlsConnect> =
    LazyLock::new(|| MakeRustlsConnect::new(narval_client::tls_config(&[b"postgresql"], None).unwrap()));

thread_local! {
    /// How long this thread waits at most before a statement, without a simulation.
    pub(super) static PAUSE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A node's index.
pub(crate) struct SimulatedPostgres {
    postgres: Postgres,
    /// What notices changes: its connection, and what it has seen.
    watch: Mutex<(Option<Connection>, Option<watch::Seen>)>,
}

fn dead() -> IndexError {
    IndexError::Unavailable { index: "simulated".to_owned(), reason: "the node is dead".to_owned() }
}

impl SimulatedPostgres {
    /// Makes the tables of an empty database.
    pub(crate) fn prepare(shared: &Shared) {
        let mut control = Pool::new(Address::parse(&shared.address).unwrap(), TLS.clone()).open().unwrap();
        schema::prepare(&mut control, "simulated").unwrap();
    }

    /// That of a node that starts.
    pub(crate) fn open(shared: &Shared) -> Self {
        let pool = Arc::new(Pool::new(Address::parse(&shared.address).unwrap(), TLS.clone()));
        let database = Database { pool, stamp: Arc::default(), node: Arc::new(Node::new(false).unwrap()) };
        let (memory, nodes, stop) = (Memory::default(), Arc::new(Nodes::default()), channel().0);
        Self {
            postgres: Postgres { database, memory, history: History::default(), nodes, _stop: stop },
            watch: Mutex::default(),
        }
    }

    /// As [`watch::run`] does now and then.
    fn look(&self, task: &Task) {
        let Database { pool, stamp, node } = &self.postgres.database;
        let mut watch = self.watch.lock().unwrap();
        let (connection, seen) = &mut *watch;
        if !task.looks(seen.is_none()) {
            return;
        }
        let looked = connection.take().map_or_else(|| pool.open(), Ok).and_then(|mut open| {
            set_clock(&mut open, task.true_time(), task.true_time())?;
            let found = open.run(DEADLINE, async |client| watch::look(client, node, seen.as_ref()).await)?;
            Ok((open, found))
        });
        match looked {
            Ok((open, (now, has_changed))) => {
                stamp.fetch_add(u64::from(has_changed), std::sync::atomic::Ordering::AcqRel);
                (*connection, *seen) = (Some(open), Some(now));
                pool.is_back();
            }
            Err(_) => *seen = None,
        }
    }

    /// Does something as a task.
    fn by<T>(&self, is_change: bool, work: impl FnOnce() -> Result<T, IndexError>) -> Result<T, IndexError> {
        let task = current().ok_or_else(dead)?;
        self.look(&task);
        task.begins_transaction(is_change);
        let done = work();
        task.ends_transaction();
        done
    }
}

impl Index for SimulatedPostgres {
    fn ask(&self, how: Reading, work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>) -> Result<(), IndexError> {
        self.by(false, || self.postgres.database.ask(how, work))
    }

    fn change(&self, how: How, mut work: Work) -> Result<(), IndexError> {
        let note = |error: &TxError| {
            if let Some(task) = current().filter(|_| error.downcast_ref().is_some_and(Failed::is_locked)) {
                task.is_in_the_way();
            }
        };
        self.by(true, || self.postgres.database.change(how, &mut |tx| work(tx).inspect_err(note)))
    }

    fn is_fenced(&self, fence: Fence) {
        if let Some(task) = current() {
            task.is_fenced(fence.0);
        }
    }

    fn name(&self) -> String {
        "simulated".to_owned()
    }

    fn memory(&self) -> Option<&Memory> {
        Index::memory(&self.postgres)
    }

    fn now(&self) -> u64 {
        if holds(Rule::DatabaseTime) { Index::now(&self.postgres) } else { clock::now() }
    }

    fn stamp(&self) -> u64 {
        if let Some(task) = current() {
            self.look(&task);
        }
        Index::stamp(&self.postgres)
    }

    fn server(&self) -> u64 {
        Index::server(&self.postgres)
    }

    fn noticed_after(&self) -> Duration {
        Index::noticed_after(&self.postgres)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn count(
        &self,
        cache: CacheId,
        lines: &[Vec<u8>],
        after: &str,
        max: usize,
    ) -> Result<Option<(PathTotals, String)>, IndexError> {
        self.by(false, || {
            let ask = async |client: &tokio_postgres::Client| count(client, cache, lines, after, max).await;
            self.postgres.database.read(DEADLINE_LARGE, ask)
        })
    }
}

fn set_clock(connection: &mut Connection, now: u64, begun: u64) -> Result<i32, Failed> {
    let (now, begun) = (now.to_string(), begun.to_string());
    connection.ask(DEADLINE, async |client| {
        let row = query_opt(client, SET_CLOCK, &[p(&now), p(&begun)]).await?;
        get(&row.ok_or(Failed::Changed)?, 0)
    })
}

/// There is no answer.
fn unanswered() -> Failed {
    Failed::Deadline(Duration::ZERO)
}

/// Before a statement: others run, the node may be killed, the connection may break, and the server has ended transactions in which nothing
/// happened for long.
pub(super) fn before(connection: &mut Connection, is_commit: bool) -> Result<(), Failed> {
    if !PAUSE.get().is_zero() {
        let random = getrandom::u32().unwrap_or_default();
        std::thread::sleep(PAUSE.get() * (random % 64) / 64);
    }
    let Some(task) = current() else { return Ok(()) };
    if !task.reaches_the_server(is_commit) {
        // The server finds out, and undoes what was begun: when, must not depend on how fast that is.
        let undone = connection.ask(DEADLINE, async |client| Ok(client.batch_execute("rollback").await?));
        tracing::debug!("{undone:?}");
        return Err(unanswered());
    }
    let (now, begun) = task.times();
    let process = set_clock(connection, now, begun)?;
    task.is_served_by(process);
    Ok(())
}

/// After the end of a transaction: what it has done is checked. The answer may be lost.
pub(super) fn after_commit(done: Result<(), Failed>) -> Result<(), Failed> {
    let Some(task) = current() else { return done };
    done?;
    if task.has_committed() { Ok(()) } else { Err(unanswered()) }
}
