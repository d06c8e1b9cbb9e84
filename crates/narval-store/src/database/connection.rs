//! Read-only connections to a Nix database, in every state that the versions of Nix leave it in.
//!
//! | state of `-wal` and `-shm` | reader | how it is opened |
//! |---|---|---|
//! | both there (Nix ≥ 2.26, or any Nix at work) | anybody | `mode=ro`, sees every commit |
//! | both gone (Nix 2.8 at rest) | may write the directory | `mode=ro`, SQLite makes them |
//! | both gone | may not | `immutable=1`, only while nothing changes |
//! | `-wal` with contents, no `-shm` | may not | not at all: the daemon must be asked |
//! | none, but a rollback journal (`use-sqlite-wal = false`) | anybody | `immutable=1`, only while nobody writes |
//!
//! An immutable connection takes no locks and does not look at `-wal`: it is used only while `-wal` and `-journal` are
//! absent or empty, and an answer counts only if the database's file is the same after the query as before. Locks would
//! not help with a rollback journal: Nix's are then a directory (`unix-dotfile`), which a reader that is killed would
//! leave behind, and Nix would wait for ever.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::os::unix::ffi::OsStrExt;

use super::watch::{FileState, Files, State, Watch};
use crate::error::StoreError;

/// Idle connections kept. More threads than this may ask at once; the surplus is closed after use.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// How often a query is tried when the database changes or is replaced under it.
const ATTEMPTS_MAX: usize = 8;

/// How long SQLite waits for a lock. Readers of a WAL database wait only for recovery and for the last writer's clean-up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a transaction is waited for where readers and writers have no common locks.
const ROLLBACK_PATIENCE: Duration = Duration::from_secs(2);

/// How long files that cannot be opened are waited for: a commit a moment ago leaves a state too fresh to be told from
/// the next, and it passes within two ticks.
const NO_ACCESS_PATIENCE: Duration = Duration::from_millis(80);

/// How often is looked meanwhile.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Prepared statements kept per connection.
const STATEMENTS_MAX: usize = 16;

/// SQLite's page cache per connection, in KiB. Small: the kernel's page cache is behind it.
const PAGE_CACHE_KIB: u32 = 512;

/// What of a path may stand in an SQLite URI as it is.
const URI_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');

/// Connections to one database, handed out to one thread at a time.
#[derive(Debug)]
pub(super) struct Pool {
    path: PathBuf,
    pub(super) watch: Watch,
    readers: Mutex<Readers>,
    /// Told when the last connection that was lent comes back.
    returned: Condvar,
}

#[derive(Debug, Default)]
struct Readers {
    idle: Vec<Reader>,
    lent: usize,
    /// The files that all connections, idle and lent, are open on.
    files: Option<Files>,
}

#[derive(Debug)]
struct Reader {
    connection: Connection,
    files: Files,
    /// The database's file when the connection was last lent: a checkpoint or a restored backup changes it, and SQLite
    /// notices only the former. `None` if it was too fresh to tell.
    contents: Option<FileState>,
    /// Set on an immutable connection: the state in which it was opened.
    immutable: Option<State>,
}

/// A connection in use. It is counted until it is back or closed.
struct Lent<'a> {
    pool: &'a Pool,
    reader: Option<Reader>,
    is_sound: bool,
}

/// Why there is no connection.
enum NoReader {
    Failed(StoreError),
    /// Somebody is writing, and it can pass within this time.
    Writing(Duration, String),
}

impl Pool {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), watch: Watch::new(path), readers: Mutex::default(), returned: Condvar::new() }
    }

    /// Runs a query on a connection that sees everything committed before this call.
    pub(super) fn query<T>(&self, query: impl Fn(&Connection) -> Result<T, QueryError>) -> Result<T, StoreError> {
        let (mut failure, mut attempts, begun) = (None, 0, Instant::now());
        while attempts < ATTEMPTS_MAX {
            let lent = match self.take() {
                Ok(lent) => lent,
                Err(NoReader::Failed(error)) => return Err(error),
                Err(NoReader::Writing(patience, reason)) if begun.elapsed() >= patience => {
                    return Err(self.unavailable(&reason));
                }
                Err(NoReader::Writing(..)) => {
                    std::thread::sleep(LOOK_AGAIN_AFTER);
                    continue;
                }
            };
            attempts += 1;
            // It is there until it is put back.
            let Some(reader) = &lent.reader else { continue };
            let answer = query(&reader.connection);
            if !self.still_good(reader) {
                // Changed while it was read: the answer may be a mixture, and so may be what an error complains of.
                failure = None;
                continue;
            }
            match answer {
                Ok(answer) => {
                    lent.put_back();
                    return Ok(answer);
                }
                Err(QueryError::Row(error)) => {
                    lent.put_back();
                    return Err(error);
                }
                Err(QueryError::Sqlite(source)) => {
                    let is_lasting = !is_passing(&source);
                    let error = self.failed(source);
                    if is_lasting {
                        return Err(error);
                    }
                    failure = Some(error);
                }
            }
        }
        Err(match failure {
            // Files that can't be opened or made: the daemon can.
            Some(StoreError::Database { source, .. }) if is_no_access(&source) => self.unavailable(&source.to_string()),
            Some(error) => error,
            None => self.unavailable("it changes faster than it can be read"),
        })
    }

    /// Lends a connection to the files that are there now. SQLite shares one `-shm`, and the locks on it, among all
    /// connections of a process to one database (`unixShmNode`, os_unix.c): one that is opened beside an older one
    /// gets the older one's `-shm`, removed or not. So after `-wal` or `-shm` was removed or replaced, all connections
    /// are closed before one is opened.
    fn take(&self) -> Result<Lent<'_>, NoReader> {
        let mut readers = self.lock_readers();
        let until = Instant::now() + BUSY_TIMEOUT;
        for _ in 0..ATTEMPTS_MAX {
            let (files, contents) = loop {
                let (files, contents) = self.files()?;
                if readers.files == Some(files) {
                    break (files, contents);
                }
                readers.idle.clear();
                if readers.lent == 0 {
                    readers.files = Some(files);
                    break (files, contents);
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let reason = "its files were replaced, and a query on the old ones has not ended";
                    return Err(NoReader::Failed(self.unavailable(reason)));
                }
                readers = self.returned.wait_timeout(readers, left).unwrap_or_else(PoisonError::into_inner).0;
            };
            while let Some(mut reader) = readers.idle.pop() {
                let is_current = match &reader.immutable {
                    None => reader.contents.is_some_and(|seen| seen == contents),
                    Some(_) => self.still_good(&reader),
                };
                if is_current {
                    reader.contents = contents.unless_fresh();
                    return Ok(self.lend(readers, reader));
                }
            }
            let (connection, immutable) = self.open()?;
            // SQLite makes files that are missing. Which ones it has is certain only if they were there before.
            if self.files()?.0 == files {
                let reader = Reader { connection, files, contents: contents.unless_fresh(), immutable };
                return Ok(self.lend(readers, reader));
            }
        }
        Err(NoReader::Failed(self.unavailable("its files are replaced faster than they can be opened")))
    }

    fn lend(&self, mut readers: MutexGuard<'_, Readers>, reader: Reader) -> Lent<'_> {
        readers.lent += 1;
        Lent { pool: self, reader: Some(reader), is_sound: false }
    }

    fn lock_readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> Result<(Files, FileState), NoReader> {
        let files = self.watch.files();
        files.map_err(|error| NoReader::Failed(self.unavailable(&std::io::Error::from(error).to_string())))
    }

    /// Whether what was read on this connection is from the files that are there now, and from one state of them.
    fn still_good(&self, reader: &Reader) -> bool {
        match &reader.immutable {
            None => self.watch.files().is_ok_and(|(files, _)| files == reader.files),
            Some(opened_in) => self.watch.quiet().as_ref() == Some(opened_in),
        }
    }

    /// Opens a connection; with a state if it is an immutable one.
    fn open(&self) -> Result<(Connection, Option<State>), NoReader> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let is_writing = match Connection::open_with_flags(&self.path, flags).and_then(prepare) {
            Ok((connection, Journal::Wal)) => return Ok((connection, None)),
            Ok((_, Journal::Rollback)) => NoReader::Writing(ROLLBACK_PATIENCE, "a transaction does not end".to_owned()),
            // Without a log it may be half a transaction that was read, or one that is not to be read yet.
            Err(error) if !self.watch.has_log() => NoReader::Writing(ROLLBACK_PATIENCE, error.to_string()),
            Err(error) if is_no_access(&error) => NoReader::Writing(NO_ACCESS_PATIENCE, error.to_string()),
            Err(error) => return Err(NoReader::Failed(self.failed(error))),
        };
        let Some(state) = self.watch.quiet() else { return Err(is_writing) };
        let uri = format!("file:{}?immutable=1", percent_encode(self.path.as_os_str().as_bytes(), URI_PATH));
        match Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI).and_then(prepare) {
            Ok((connection, _)) => Ok((connection, Some(state))),
            Err(_) if self.watch.quiet() != Some(state) => Err(is_writing),
            Err(error) if is_no_access(&error) => Err(NoReader::Failed(self.unavailable(&error.to_string()))),
            Err(error) => Err(NoReader::Failed(self.failed(error))),
        }
    }

    fn failed(&self, source: rusqlite::Error) -> StoreError {
        StoreError::Database { path: self.path.clone(), source }
    }

    fn unavailable(&self, reason: &str) -> StoreError {
        StoreError::DatabaseUnavailable { path: self.path.clone(), reason: reason.to_owned() }
    }
}

impl Lent<'_> {
    /// Keeps the connection for the next query; dropped instead, it is closed.
    fn put_back(mut self) {
        self.is_sound = true;
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut reader = self.reader.take();
        if !self.is_sound {
            // Closed while it still counts as lent.
            reader = None;
        }
        let mut readers = self.pool.lock_readers();
        if readers.idle.len() < IDLE_CONNECTIONS_MAX {
            readers.idle.extend(reader);
        }
        readers.lent -= 1;
        if readers.lent == 0 {
            self.pool.returned.notify_all();
        }
    }
}

/// Why a query gave no answer: SQLite, or the contents of a row.
pub(super) enum QueryError {
    Sqlite(rusqlite::Error),
    Row(StoreError),
}

impl From<rusqlite::Error> for QueryError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// How a database is kept whole.
enum Journal {
    /// With a write-ahead log.
    Wal,
    /// With a rollback journal.
    Rollback,
}

/// Settings of a new connection, and a first read: SQLite opens files only when it must.
fn prepare(connection: Connection) -> Result<(Connection, Journal), rusqlite::Error> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.pragma_update(None, "cache_size", -i64::from(PAGE_CACHE_KIB))?;
    connection.query_row("select count(*) from sqlite_master", (), |_| Ok(()))?;
    let mode: String = connection.query_row("pragma journal_mode", (), |row| row.get(0))?;
    let journal = if mode.eq_ignore_ascii_case("wal") { Journal::Wal } else { Journal::Rollback };
    Ok((connection, journal))
}

/// Whether files could not be opened or made, rather than read.
fn is_no_access(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied))
}

/// Whether a new connection may not have this error: the files were replaced, or the last writer was cleaning up.
fn is_passing(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, DatabaseBusy, FileLockingProtocolFailed, ReadOnly, SchemaChanged, SystemIoFailure};
    matches!(
        error.sqlite_error_code(),
        Some(CannotOpen | DatabaseBusy | FileLockingProtocolFailed | ReadOnly | SchemaChanged | SystemIoFailure)
    )
}
