//! Read-only connections to a Nix database, in every state that the versions of Nix leave it in.
//!
//! | state of `-wal` and `-shm` | reader | how it is opened |
//! |---|---|---|
//! | both there (Nix ≥ 2.26, or any Nix at work) | anybody | `mode=ro`, sees every commit |
//! | both gone (Nix 2.8 at rest) | may write the directory | `mode=ro`, SQLite makes them |
//! | both gone | may not | `immutable=1`, only while nothing changes |
//! | `-wal` with contents, no `-shm` | may not | not at all: the daemon must be asked |
//!
//! An immutable connection takes no locks and does not look at `-wal`: it is used only while `-wal` is absent or empty,
//! and an answer counts only if the database's file is the same after the query as before.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::os::unix::ffi::OsStrExt;

use super::watch::{Identity, State, Watch};
use crate::error::StoreError;

/// Idle connections kept. More threads than this may ask at once; the surplus is closed after use.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// How often a query is tried when the database changes or is replaced under it.
const ATTEMPTS_MAX: usize = 8;

/// How long SQLite waits for a lock. Readers of a WAL database wait only for recovery and for the last writer's clean-up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

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
    idle: Mutex<Vec<Reader>>,
}

#[derive(Debug)]
struct Reader {
    connection: Connection,
    identity: Identity,
    /// Set on an immutable connection: the state in which it was opened.
    immutable: Option<State>,
}

impl Pool {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), watch: Watch::new(path), idle: Mutex::new(Vec::new()) }
    }

    /// Runs a query on a connection that sees everything committed before this call.
    pub(super) fn query<T>(&self, query: impl Fn(&Connection) -> Result<T, QueryError>) -> Result<T, StoreError> {
        let mut failure = None;
        for _ in 0..ATTEMPTS_MAX {
            let reader = self.take()?;
            match query(&reader.connection) {
                Ok(answer) if self.still_good(&reader) => {
                    self.put_back(reader);
                    return Ok(answer);
                }
                // Changed while it was read: the answer may be a mixture.
                Ok(_) => {}
                Err(QueryError::Row(error)) if self.still_good(&reader) => return Err(error),
                Err(QueryError::Row(error)) => failure = Some(error),
                Err(QueryError::Sqlite(source)) => {
                    let lasting = !is_passing(&source) && self.still_good(&reader);
                    let error = StoreError::Database { path: self.path.clone(), source };
                    if lasting {
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

    fn take(&self) -> Result<Reader, StoreError> {
        let identity =
            self.watch.identity().map_err(|error| self.unavailable(&std::io::Error::from(error).to_string()))?;
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(reader) = idle else { break };
            let fresh = match &reader.immutable {
                None => reader.identity == identity,
                Some(_) => self.still_good(&reader),
            };
            if fresh {
                return Ok(reader);
            }
        }
        self.open(identity)
    }

    fn put_back(&self, reader: Reader) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(reader);
        }
    }

    fn still_good(&self, reader: &Reader) -> bool {
        match &reader.immutable {
            None => true,
            Some(opened_in) => self.watch.quiet().as_ref() == Some(opened_in),
        }
    }

    fn open(&self, identity: Identity) -> Result<Reader, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut failure = match Connection::open_with_flags(&self.path, flags).and_then(prepare) {
            Ok(connection) => return Ok(Reader { connection, identity, immutable: None }),
            Err(error) => error,
        };
        if !is_no_access(&failure) {
            return Err(StoreError::Database { path: self.path.clone(), source: failure });
        }
        // A commit a moment ago leaves a state too fresh to be told from the next: it passes within two ticks.
        for _ in 0..ATTEMPTS_MAX {
            if let Some(stamp) = self.watch.quiet() {
                let uri = format!("file:{}?immutable=1", percent_encode(self.path.as_os_str().as_bytes(), URI_PATH));
                match Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI).and_then(prepare) {
                    Ok(connection) => return Ok(Reader { connection, identity, immutable: Some(stamp) }),
                    Err(error) => failure = error,
                }
                break;
            }
            if let Ok(connection) = Connection::open_with_flags(&self.path, flags).and_then(prepare) {
                return Ok(Reader { connection, identity, immutable: None });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(self.unavailable(&failure.to_string()))
    }

    fn unavailable(&self, reason: &str) -> StoreError {
        StoreError::DatabaseUnavailable { path: self.path.clone(), reason: reason.to_owned() }
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

/// Settings of a new connection, and a first read: SQLite opens files only when it must.
fn prepare(connection: Connection) -> Result<Connection, rusqlite::Error> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.pragma_update(None, "cache_size", -i64::from(PAGE_CACHE_KIB))?;
    connection.query_row("select count(*) from sqlite_master", (), |_| Ok(()))?;
    Ok(connection)
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
