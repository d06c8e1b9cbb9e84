//! The index as a simulated node sees it: the same transactions, in a database that the simulation runs.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use super::writer::{Writer, in_savepoint};
use super::{Others, Sqlite, connect, schema, sql_error};
use crate::index::{Fence, IndexError};
use crate::rule::{Rule, holds};
use crate::simulation::{Transaction, current};
use narval_client::clock;

/// What PostgreSQL tells other servers, besides what SQLite does.
const TRIGGERS: &str = "
create trigger doomed after update of doomed, fence on files when new.doomed is not null or new.fence is not null
begin update meta set value = value + 1 where key = 'stamp'; end;
create trigger gone after delete on files begin update meta set value = value + 1 where key = 'stamp'; end;
";

/// A node's view of the database.
pub(super) struct Node;

fn dead() -> IndexError {
    IndexError::Away { index: "simulated".to_owned(), reason: "the node is dead".to_owned() }
}

impl Node {
    pub(super) fn read<T>(
        &self,
        ask: impl FnOnce(&Connection) -> rusqlite::Result<T>,
        path: &Path,
    ) -> Result<T, IndexError> {
        let (mut ask, mut answer) = (Some(ask), None);
        let task = current().ok_or_else(dead)?;
        task.read(&mut |connection| answer = ask.take().map(|ask| ask(connection)))?;
        answer.ok_or_else(dead)?.map_err(|error| sql_error(path, &error))
    }

    pub(super) fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
        path: &Path,
    ) -> Result<T, IndexError> {
        let answer = Arc::new(Mutex::new(None));
        let transaction: Transaction = {
            let answer = Arc::clone(&answer);
            Box::new(move |connection| *answer.lock().unwrap() = Some(in_savepoint(connection, change)))
        };
        current().ok_or_else(dead)?.write(transaction)?;
        let answer = answer.lock().unwrap().take();
        answer.ok_or_else(dead)?.map_err(|error| sql_error(path, &error))
    }

    /// The next transaction of this task is one of a collection.
    pub(super) fn is_fenced(&self, fence: Fence) {
        if let Some(task) = current() {
            task.is_fenced(fence);
        }
    }

    /// As PostgreSQL's index: the time of the database.
    pub(super) fn now(&self) -> u64 {
        current().filter(|_| holds(Rule::DatabaseTime)).map_or_else(clock::now, |task| task.database_time())
    }

    pub(super) fn stamp(&self) -> u64 {
        current().map_or(0, |task| task.stamp())
    }
}

impl Sqlite {
    /// The database that simulated nodes share. `clock` is its time in milliseconds since 1970.
    pub(crate) fn simulated_database(clock: Arc<AtomicU64>) -> Connection {
        let mut connection = connect(Path::new(":memory:")).unwrap();
        schema::prepare(&mut connection, Path::new(":memory:")).unwrap();
        connection.execute_batch(TRIGGERS).unwrap();
        let time = move |_: &rusqlite::functions::Context<'_>| Ok((clock.load(Ordering::Relaxed) / 1000).cast_signed());
        connection.create_scalar_function("unixepoch", 0, FunctionFlags::SQLITE_UTF8, time).unwrap();
        connection
    }

    /// The index of a simulated node.
    pub(crate) fn simulated() -> Self {
        let path = Path::new(":memory:");
        let (writer, others) = (connect(path).unwrap(), connect(path).unwrap());
        let stamp = Arc::new(AtomicU64::new(0));
        Self {
            path: path.to_owned(),
            idle: Mutex::default(),
            writer: Writer::start(writer, path, Arc::clone(&stamp)).unwrap(),
            stamp,
            others: Mutex::new(Others { connection: others, version: 0, looked: Instant::now(), failures: 0 }),
            simulated: Some(Node),
        }
    }
}
