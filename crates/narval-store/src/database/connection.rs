//! Read-only connections to a Nix database, in every state in which the versions of Nix leave it.
//!
//! | state of `-wal` and `-shm` | reader | how it is opened |
//! |---|---|---|
//! | both there (Nix ≥ 2.26, or any Nix at work) | anybody | `mode=ro`, sees every commit |
//! | both gone (Nix 2.8 at rest) | may write the directory | `mode=ro`, SQLite makes them |
//! | both gone | may not | `immutable=1`, only while nothing changes |
//! | `-wal` with contents, no `-shm` | may not | not at all: the daemon must be asked |
//! | none, but a rollback journal (`use-sqlite-wal = false`) | anybody | `immutable=1`, only while nobody writes |
//!
//! An immutable connection takes no locks and does not read `-wal`. It is used only while `-wal` and `-journal` are
//! absent or empty, and a result is used only if the database file is unchanged after the query. Locks would not help
//! with a rollback journal: Nix then locks with a directory (`unix-dotfile`), which a killed reader would leave behind,
//! and Nix would wait forever.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use std::os::unix::ffi::OsStrExt;

use super::watch::{DatabaseState, FileState, Files, Watch};
use crate::error::StoreError;

/// The maximum number of idle connections. More threads may query at once; surplus connections are closed after use.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// How many times a query is tried if the database changes or is replaced during it.
const ATTEMPTS_MAX: usize = 8;

/// SQLite's lock timeout. Readers of a WAL database wait only for recovery and for the last writer's clean-up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for a transaction if readers and writers share no locks.
const ROLLBACK_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait for files that cannot be opened: right after a commit, the state cannot be distinguished from the
/// next one, which passes within two timer ticks.
const NO_ACCESS_PATIENCE: Duration = Duration::from_millis(80);

/// The polling interval meanwhile.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// The number of cached prepared statements per connection.
const STATEMENTS_MAX: usize = 16;

/// SQLite's page cache per connection, in KiB. Small, because the kernel caches the pages as well.
const PAGE_CACHE_KIB: u32 = 512;

/// The characters of a path that need no escaping in an SQLite URI.
const URI_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');

/// A pool of connections to one database. Each is used by one thread at a time.
#[derive(Debug)]
pub(super) struct Pool {
    path: PathBuf,
    pub(super) watch: Watch,
    /// Whether connections are immutable whenever that is possible, so that no file is created or changed.
    is_undisturbed: bool,
    readers: Mutex<Readers>,
    /// Notified when the last borrowed connection is returned.
    returned: Condvar,
}

#[derive(Debug, Default)]
struct Readers {
    idle: Vec<Reader>,
    lent: usize,
    /// The files that all connections, idle and borrowed, have open.
    files: Option<Files>,
}

#[derive(Debug)]
struct Reader {
    connection: Connection,
    files: Files,
    /// The state of the database file when the connection was last borrowed: a checkpoint or a restored backup changes
    /// it, and SQLite notices only the former. `None` if it was too recent to be certain.
    contents: Option<FileState>,
    /// Set on an immutable connection: the state in which it was opened.
    immutable: Option<DatabaseState>,
}

/// A borrowed connection. It is counted until it is returned or closed.
struct Lent<'a> {
    pool: &'a Pool,
    reader: Option<Reader>,
    is_sound: bool,
}

/// Why there is no connection.
enum NoReader {
    Failed(StoreError),
    /// There is a writer; this may pass within the given time.
    Writing(Duration, String),
}

impl Pool {
    pub(super) fn new(path: &Path, is_undisturbed: bool) -> Self {
        let (watch, readers, returned) = (Watch::new(path), Mutex::default(), Condvar::new());
        Self { path: path.to_owned(), watch, is_undisturbed, readers, returned }
    }

    /// Runs a query that sees everything committed before this call.
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
            // Present until it is returned.
            let Some(reader) = &lent.reader else { continue };
            let answer = query(&reader.connection);
            if !self.still_good(reader) {
                // Changed while it was read: the result may be inconsistent, and so may an error.
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
            // Files that cannot be opened or created; the daemon can.
            Some(StoreError::Database { source, .. }) if is_no_access(&source) => self.unavailable(&source.to_string()),
            Some(error) => error,
            None => self.unavailable("it changes faster than it can be read"),
        })
    }

    /// Borrows a connection to the current files. SQLite shares one `-shm` and its locks among all connections of a
    /// process to one database (`unixShmNode`, os_unix.c): a connection that is opened beside an older one uses the
    /// older one's `-shm`, even if that was removed. So after `-wal` or `-shm` was removed or replaced, all connections
    /// are closed before a new one is opened.
    fn take(&self) -> Result<Lent<'_>, NoReader> {
        let mut readers = self.readers.lock();
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
                self.returned.wait_for(&mut readers, left);
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
            // SQLite creates missing files. Which files it has open is certain only if they existed before.
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

    fn files(&self) -> Result<(Files, FileState), NoReader> {
        let files = self.watch.files();
        files.map_err(|error| NoReader::Failed(self.unavailable(&std::io::Error::from(error).to_string())))
    }

    /// Whether the data read on this connection is from the current files, and from a single state of them.
    fn still_good(&self, reader: &Reader) -> bool {
        match &reader.immutable {
            None => self.watch.files().is_ok_and(|(files, _)| files == reader.files),
            Some(opened_in) => self.watch.quiet().as_ref() == Some(opened_in),
        }
    }

    /// Opens a connection. It has a state if it is immutable.
    fn open(&self) -> Result<(Connection, Option<DatabaseState>), NoReader> {
        if self.is_undisturbed {
            let fresh = || NoReader::Writing(NO_ACCESS_PATIENCE, "it changes faster than it can be read".to_owned());
            if !self.watch.has_frames() {
                return self.open_immutable(fresh);
            }
            // SQLite then builds an index of the log in its memory, unless it finds one that somebody maintains.
            if let Ok((connection, Journal::Wal)) = self.open_uri("mode=ro&readonly_shm=1") {
                return Ok((connection, None));
            }
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let is_writing = match Connection::open_with_flags(&self.path, flags).and_then(prepare) {
            Ok((connection, Journal::Wal)) => return Ok((connection, None)),
            Ok((_, Journal::Rollback)) => NoReader::Writing(ROLLBACK_PATIENCE, "a transaction does not end".to_owned()),
            // Without a log, a partial or uncommitted transaction may have been read.
            Err(error) if !self.watch.has_log() => NoReader::Writing(ROLLBACK_PATIENCE, error.to_string()),
            Err(error) if is_no_access(&error) => NoReader::Writing(NO_ACCESS_PATIENCE, error.to_string()),
            Err(error) => return Err(NoReader::Failed(self.failed(error))),
        };
        self.open_immutable(move || is_writing)
    }

    /// Opens a connection that takes no locks, if nobody writes.
    fn open_immutable(
        &self,
        is_writing: impl FnOnce() -> NoReader,
    ) -> Result<(Connection, Option<DatabaseState>), NoReader> {
        let Some(state) = self.watch.quiet() else { return Err(is_writing()) };
        match self.open_uri("immutable=1") {
            Ok((connection, _)) => Ok((connection, Some(state))),
            Err(_) if self.watch.quiet() != Some(state) => Err(is_writing()),
            Err(error) if is_no_access(&error) => Err(NoReader::Failed(self.unavailable(&error.to_string()))),
            Err(error) => Err(NoReader::Failed(self.failed(error))),
        }
    }

    fn open_uri(&self, parameters: &str) -> Result<(Connection, Journal), rusqlite::Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
        let uri = format!("file:{}?{parameters}", percent_encode(self.path.as_os_str().as_bytes(), URI_PATH));
        Connection::open_with_flags(uri, flags).and_then(prepare)
    }

    fn failed(&self, source: rusqlite::Error) -> StoreError {
        StoreError::Database { path: self.path.clone(), source }
    }

    fn unavailable(&self, reason: &str) -> StoreError {
        StoreError::DatabaseUnavailable { path: self.path.clone(), reason: reason.to_owned() }
    }
}

impl Lent<'_> {
    /// Returns the connection to the pool. If dropped instead, it is closed.
    fn put_back(mut self) {
        self.is_sound = true;
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut reader = self.reader.take();
        if !self.is_sound {
            // Closed while it still counts as borrowed.
            reader = None;
        }
        let mut readers = self.pool.readers.lock();
        if readers.idle.len() < IDLE_CONNECTIONS_MAX {
            readers.idle.extend(reader);
        }
        readers.lent -= 1;
        if readers.lent == 0 {
            self.pool.returned.notify_all();
        }
    }
}

/// Why a query failed: SQLite, or the contents of a row.
pub(super) enum QueryError {
    Sqlite(rusqlite::Error),
    Row(StoreError),
}

impl From<rusqlite::Error> for QueryError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// The journal mode of a database.
enum Journal {
    /// With a write-ahead log.
    Wal,
    /// With a rollback journal.
    Rollback,
}

/// Configures a new connection and does a first read, because SQLite opens files lazily.
fn prepare(connection: Connection) -> Result<(Connection, Journal), rusqlite::Error> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.pragma_update(None, "cache_size", -i64::from(PAGE_CACHE_KIB))?;
    connection.query_row("select count(*) from sqlite_master", (), |_| Ok(()))?;
    let mode: String = connection.query_row("pragma journal_mode", (), |row| row.get(0))?;
    let journal = if mode.eq_ignore_ascii_case("wal") { Journal::Wal } else { Journal::Rollback };
    Ok((connection, journal))
}

/// Whether files could not be opened or created, rather than read.
fn is_no_access(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, PermissionDenied, ReadOnly};
    is_disk_full(error) || matches!(error.sqlite_error_code(), Some(ReadOnly | CannotOpen | PermissionDenied))
}

/// Whether files could not be made large enough; for `-shm`, SQLite has an error of its own.
pub(crate) fn is_disk_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
        || error.sqlite_error().is_some_and(|error| error.extended_code == ffi::SQLITE_IOERR_SHMSIZE)
}

/// Whether a new connection may succeed: the files were replaced, or the last writer was cleaning up.
fn is_passing(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, DatabaseBusy, FileLockingProtocolFailed, ReadOnly, SchemaChanged, SystemIoFailure};
    matches!(
        error.sqlite_error_code(),
        Some(CannotOpen | DatabaseBusy | FileLockingProtocolFailed | ReadOnly | SchemaChanged | SystemIoFailure)
    )
}
