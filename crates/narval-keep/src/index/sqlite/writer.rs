//! The writer thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::failed::sql_error;
use super::schema;
use crate::index::IndexError;

/// The most changes in the queue. Further callers block.
const QUEUE_MAX: usize = 256;

/// The most changes in one transaction.
const BATCH_MAX: usize = 256;

/// Whether a change must be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Durability {
    /// A power failure may undo it, as long as no durable change was made after it.
    Later,
    /// It is on the disk when the caller is answered.
    Full,
}

/// Tells the waiting caller how the transaction ended.
type Reply = Box<dyn FnOnce(Result<(), IndexError>) + Send>;

struct Job {
    durability: Durability,
    change: Box<dyn FnOnce(&Connection) -> Reply + Send>,
}

/// The sender to the writer thread. When it is dropped, the thread ends after all changes are written.
pub(super) struct Writer {
    path: PathBuf,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(connection: Connection, path: &Path, stamp: Arc<AtomicU64>) -> Result<Self, IndexError> {
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        let file = path.to_owned();
        let run = move || write_all(&connection, &file, &queue, &stamp);
        let thread = std::thread::Builder::new().name("cache-index".into()).spawn(run);
        let thread = thread.map_err(|error| IndexError::Database {
            index: path.display().to_string(),
            reason: format!("no thread for it: {error}"),
            full: false,
        })?;
        Ok(Self { path: path.to_owned(), jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs a change on the writer thread, and waits until its transaction has ended.
    pub(super) fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        change: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, IndexError> {
        let closed = || IndexError::Closed { index: self.path.display().to_string() };
        let (answer, answered) = sync_channel(1);
        let path = self.path.clone();
        let change = Box::new(move |connection: &Connection| {
            let made = in_savepoint(connection, change).map_err(|error| sql_error(&path, &error));
            Box::new(move |ended: Result<(), IndexError>| {
                // The channel has room for the one answer. The caller may no longer wait for it.
                answer.send(ended.and(made)).ok();
            }) as Reply
        });
        let jobs = self.jobs.as_ref().ok_or_else(closed)?;
        jobs.send(Job { durability, change }).map_err(|_| closed())?;
        answered.recv().map_err(|_| closed())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was already reported.
            thread.join().ok();
        }
    }
}

fn write_all(connection: &Connection, path: &Path, queue: &Receiver<Job>, stamp: &AtomicU64) {
    while let Ok(first) = queue.recv() {
        let mut jobs = vec![first];
        while jobs.len() < BATCH_MAX {
            match queue.try_recv() {
                Ok(job) => jobs.push(job),
                Err(_) => break,
            }
        }
        let durability = jobs.iter().map(|job| job.durability).max().unwrap_or(Durability::Full);
        let mut replies = Vec::with_capacity(jobs.len());
        let ended = transaction(connection, durability, |connection| {
            replies.extend(jobs.into_iter().map(|job| (job.change)(connection)));
        });
        let ended = ended.map_err(|error| sql_error(path, &error));
        if ended.is_ok()
            && let Ok(now) = schema::stamp(connection)
        {
            stamp.fetch_max(now, Ordering::AcqRel);
        }
        replies.into_iter().for_each(|reply| reply(ended.clone()));
    }
}

fn transaction(
    connection: &Connection,
    durability: Durability,
    changes: impl FnOnce(&Connection),
) -> rusqlite::Result<()> {
    // This setting cannot be changed within a transaction.
    let synchronous = if durability == Durability::Full { "full" } else { "normal" };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.execute_batch("begin immediate")?;
    changes(connection);
    let ended = if connection.is_autocommit() {
        // If the disk is full, SQLite has already rolled back the transaction.
        Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None))
    } else {
        connection.execute_batch("commit")
    };
    if ended.is_err() && !connection.is_autocommit() {
        connection.execute_batch("rollback")?;
    }
    ended
}

/// A change that fails is undone; the others in its transaction are not.
pub(super) fn in_savepoint<T>(
    connection: &Connection,
    change: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.execute_batch("savepoint change")?;
    let made = change(connection);
    match made {
        Ok(made) => connection.execute_batch("release change").map(|()| made),
        Err(error) => {
            // If SQLite has rolled back the whole transaction, the savepoint no longer exists, and the commit fails.
            connection.execute_batch("rollback to change; release change").ok();
            Err(error)
        }
    }
}
