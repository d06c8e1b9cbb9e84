//! The index in SQLite: WAL mode, any number of readers, one writer thread.
//!
//! Callers send a function to the writer thread and wait. It runs all waiting functions in one transaction, so that one `fsync` makes
//! many commits durable. Other processes (administration commands) may write to the same database, one transaction at a time.

mod failed;
mod schema;
#[cfg(test)]
mod simulation;
mod tx;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, ToSql};

use self::failed::{of_transaction, sql_error};
use self::tx::SqliteTx;
use self::writer::{Durability, Writer};
use super::tx::{How, Reading, Tx, TxError, Work};
use super::{Index, IndexError};
use crate::records::paths::{CacheId, PathTotals};

#[cfg(test)]
pub(crate) use self::simulation::Simulated;

/// Idle connections kept for readers.
const IDLE_MAX: usize = 16;

/// How long SQLite waits for another process's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// Prepared statements kept per connection.
const STATEMENTS_MAX: usize = 48;

/// SQLite's page cache per connection, in KiB. Small: the kernel's page cache is behind it.
const PAGE_CACHE_KIB: i64 = 1024;

/// The shortest time between two checks for changes by other processes.
const NOTICED_AFTER: Duration = Duration::from_millis(10);

/// The index in SQLite.
pub(crate) struct Sqlite {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    writer: Writer,
    /// The stamp as far as this process knows.
    stamp: std::sync::Arc<AtomicU64>,
    others: Mutex<Others>,
}

/// Detects changes of the index by other processes.
struct Others {
    connection: Connection,
    /// SQLite's `data_version` at the last check.
    version: i64,
    looked: Instant,
    /// The number of failed checks.
    failures: u64,
}

impl Others {
    fn unknown(&mut self) -> u64 {
        // Until a check succeeds, each request checks.
        self.looked = self.looked.checked_sub(NOTICED_AFTER).unwrap_or(self.looked);
        self.failures += 1;
        u64::MAX - self.failures
    }
}

impl Sqlite {
    /// Opens the index, and creates it if it is missing.
    pub(crate) fn open(path: &Path) -> Result<Self, IndexError> {
        let mut connection = connect(path)?;
        schema::prepare(&mut connection, path)?;
        let others = connect(path)?;
        let fail = |error| sql_error(path, &error);
        let stamp = std::sync::Arc::new(AtomicU64::new(schema::stamp(&others).map_err(fail)?));
        let version = data_version(&others).map_err(fail)?;
        let writer = Writer::start(connection, path, std::sync::Arc::clone(&stamp))?;
        Ok(Self {
            path: path.to_owned(),
            idle: Mutex::new(Vec::new()),
            writer,
            stamp,
            others: Mutex::new(Others { connection: others, version, looked: Instant::now(), failures: 0 }),
        })
    }

    /// Makes the file of an index that nobody has open complete in itself: without a log.
    pub(crate) fn complete(path: &Path) -> Result<(), IndexError> {
        let open = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE);
        let complete = open.and_then(|connection| connection.pragma_update(None, "journal_mode", "delete"));
        complete.map_err(|error| sql_error(path, &error))
    }

    fn read<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, IndexError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.path)?,
        };
        let answer = ask(&connection).map_err(|error| sql_error(&self.path, &error));
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        answer
    }
}

impl Index for Sqlite {
    fn ask(&self, how: Reading, work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>) -> Result<(), IndexError> {
        self.read(|connection| {
            let moment = (how == Reading::Snapshot).then(|| connection.unchecked_transaction()).transpose()?;
            work(&mut SqliteTx(connection)).map_err(of_transaction)?;
            moment.map_or(Ok(()), |moment| moment.commit())
        })
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn change(&self, how: How, mut work: Work) -> Result<(), IndexError> {
        let durability = if how.is_durable { Durability::Full } else { Durability::Later };
        self.writer.write(durability, move |connection| work(&mut SqliteTx(connection)).map_err(of_transaction))
    }

    fn stamp(&self) -> u64 {
        // Another thread is checking: its result counts from then on.
        if let Ok(mut others) = self.others.try_lock()
            && others.looked.elapsed() >= NOTICED_AFTER
        {
            others.looked = Instant::now();
            // Without a result every memo is stale: return a number that is never used twice.
            match data_version(&others.connection) {
                Ok(version) if version == others.version => {}
                Ok(version) => match schema::stamp(&others.connection) {
                    Ok(stamp) => {
                        others.version = version;
                        self.stamp.fetch_max(stamp, Ordering::AcqRel);
                    }
                    Err(_) => return others.unknown(),
                },
                Err(_) => return others.unknown(),
            }
        }
        self.stamp.load(Ordering::Acquire)
    }

    fn noticed_after(&self) -> Duration {
        2 * NOTICED_AFTER
    }

    fn is_shared(&self) -> bool {
        false
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

fn count(
    connection: &Connection,
    cache: CacheId,
    lines: &[Vec<u8>],
    after: &str,
    max: usize,
) -> rusqlite::Result<Option<(PathTotals, String)>> {
    let lacks: Vec<_> = (0..lines.len()).map(|at| format!("instr(narinfo, ?{}) = 0", at + 4)).collect();
    let lacks = if lacks.is_empty() { "0".to_owned() } else { lacks.join(" or ") };
    let query = format!(
        "select count(*), coalesce(sum({lacks}), 0), coalesce(sum(listing_size), 0), min(used), max(hash_part) from \
         (select hash_part, narinfo, listing_size, used from paths where cache = ?1 and hash_part > ?2 order by hash_part limit ?3)"
    );
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let mut params: Vec<&dyn ToSql> = vec![&cache.0, &after, &max];
    params.extend(lines.iter().map(|line| line as &dyn ToSql));
    connection.prepare_cached(&query)?.query_row(params.as_slice(), |row| {
        let counted = PathTotals {
            paths: row.get(0)?,
            unsigned: row.get(1)?,
            listing_bytes: row.get(2)?,
            oldest_use: row.get(3)?,
        };
        Ok(row.get::<_, Option<String>>(4)?.map(|last| (counted, last)))
    })
}

fn connect(path: &Path) -> Result<Connection, IndexError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let set_up = |connection: Connection| {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "cache_size", -PAGE_CACHE_KIB)?;
        Ok(connection)
    };
    Connection::open_with_flags(path, flags).and_then(set_up).map_err(|error| sql_error(path, &error))
}

fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("pragma data_version")?.query_row([], |row| row.get(0))
}

#[cfg(test)]
impl std::ops::Deref for Sqlite {
    type Target = dyn Index;

    fn deref(&self) -> &Self::Target {
        self
    }
}

#[cfg(test)]
mod tests;
