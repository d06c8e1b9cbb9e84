//! The index in PostgreSQL as a simulated node sees it: its pool, its transactions and what notices changes are the real ones, and the server is.
//!
//! Each statement is a step of the simulation, so the transactions of different tasks interleave between statements. One task runs at a time: a lock
//! that another one has is not waited for, but tried again when others have run (`lock_timeout` is a millisecond). The server's time is that of the
//! simulation: its `now()` and `clock_timestamp()` are hidden by functions of the same names.

use std::cell::Cell;
use std::sync::mpsc::channel;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio_postgres::SimpleQueryMessage;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::Address;
use super::failed::Failed;
use super::pool::{Connection, Pool};
use super::sql::{execute, get, p, query_opt};
use super::transaction::Database;
use super::{History, Node, Nodes, Postgres, count, schema, watch};
use crate::index::memory::Memory;
use crate::index::tx::{DEADLINE, DEADLINE_LARGE, How, Reading, Tx, TxError, Work};
use crate::index::{CacheId, Fence, Index, IndexError, PathTotals};
use crate::simulation::rule::{Rule, holds};
use crate::simulation::{Task, current};
use crate::tests_on_postgres::postgres::PostgresServer;
use narval_client::clock;

/// How long a transaction may do nothing on the server, in milliseconds (`IDLE_TIMEOUT` of real ones).
pub(crate) const IDLE_MAX: u64 = 10_000;

/// What hides the server's clock.
const CLOCK: &str = "create schema simulated; \
     create function simulated.clock_timestamp() returns timestamptz language sql stable as \
       'select to_timestamp(current_setting(''simulated.clock'')::bigint / 1000.0)'; \
     create function simulated.now() returns timestamptz language sql stable as \
       'select to_timestamp(current_setting(''simulated.begun'')::bigint / 1000.0)'";

/// Says what time it is, and when the transaction began. Returns the process that serves the connection.
const SET_CLOCK: &str = "select pg_backend_pid(), set_config('simulated.clock', $1, false), set_config('simulated.begun', $2, false), \
     set_config('lock_timeout', '1', true)";

/// The tables that the checks look at.
const COPIED: [&str; 13] = [
    "caches", "nars", "garbage", "former", "paths", "refs", "leases", "pins", "releases", "pending", "work", "lost",
    "writers",
];

static TLS: LazyLock<MakeRustlsConnect> =
    LazyLock::new(|| MakeRustlsConnect::new(narval_client::tls_config(&[b"postgresql"], None).unwrap()));

thread_local! {
    /// How long this thread waits at most before a statement, without a simulation.
    pub(super) static PAUSE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The database that simulated nodes share.
pub(crate) struct Shared {
    server: Arc<PostgresServer>,
    name: String,
    address: String,
    control: Connection,
}

impl Shared {
    /// An empty one, with caches of these names; `None` where PostgreSQL is not installed.
    pub(crate) fn new(caches: [&str; 2], settings: &str) -> Option<Self> {
        let server = PostgresServer::shared()?;
        let address = server.database();
        let name = address.split(['/', '?']).nth(3)?.to_owned();
        let address = format!("{address}&options=-c%20search_path=simulated,pg_catalog");
        let mut control = Pool::new(Address::parse(&address).unwrap(), TLS.clone()).open().unwrap();
        control.run(DEADLINE, async |client| Ok(client.batch_execute(CLOCK).await?)).unwrap();
        schema::prepare(&mut control, &name).unwrap();
        let add = "insert into narval.caches (name, settings, created) values ($1, $2, 0)";
        for cache in caches {
            control.run(DEADLINE, async |client| execute(client, add, &[p(&cache), p(&settings)]).await).unwrap();
        }
        Some(Self { server, name, address, control })
    }

    /// Makes the tables that are checked those of the server, as they are now.
    pub(crate) fn copy_to(&mut self, copy: &rusqlite::Connection) {
        let all = COPIED.map(|table| format!("select * from narval.{table};")).concat();
        let rows = self.control.run(DEADLINE_LARGE, async |client| Ok(client.simple_query(&all).await?)).unwrap();
        copy.execute_batch("pragma foreign_keys = off; begin").unwrap();
        let mut tables = COPIED.iter();
        let mut table = tables.next();
        for table in COPIED {
            copy.prepare_cached(&format!("delete from {table}")).unwrap().execute([]).unwrap();
        }
        for message in rows {
            match message {
                SimpleQueryMessage::CommandComplete(_) => table = tables.next(),
                SimpleQueryMessage::Row(row) => {
                    let marks = vec!["?"; row.len()].join(", ");
                    let add = format!("insert into {} values ({marks})", table.unwrap());
                    let mut add = copy.prepare_cached(&add).unwrap();
                    for at in 0..row.len() {
                        let value = row.get(at);
                        match value.and_then(|text| text.strip_prefix("\\x")) {
                            Some(hex) => add.raw_bind_parameter(at + 1, bytes(hex)).unwrap(),
                            None => add.raw_bind_parameter(at + 1, value).unwrap(),
                        }
                    }
                    add.raw_execute().unwrap();
                }
                _ => {}
            }
        }
        copy.execute_batch("commit").unwrap();
    }

    /// Ends the process of a connection, with its transaction.
    pub(crate) fn end(&mut self, process: i32) {
        let end = format!("select pg_terminate_backend({process}, 60000)");
        self.control.run(DEADLINE_LARGE, async |client| Ok(client.batch_execute(&end).await?)).unwrap();
    }

    /// Ends all connections of nodes, as a server that is started again does.
    pub(crate) fn end_all(&mut self) {
        let end = "select pg_terminate_backend(pid, 60000) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid()";
        self.control.run(DEADLINE_LARGE, async |client| Ok(client.batch_execute(end).await?)).unwrap();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.server.sql("postgres", &format!("drop database {} with (force)", self.name)).unwrap();
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
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
            task.is_fenced(fence);
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
