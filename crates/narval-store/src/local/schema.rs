//! The directories and the database of a new store.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::LocalStoreError;
use super::locks::Waiting;
use crate::config::StoreConfig;
use crate::temporary::{TemporaryFile, is_temporary_name, remove_leftovers};

/// The only schema since Nix 2.0.
const SCHEMA: &str = "10";

/// The prefix of the temporary name of the file `schema`.
const TEMPORARY_SCHEMA: &str = "schema.";

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
pub(super) fn make_directories(config: &StoreConfig) -> Result<(), LocalStoreError> {
    make(&config.real_store_dir)?;
    make(&config.real_store_dir.join(".links"))?;
    for below in ["db", "gcroots", "gcroots/auto", "profiles", "profiles/per-user", "temproots"] {
        make(&config.state_dir.join(below))?;
    }
    let profiles = config.state_dir.join("gcroots/profiles");
    match symlink(config.state_dir.join("profiles"), &profiles) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(LocalStoreError::io("create", &profiles, error)),
        _ => Ok(()),
    }
}

fn make(directory: &Path) -> Result<(), LocalStoreError> {
    fs::create_dir_all(directory).map_err(|error| LocalStoreError::io("create", directory, error))
}

/// Opens the database for writing. The caller holds the big lock, shared.
pub(super) fn open_database(config: &StoreConfig) -> Result<Connection, LocalStoreError> {
    let path = config.database();
    let mut wait = Waiting::of(config).begin(&path);
    loop {
        // Another process that creates the store, or opens it in another journal mode, can exclude us at moments when
        // SQLite does not wait by itself, because each may hold a lock that the other one needs.
        match try_open(config, &path) {
            Err(OpenError::Database(error)) if is_busy(&error) => wait.pause()?,
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

fn try_open(config: &StoreConfig, path: &Path) -> Result<Connection, OpenError> {
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
    let connection = prepare(Connection::open(path)?, config.lock_timeout)?;
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
fn prepare(connection: Connection, busy_timeout: Duration) -> Result<Connection, rusqlite::Error> {
    connection.busy_timeout(busy_timeout)?;
    connection.pragma_update(None, "foreign_keys", 1)?;
    connection.pragma_update(None, "synchronous", "normal")?;
    // Only if necessary: changing it requires exclusive access to the database.
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    if mode != "wal" {
        connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    }
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 40_000, |_| Ok(()))?;
    connection.set_prepared_statement_cache_capacity(16);
    Ok(connection)
}
