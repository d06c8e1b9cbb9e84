//! The index as a simulated node sees it: the same transactions, in a database that the simulation runs.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use super::failed::{of_transaction, sql_error};
use super::tx::SqliteTx;
use super::writer::in_savepoint;
use super::{connect, count, schema};
use crate::index::tx::{How, Reading, Tx, TxError, Work};
use crate::index::{Index, IndexError};
use crate::records::leases::Fence;
use crate::records::paths::{CacheId, PathTotals};
use crate::simulator::rule::{Rule, holds};
use crate::simulator::state::Transaction;
use crate::simulator::task::{Dead, current};
use narval_client::clock;

/// What PostgreSQL tells other servers, besides what SQLite does.
const TRIGGERS: &str = "
create trigger gone after delete on nars begin update meta set value = value + 1 where key = 'stamp'; end;
";

/// A node's view of the database.
pub(crate) struct Simulated;

fn dead() -> IndexError {
    IndexError::Unavailable { index: "simulated".to_owned(), reason: "the node is dead".to_owned() }
}

impl From<Dead> for IndexError {
    fn from(_: Dead) -> Self {
        Self::Unavailable { index: "simulated".to_owned(), reason: "simulated".to_owned() }
    }
}

fn failed(error: rusqlite::Error) -> IndexError {
    sql_error(Path::new("simulated"), &error)
}

impl Simulated {
    fn read<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, IndexError> {
        let (mut ask, mut answer) = (Some(ask), None);
        let task = current().ok_or_else(dead)?;
        task.read(&mut |connection| answer = ask.take().map(|ask| ask(connection)))?;
        answer.ok_or_else(dead)?.map_err(failed)
    }

    /// The database that simulated nodes share. `clock` is its time in milliseconds since 1970.
    pub(crate) fn database(clock: Arc<AtomicU64>) -> Connection {
        let mut connection = connect(Path::new(":memory:")).unwrap();
        schema::prepare(&mut connection, Path::new(":memory:")).unwrap();
        connection.execute_batch(TRIGGERS).unwrap();
        let time = move |_: &rusqlite::functions::Context<'_>| Ok((clock.load(Ordering::Relaxed) / 1000).cast_signed());
        connection.create_scalar_function("unixepoch", 0, FunctionFlags::SQLITE_UTF8, time).unwrap();
        connection
    }
}

impl Index for Simulated {
    fn ask(&self, how: Reading, work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>) -> Result<(), IndexError> {
        self.read(|connection| {
            let moment = (how == Reading::Snapshot).then(|| connection.unchecked_transaction()).transpose()?;
            work(&mut SqliteTx(connection)).map_err(of_transaction)?;
            moment.map_or(Ok(()), |moment| moment.commit())
        })
    }

    fn change(&self, _: How, mut work: Work) -> Result<(), IndexError> {
        let answer = Arc::new(Mutex::new(None));
        let transaction: Transaction = {
            let answer = Arc::clone(&answer);
            let mut change = move |connection: &Connection| work(&mut SqliteTx(connection)).map_err(of_transaction);
            Box::new(move |connection| *answer.lock().unwrap() = Some(in_savepoint(connection, &mut change)))
        };
        current().ok_or_else(dead)?.write(transaction)?;
        let answer = answer.lock().unwrap().take();
        answer.ok_or_else(dead)?.map_err(failed)
    }

    fn is_fenced(&self, fence: Fence) {
        if let Some(task) = current() {
            task.is_fenced(fence.0);
        }
    }

    fn name(&self) -> String {
        "simulated".to_owned()
    }

    /// As PostgreSQL's index: the time of the database.
    fn now(&self) -> u64 {
        current().filter(|_| holds(Rule::DatabaseTime)).map_or_else(clock::now, |task| task.database_time())
    }

    fn stamp(&self) -> u64 {
        current().map_or(0, |task| task.stamp())
    }

    fn server(&self) -> u64 {
        current().map_or(0, |task| task.server())
    }

    fn noticed_after(&self) -> Duration {
        Duration::from_millis(20)
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
        self.read(|connection| count(connection, cache, lines, after, max))
    }
}
