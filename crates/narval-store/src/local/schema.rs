//! The directories and the database of a new store.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use rustix::fs::{FallocateFlags, Mode};
use rustix::io::Errno;

use super::error::LocalStoreError;
use super::locks::Waiting;
use crate::config::StoreConfig;
use crate::database::has_write_ahead_log;
use crate::settings::sqlite_wal_of_process;
use narval_files::{TemporaryFile, is_temporary_name, remove_leftovers};

/// The only schema since Nix 2.0.
const SCHEMA: &str = "10";

/// The prefix of the temporary name of the file `schema`.
const TEMPORARY_SCHEMA: &str = "schema.";

/// The directory of the files that have several links, in the store directory.
pub(super) const LINKS: &str = ".links";

/// The size of the write-ahead log at which it is written back, in pages: as in Nix.
const LOG_PAGES: u32 = 40_000;

/// The same for a garbage collection, which must not need more than the reserved space: 2 MiB.
const LOG_PAGES_COLLECTING: u32 = 512;

/// The space that is reserved for garbage collections on a full disk: Nix's `gc-reserved-space`.
const RESERVE_BYTES: u64 = 8 << 20;

/// It is at most this part of the free space.
const RESERVE_PART: u64 = 8;

/// Less than this would not be enough for SQLite's shared memory and a transaction.
const RESERVE_BYTES_MIN: u64 = 256 << 10;

/// What a database is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Adding,
    Collecting,
}

/// Nix `libstore/schema.sql`, including the result of the migration in Nix 2.35.
const TABLES: &str = "
    create table if not exists ValidPaths (
        id               integer primary key autoincrement not null,
        path             text unique not null,
        hash             text not null,
        registrationTime integer not null,
        deriver          text,
        narSize          integer,
        ultimate         integer,
        sigs             text,
        ca               text
    );
    create table if not exists Refs (
        referrer  integer not null,
        reference integer not null,
        primary key (referrer, reference),
        foreign key (referrer) references ValidPaths(id) on delete cascade,
        foreign key (reference) references ValidPaths(id) on delete restrict
    );
    create index if not exists IndexReference on Refs(reference);
    create trigger if not exists DeleteSelfRefs before delete on ValidPaths
      begin
        delete from Refs where referrer = old.id and reference = old.id;
      end;
    create table if not exists DerivationOutputs (
        drv  integer not null,
        id   text not null,
        path text not null,
        primary key (drv, id),
        foreign key (drv) references ValidPaths(id) on delete cascade
    );
    create index if not exists IndexDerivationOutputs on DerivationOutputs(path);
    create table if not exists SchemaMigrations (migration text primary key not null);
    insert or ignore into SchemaMigrations values ('20260309-drop-redundant-indexreferrer');
";

/// Creates the missing directories of a store.
pub(super) fn make_directories(config: &StoreConfig, store_directory: &File) -> Result<(), LocalStoreError> {
    match rustix::fs::mkdirat(store_directory, LINKS, Mode::from_raw_mode(0o777)) {
        Err(error) if error != Errno::EXIST => {
            return Err(LocalStoreError::io("create", &config.real_store_dir.join(LINKS), error));
        }
        _ => {}
    }
    for below in ["db", "gcroots", "gcroots/auto", "profiles", "profiles/per-user", "temproots"] {
        make(&config.state_dir.join(below))?;
    }
    let profiles = config.state_dir.join("gcroots/profiles");
    match symlink(config.state_dir.join("profiles"), &profiles) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(LocalStoreError::io("create", &profiles, error)),
        _ => Ok(()),
    }
}

pub(super) fn make(directory: &Path) -> Result<(), LocalStoreError> {
    fs::create_dir_all(directory).map_err(|error| LocalStoreError::io("create", directory, error))
}

/// Opens the database for writing. The caller holds the big lock, shared.
pub(super) fn open_database(config: &StoreConfig, use_: Use) -> Result<Connection, LocalStoreError> {
    let path = config.database();
    let mut wait = Waiting::of(config).begin(&path);
    loop {
        // Another process that creates the store, or opens it in another journal mode, can exclude us at moments when
        // SQLite does not wait by itself, because each may hold a lock that the other one needs.
        match try_open(config, &path, use_) {
            Err(OpenError::Database(error)) if is_busy(&error) => {
                wait.pause().map_err(|_| database_error(config, error))?;
            }
            Err(OpenError::Database(error)) => return Err(database_error(config, error)),
            Err(OpenError::Other(error)) => return Err(error),
            Ok(connection) => return Ok(connection),
        }
    }
}

/// Converts an error of SQLite, including a lock that was held for too long.
pub(super) fn database_error(config: &StoreConfig, source: rusqlite::Error) -> LocalStoreError {
    let path = config.database();
    if is_busy(&source) {
        // The only lock of a database without a log. If its owner was killed, it stays.
        let lock = path.with_file_name("db.sqlite.lock");
        let path = if lock.is_dir() { lock } else { path };
        return LocalStoreError::Locked { path, waited_s: config.lock_timeout.as_secs() };
    }
    LocalStoreError::Database { path, source }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

enum OpenError {
    Database(rusqlite::Error),
    Other(LocalStoreError),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

/// How a database is locked and journaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Journal {
    /// A write-ahead log, SQLite's usual locks, and shared memory. Nix's default.
    Wal,
    /// A rollback journal, and the directory `db.sqlite.lock` as the only lock: Nix's `use-sqlite-wal = false`, for
    /// file systems on which the others do not work, such as NFS (`SQLite::SQLite`, `libstore/sqlite.cc`).
    Rollback,
}

impl Journal {
    /// The journal of an existing database is never changed, unless the settings explicitly ask for a log, as Nix
    /// would change it then. A new one has that of the settings.
    fn of(path: &Path) -> Result<Self, OpenError> {
        let found =
            has_write_ahead_log(path).map_err(|error| OpenError::Other(LocalStoreError::io("read", path, error)))?;
        match (found, sqlite_wal_of_process()) {
            (Some(true), Some(false)) => {
                Err(OpenError::Other(LocalStoreError::WriteAheadLog { path: path.to_owned() }))
            }
            (Some(false), None) | (Some(false) | None, Some(false)) => Ok(Self::Rollback),
            (Some(_) | None, Some(true)) | (Some(true) | None, None) => Ok(Self::Wal),
        }
    }
}

fn try_open(config: &StoreConfig, path: &Path, use_: Use) -> Result<Connection, OpenError> {
    let schema = path.with_file_name("schema");
    let io = |action, path: &Path, error| OpenError::Other(LocalStoreError::io(action, path, error));
    let found = match fs::read_to_string(&schema) {
        // Nix writes it in place, after the tables: an empty file is being written, or its writer was killed.
        Ok(found) if found.is_empty() => None,
        Ok(found) => Some(found.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(io("read", &schema, error)),
    };
    if let Some(found) = found.as_ref().filter(|found| *found != SCHEMA) {
        return Err(OpenError::Other(LocalStoreError::Schema { path: schema, found: found.clone() }));
    }
    let journal = Journal::of(path)?;
    let connection = match journal {
        Journal::Wal => Connection::open(path)?,
        Journal::Rollback => Connection::open_with_flags_and_vfs(path, OpenFlags::default(), "unix-dotfile")?,
    };
    let connection = prepare(connection, journal, config.lock_timeout, use_)?;
    if found.is_none() {
        connection.execute_batch(&format!("begin immediate; {TABLES} commit"))?;
        // Written last: a store with this file has its tables.
        write_schema(&schema).map_err(|error| io("write", &schema, error))?;
    }
    Ok(connection)
}

fn write_schema(schema: &Path) -> std::io::Result<()> {
    let directory = schema.parent().unwrap_or(schema);
    remove_leftovers(directory, |name| is_temporary_name(name, TEMPORARY_SCHEMA))?;
    let file = TemporaryFile::create(directory, TEMPORARY_SCHEMA, 0o644)?;
    file.file().write_all(SCHEMA.as_bytes())?;
    file.persist(schema)
}

/// The settings of Nix `LocalStore::openDB`.
fn prepare(
    connection: Connection,
    journal: Journal,
    busy_timeout: Duration,
    use_: Use,
) -> Result<Connection, rusqlite::Error> {
    connection.busy_timeout(busy_timeout)?;
    connection.pragma_update(None, "foreign_keys", 1)?;
    connection.pragma_update(None, "synchronous", "normal")?;
    match journal {
        Journal::Wal => {
            // Only if necessary: changing it requires exclusive access to the database.
            let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
            if mode != "wal" {
                connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
            }
            let pages = match use_ {
                Use::Adding => LOG_PAGES,
                Use::Collecting => LOG_PAGES_COLLECTING,
            };
            connection.pragma_update_and_check(None, "wal_autocheckpoint", pages, |_| Ok(()))?;
        }
        Journal::Rollback => {
            connection.pragma_update_and_check(None, "journal_mode", "truncate", |_| Ok(()))?;
        }
    }
    connection.set_prepared_statement_cache_capacity(16);
    Ok(connection)
}

/// Reserves some space on the disk, so that a garbage collection can write the database when the disk is full. As in
/// Nix, a file that is too small, or missing because the disk is full, is no error.
pub(super) fn make_reserve(config: &StoreConfig) {
    let path = reserve(config);
    if fs::symlink_metadata(&path).is_ok() {
        return;
    }
    let make = || -> std::io::Result<()> {
        let database = File::open(config.state_dir.join("db"))?;
        let found = rustix::fs::fstatvfs(&database)?;
        let len = RESERVE_BYTES.min(found.f_bavail.saturating_mul(found.f_frsize) / RESERVE_PART);
        if len < RESERVE_BYTES_MIN {
            return Ok(());
        }
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let reserved = match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                std::io::copy(&mut std::io::repeat(b'X').take(len), &mut &file).map(drop)
            }
            reserved => reserved.map_err(Into::into),
        };
        // A part would be taken for the whole the next time.
        reserved.inspect_err(|_| drop(fs::remove_file(&path)))
    };
    match make() {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            tracing::debug!("no space is reserved in '{}': {error}", path.display());
        }
        _ => {}
    }
}

/// Frees the reserved space, for a garbage collection.
pub(super) fn give_up_reserve(config: &StoreConfig) -> Result<(), LocalStoreError> {
    let path = reserve(config);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(LocalStoreError::io("remove", &path, error)),
        _ => Ok(()),
    }
}

fn reserve(config: &StoreConfig) -> PathBuf {
    config.state_dir.join("db/reserved")
}
