//! The index in SQLite: WAL mode, any number of readers, one writer thread.
//!
//! Callers send a function to the writer thread and wait. It runs all waiting functions in one transaction, so that one `fsync` makes
//! many commits durable. Other processes (administration commands) may write to the same database, one transaction at a time.

mod lost;
mod nars;
mod paths;
mod retention;
mod schema;
#[cfg(test)]
mod simulated;
mod tx;
mod writer;
mod writers;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use narval_nix::HashPart;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use self::nars::Added;
use self::tx::SqliteTx;
use self::writer::{Durability, Writer};
use super::tx::{How, Reading, Tx, TxError, Work};
use super::{
    COLLECTION, CacheId, Commit, Condemned, Cutoff, Fence, Index, IndexError, Lost, LostPath, MayStore, NarRecord,
    NarWriter, PathRecord, Pending, Placed, Placing, Replaced, Used, collection_lease,
};
use crate::NarFileName;
use crate::receipt_key::ReceiptKey;
use crate::rule::{Rule, holds};
use crate::survey::Counted;
use narval_client::clock;

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
    #[cfg(test)]
    simulated: Option<simulated::Node>,
}

/// How long an upload waits for a collection to have removed what it sends again.
const CONDEMNED_MAX: Duration = Duration::from_secs(5);

/// How often it looks.
const CONDEMNED_EVERY: Duration = Duration::from_millis(100);

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
            #[cfg(test)]
            simulated: None,
        })
    }

    /// Makes the file of an index that nobody has open complete in itself: without a log.
    pub(crate) fn complete(path: &Path) -> Result<(), IndexError> {
        let open = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE);
        let complete = open.and_then(|connection| connection.pragma_update(None, "journal_mode", "delete"));
        complete.map_err(|error| sql_error(path, &error))
    }

    fn read<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, IndexError> {
        #[cfg(test)]
        if let Some(node) = &self.simulated {
            return node.read(ask, &self.path);
        }
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

    fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        change: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, IndexError> {
        #[cfg(test)]
        if let Some(node) = &self.simulated {
            return node.write(change, &self.path);
        }
        self.writer.write(durability, change)
    }

    fn add(
        &self,
        cache: CacheId,
        name: &str,
        nar: &NarRecord,
        how: (u64, Replaced),
    ) -> Result<Option<i64>, IndexError> {
        let until = clock::instant() + CONDEMNED_MAX;
        loop {
            let (name, nar) = (name.to_owned(), nar.clone());
            let add = move |connection: &Connection| nars::add_file(connection, cache, &name, &nar, how);
            match self.write(Durability::Later, add)? {
                Added::As(number) => return Ok(Some(number)),
                Added::InUse => return Ok(None),
                Added::Removing if clock::instant() >= until => return Err(self.removing()),
                Added::Removing => clock::sleep(CONDEMNED_EVERY),
            }
        }
    }

    fn removing(&self) -> IndexError {
        IndexError::Removing { index: self.path.display().to_string() }
    }

    /// A transaction of a collection: nothing is done if its lease is another's now. It is renewed.
    fn write_fenced<T: Send + 'static>(
        &self,
        fence: Fence,
        change: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, IndexError> {
        #[cfg(test)]
        if let Some(node) = &self.simulated {
            node.is_fenced(fence);
        }
        let lasts = collection_lease().as_secs();
        let done = self.write(Durability::Full, move |connection| {
            let is_mine = retention::renew_work(connection, COLLECTION, fence.0, lasts)?;
            if is_mine || !holds(Rule::Fence) { change(connection).map(Some) } else { Ok(None) }
        });
        done?.ok_or_else(|| IndexError::Superseded { index: self.path.display().to_string() })
    }
}

impl Index for Sqlite {
    fn ask(&self, how: Reading, work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>) -> Result<(), IndexError> {
        self.read(|connection| {
            let moment = (how == Reading::Snapshot).then(|| connection.unchecked_transaction()).transpose()?;
            work(&mut SqliteTx(connection)).map_err(tx::error)?;
            moment.map_or(Ok(()), |moment| moment.commit())
        })
    }

    fn change(&self, how: How, mut work: Work) -> Result<(), IndexError> {
        let durability = if how.is_durable { Durability::Full } else { Durability::Later };
        self.write(durability, move |connection| work(&mut SqliteTx(connection)).map_err(tx::error))
    }

    /// One machine has one clock.
    #[cfg(test)]
    fn now(&self) -> u64 {
        self.simulated.as_ref().map_or_else(clock::now, simulated::Node::now)
    }

    fn stamp(&self) -> u64 {
        #[cfg(test)]
        if let Some(node) = &self.simulated {
            return node.stamp();
        }
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
        #[cfg(test)]
        if self.simulated.is_some() {
            return true;
        }
        false
    }

    fn file(&self, cache: CacheId, name: &str) -> Result<Option<NarRecord>, IndexError> {
        match self.read(|connection| nars::file(connection, cache, name))? {
            Some((nar, false)) => Ok(Some(nar)),
            Some((nar, true)) => {
                let name = name.to_owned();
                let is_kept = self.write(Durability::Later, move |connection| nars::keep(connection, cache, &name))?;
                Ok(Some(nar).filter(|_| is_kept))
            }
            None => Ok(None),
        }
    }

    fn add_file(&self, cache: CacheId, name: &str, nar: &NarRecord, now: u64) -> Result<i64, IndexError> {
        self.add(cache, name, nar, (now, Replaced::Removed))?.ok_or_else(|| self.removing())
    }

    fn add_object(&self, cache: CacheId, name: &str, nar: &NarRecord, now: u64) -> Result<Option<i64>, IndexError> {
        let replaced = if holds(Rule::Replaced) { Replaced::Kept } else { Replaced::Removed };
        self.add(cache, name, nar, (now, replaced))
    }

    fn remove_file(&self, cache: CacheId, name: &str, lost: Lost) -> Result<bool, IndexError> {
        let (name, entry) = (name.to_owned(), lost.entry());
        self.write(Durability::Later, move |connection| {
            if let Some(entry) = entry
                && !schema::is_still_lost(connection, cache, &name, entry)?
            {
                return Ok(false);
            }
            if matches!(lost, Lost::Doubted(_)) {
                lost::remember(connection, cache, &name)?;
            }
            nars::remove_file(connection, cache, &name).map(|()| true)
        })
    }

    fn lost(&self, cache: CacheId) -> Result<Vec<LostPath>, IndexError> {
        self.read(|connection| lost::all(connection, cache))
    }

    fn forget_lost(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<(), IndexError> {
        let hash_parts = hash_parts.to_vec();
        self.write(Durability::Later, move |connection| lost::forget(connection, cache, &hash_parts))
    }

    fn commit_numbered(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        needed: &[HashPart],
        placed: &[Placed],
        now: u64,
    ) -> Result<Option<i64>, IndexError> {
        let (needed, placed) = (needed.to_vec(), placed.to_vec());
        self.write(Durability::Full, move |connection| {
            for part in needed.iter().filter(|_| holds(Rule::Needed)) {
                if !paths::is_present(connection, cache, part)? {
                    return Ok(None);
                }
            }
            for file in placed.iter().filter(|_| holds(Rule::Placed)) {
                if schema::oldest_pending(connection, cache, &file.name)?.is_some_and(|oldest| oldest > file.entry) {
                    return Ok(None);
                }
            }
            let done = paths::commit(connection, cache, &paths, now)?;
            schema::number_of(connection, done)
        })
    }

    fn rename(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        old: &str,
        orphaned: u64,
    ) -> Result<Option<i64>, IndexError> {
        let old = old.to_owned();
        self.write(Durability::Full, move |connection| {
            let done = paths::rename(connection, cache, &paths, &old, orphaned)?;
            schema::number_of(connection, done)
        })
    }

    fn lease(&self, cache: CacheId, hash_parts: &[HashPart], until: u64) -> Result<Vec<HashPart>, IndexError> {
        let hash_parts = hash_parts.to_vec();
        self.write(Durability::Later, move |connection| paths::lease(connection, cache, &hash_parts, until))
    }

    fn used(&self, used: &[Used]) -> Result<(), IndexError> {
        let used = used.to_vec();
        self.write(Durability::Later, move |connection| retention::used(connection, &used))
    }

    fn count(
        &self,
        cache: CacheId,
        lines: &[Vec<u8>],
        after: &str,
        max: usize,
    ) -> Result<Option<(Counted, String)>, IndexError> {
        self.read(|connection| retention::count(connection, cache, lines, after, max))
    }

    fn begin_collection(&self) -> Result<Option<Fence>, IndexError> {
        let lasts = collection_lease().as_secs();
        let take = move |connection: &Connection| retention::begin_work(connection, COLLECTION, lasts);
        Ok(self.write(Durability::Later, take)?.map(Fence))
    }

    fn take_over_collection(&self, cache: CacheId) -> Result<Option<Fence>, IndexError> {
        let lasts = collection_lease().as_secs();
        let take = move |connection: &Connection| retention::take_over_work(connection, COLLECTION, cache, lasts);
        Ok(self.write(Durability::Later, take)?.map(Fence))
    }

    fn collector(&self) -> Result<Option<String>, IndexError> {
        let is_at_work = self.read(|connection| retention::is_at_work(connection, COLLECTION))?;
        Ok(is_at_work.then(|| "another process".to_owned()))
    }

    fn continue_collection(&self, fence: Fence) -> Result<(), IndexError> {
        self.write_fenced(fence, |_| Ok(()))
    }

    fn end_collection(&self, fence: Fence, collected: Option<CacheId>) -> Result<(), IndexError> {
        self.write(Durability::Later, move |connection| retention::end_work(connection, COLLECTION, fence.0, collected))
    }

    fn collected(&self, cache: CacheId) -> Result<Option<Duration>, IndexError> {
        Ok(self.read(|connection| retention::collected(connection, cache))?.map(Duration::from_secs))
    }

    fn hide(
        &self,
        fence: Fence,
        cache: CacheId,
        paths: &[(HashPart, u64)],
        now: u64,
    ) -> Result<Vec<HashPart>, IndexError> {
        let paths = paths.to_vec();
        self.write_fenced(fence, move |connection| retention::hide(connection, cache, &paths, now))
    }

    fn delete(&self, cache: CacheId, paths: &[HashPart], now: u64) -> Result<Commit, IndexError> {
        let paths = paths.to_vec();
        self.write(Durability::Full, move |connection| retention::delete(connection, cache, &paths, now))
    }

    fn doom(&self, fence: Fence, cache: CacheId, cutoff: Cutoff, max: usize, now: u64) -> Result<usize, IndexError> {
        self.write_fenced(fence, move |connection| retention::doom(connection, cache, cutoff, max, now))
    }

    fn condemn(
        &self,
        fence: Fence,
        cache: CacheId,
        cutoff: Option<Cutoff>,
        max: usize,
    ) -> Result<Condemned, IndexError> {
        self.write_fenced(fence, move |connection| retention::condemn(connection, fence.0, cache, cutoff, max))
    }

    fn forget(&self, fence: Fence, cache: CacheId, names: &[(String, u64)]) -> Result<(), IndexError> {
        let names = names.to_vec();
        self.write_fenced(fence, move |connection| {
            names.iter().try_for_each(|(name, _)| nars::forget(connection, fence.0, cache, name))
        })
    }

    fn pending(&self, after: i64) -> Result<Vec<(i64, CacheId, Pending)>, IndexError> {
        self.read(|connection| schema::pending(connection, after))
    }

    fn add_objects(
        &self,
        cache: CacheId,
        objects: &[(String, NarRecord)],
        now: u64,
    ) -> Result<Vec<Option<i64>>, IndexError> {
        let objects = objects.to_vec();
        self.write(Durability::Later, move |connection| {
            let add = |(name, nar): &(String, NarRecord)| {
                Ok(match nars::add_file(connection, cache, name, nar, (now, Replaced::Kept))? {
                    Added::As(number) => Some(number),
                    Added::Removing | Added::InUse => None,
                })
            };
            objects.iter().map(add).collect()
        })
    }

    fn add_stored(
        &self,
        cache: CacheId,
        objects: &[(String, NarRecord)],
        epoch: Fence,
        now: u64,
    ) -> Result<Vec<bool>, IndexError> {
        let objects = objects.to_vec();
        self.write(Durability::Full, move |connection| writers::add_stored(connection, cache, &objects, (epoch, now)))
    }

    fn may_store(&self, cache: CacheId, writer: i64, objects: &[(String, NarRecord)]) -> Result<MayStore, IndexError> {
        self.read(|connection| writers::may_store(connection, cache, writer, objects))
    }

    fn have_rows(&self, cache: CacheId, names: &[&str]) -> Result<Vec<bool>, IndexError> {
        self.read(|connection| writers::have_rows(connection, cache, names))
    }

    fn begin_writer(&self, cache: CacheId, key: &ReceiptKey) -> Result<i64, IndexError> {
        let key = key.clone();
        self.write(Durability::Full, move |connection| writers::begin(connection, cache, &key))
    }

    fn renew_writer(&self, number: i64) -> Result<bool, IndexError> {
        self.write(Durability::Full, move |connection| writers::renew(connection, number))
    }

    fn end_writer(&self, number: i64) -> Result<(), IndexError> {
        self.write(Durability::Later, move |connection| writers::end(connection, number))
    }

    fn writers(&self, cache: CacheId) -> Result<Vec<NarWriter>, IndexError> {
        self.read(|connection| writers::all(connection, cache))
    }

    fn condemn_strays(
        &self,
        fence: Fence,
        cache: CacheId,
        strays: &[NarFileName],
        now: u64,
    ) -> Result<Vec<String>, IndexError> {
        let strays = strays.to_vec();
        self.write_fenced(fence, move |connection| writers::condemn_strays(connection, fence, cache, &strays, now))
    }

    fn note_pending(&self, cache: CacheId, pending: &Pending) -> Result<i64, IndexError> {
        let (kind, name) = pending.row();
        self.write(Durability::Later, move |connection| schema::add_pending(connection, cache, kind, &name))
    }

    fn take_over(&self, numbers: &[i64]) -> Result<Vec<(i64, CacheId, HashPart)>, IndexError> {
        let numbers = numbers.to_vec();
        self.write(Durability::Full, move |connection| schema::take_over(connection, &numbers))
    }

    fn settle(&self, up_to: i64) -> Result<(), IndexError> {
        self.write(Durability::Later, move |connection| schema::settle(connection, up_to))
    }

    fn settle_these(&self, numbers: &[i64]) -> Result<(), IndexError> {
        let numbers = numbers.to_vec();
        self.write(Durability::Later, move |connection| schema::settle_these(connection, &numbers))
    }

    fn settle_alone(&self, cache: CacheId, hash_parts: &[HashPart], up_to: i64) -> Result<(), IndexError> {
        let hash_parts = hash_parts.to_vec();
        self.write(Durability::Later, move |connection| schema::settle_alone(connection, cache, &hash_parts, up_to))
    }

    fn settle_file(&self, cache: CacheId, name: &str, number: i64) -> Result<bool, IndexError> {
        let name = name.to_owned();
        self.write(Durability::Later, move |connection| schema::settle_file(connection, cache, &name, number))
    }

    fn is_unplaced(&self, cache: CacheId, name: &str) -> Result<bool, IndexError> {
        Ok(self.read(|connection| schema::oldest_pending(connection, cache, name))?.is_some())
    }

    fn placings(&self, cache: CacheId, names: &[&str]) -> Result<Vec<Placing>, IndexError> {
        self.read(|connection| {
            let oldest = names.iter().map(|name| schema::oldest_pending(connection, cache, name));
            oldest.map(|oldest| Ok(oldest?.map_or(Placing::Done, Placing::Pending))).collect()
        })
    }

    fn pending_max(&self) -> Result<Option<i64>, IndexError> {
        self.read(schema::pending_max)
    }
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

fn sql_error(path: &Path, error: &rusqlite::Error) -> IndexError {
    let full = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
    IndexError::Database { index: path.display().to_string(), reason: error.to_string(), full }
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
