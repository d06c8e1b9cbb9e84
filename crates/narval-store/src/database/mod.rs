//! Reads the Nix database with SQLite, without Nix.
//!
//! Schema: Nix `libstore/schema.sql` (version 10) and `ca-specific-schema.sql`.

mod connection;
mod events;
mod row;
mod watch;

use std::path::Path;

use narval_nix::{HashPart, PathInfo, StoreDir, StorePath};
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

pub(crate) use self::connection::is_disk_full;
use self::connection::{Pool, QueryError};
use self::row::Rows;
pub use self::watch::Stamp;
pub(crate) use self::watch::has_write_ahead_log;
use crate::error::StoreError;
use crate::realisation::Realisation;
use crate::signatures::split_signatures;

/// A valid path, in the order in which paths became valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Its number: `id` of `ValidPaths`.
    pub number: u64,
    /// The path.
    pub path: StorePath,
    /// Whether it was built locally rather than substituted or added (`ultimate`).
    pub is_built_here: bool,
    /// Size of its NAR in bytes; 0 if the database has no size.
    pub nar_size: u64,
}

/// A valid path with what a list of paths displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPath {
    /// Base name, as in the database.
    pub path: String,
    /// Size of its NAR in bytes; 0 if the database has no size.
    pub nar_size: u64,
    /// When it was registered, in seconds since 1970.
    pub registration_time: u64,
}

/// A read-only Nix database. Can be shared between threads: each query borrows a connection from a small pool.
#[derive(Debug)]
pub struct Database {
    pool: Pool,
    rows: Rows,
}

impl Database {
    /// The database at this path. The first query opens it.
    pub fn new(path: &Path, store_dir: StoreDir) -> Self {
        Self { pool: Pool::new(path, false), rows: Rows { store_dir } }
    }

    /// The same, for queries that must not change any file: SQLite creates `-wal` and `-shm` when it opens a database
    /// with a write-ahead log that nobody has open. If somebody is writing, they exist, and are used.
    pub(crate) fn undisturbed(path: &Path, store_dir: StoreDir) -> Self {
        Self { pool: Pool::new(path, true), rows: Rows { store_dir } }
    }

    /// Runs a query.
    pub(crate) fn read<T>(&self, query: impl Fn(&Connection) -> Result<T, rusqlite::Error>) -> Result<T, StoreError> {
        self.pool.query(|connection| query(connection).map_err(QueryError::from))
    }

    /// Returns the current state of the database, or `None` if it is unknown, in which case cached results must not be
    /// used. Takes one system call while nothing changes, and never waits for a lock.
    ///
    /// Must be called *before* a query: the result is valid as long as the stamp stays the same.
    #[inline(always)]
    pub fn stamp(&self) -> Option<Stamp> {
        self.pool.watch.stamp()
    }

    /// Returns the valid path with this hash part.
    ///
    /// # Errors
    /// [`StoreError`] if the database cannot be read. An absent path is not an error.
    pub fn path_from_hash_part(&self, hash_part: &HashPart) -> Result<Option<StorePath>, StoreError> {
        let first = self.rows.first_with(hash_part);
        self.pool.query(|connection| {
            let path = connection
                .prepare_cached("select path from ValidPaths where path >= ?1 order by path limit 1")?
                .query_row([&first], |row| Ok(row::text(row, 0)?.filter(|path| path.starts_with(&first))))
                .optional()?;
            path.flatten().map(|path| self.rows.path(&path, "path", &path)).transpose()
        })
    }

    /// Returns the metadata of the valid path with this hash part.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn path_info_by_hash_part(&self, hash_part: &HashPart) -> Result<Option<PathInfo>, StoreError> {
        let first = self.rows.first_with(hash_part);
        self.pool.query(|connection| {
            let sql = "select id, path, hash, registrationTime, deriver, narSize, ultimate, sigs, ca from ValidPaths \
                       where path >= ?1 order by path limit 1";
            self.path_info_where(connection, sql, &first, |path| path.starts_with(&first))
        })
    }

    /// Returns the metadata of a valid path.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn path_info(&self, path: &StorePath) -> Result<Option<PathInfo>, StoreError> {
        let full = self.rows.full(path);
        self.pool.query(|connection| self.path_info_in(connection, &full))
    }

    /// Returns the metadata of several paths, in order, from a single state of the database.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn path_infos(&self, paths: &[StorePath]) -> Result<Vec<Option<PathInfo>>, StoreError> {
        self.pool.query(|connection| {
            let snapshot = connection.unchecked_transaction()?;
            let infos = paths.iter().map(|path| self.path_info_in(&snapshot, &self.rows.full(path))).collect();
            drop(snapshot);
            infos
        })
    }

    fn path_info_in(&self, connection: &Connection, full: &str) -> Result<Option<PathInfo>, QueryError> {
        let sql = "select id, path, hash, registrationTime, deriver, narSize, ultimate, sigs, ca from ValidPaths \
                   where path = ?1";
        self.path_info_where(connection, sql, full, |_| true)
    }

    fn path_info_where(
        &self,
        connection: &Connection,
        sql: &str,
        parameter: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Option<PathInfo>, QueryError> {
        let mut statement = connection.prepare_cached(sql)?;
        let mut found = statement.query([parameter])?;
        let Some(row) = found.next()? else { return Ok(None) };
        // The first row at or after a hash part may be an unrelated one, whose errors do not matter.
        let Some(full) = row::text(row, 1)?.filter(|path| wanted(path)) else { return Ok(None) };
        let mut info = self.rows.path_info(row, full)?;
        // The first statement is still open, and so is the read transaction: both see the same state.
        let sql = "select v.path from Refs r join ValidPaths v on r.reference = v.id where r.referrer = ?1";
        let mut statement = connection.prepare_cached(sql)?;
        let mut references = statement.query([info.id])?;
        while let Some(reference) = references.next()? {
            let reference = reference.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
            info.info.references.insert(self.rows.path(reference, "a reference", &info.full)?);
        }
        Ok(Some(info.info))
    }

    /// Whether a path is valid.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn is_valid(&self, path: &StorePath) -> Result<bool, StoreError> {
        let full = self.rows.full(path);
        self.pool.query(|connection| {
            Ok(connection.prepare_cached("select 1 from ValidPaths where path = ?1")?.exists([&full])?)
        })
    }

    /// Returns the paths that became valid last, at most `count` of them.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn newest_paths(&self, count: u32) -> Result<Vec<StorePath>, StoreError> {
        self.paths(&format!("select path from ValidPaths order by id desc limit {count}"), &[])
    }

    /// Returns the paths that became valid last, at most `count` of them, with what a list of them displays.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn newest_listed(&self, count: usize) -> Result<Vec<ListedPath>, StoreError> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let prefix = self.rows.store_dir.to_string().len() + 1;
        self.pool.query(|connection| {
            let sql = "select path, narSize, registrationTime from ValidPaths order by id desc limit ?1";
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query([count])?;
            let mut listed = Vec::new();
            let number = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
            while let Some(row) = rows.next()? {
                let full = row::text(row, 0)?.unwrap_or_default();
                let Some(path) = full.get(prefix..).filter(|path| !path.is_empty()) else { continue };
                listed.push(ListedPath {
                    path: path.to_owned(),
                    nar_size: number(row.get(1)?),
                    registration_time: number(row.get(2)?),
                });
            }
            Ok(listed)
        })
    }

    /// Returns the number of the path that was registered last, even if it is no longer valid; 0 for a new store.
    /// Numbers increase and are never reused (`autoincrement`).
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn last_registered(&self) -> Result<u64, StoreError> {
        self.pool.query(|connection| {
            let sql = "select seq from sqlite_sequence where name = 'ValidPaths'";
            let last: Option<i64> = connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
            Ok(last.and_then(|last| u64::try_from(last).ok()).unwrap_or(0))
        })
    }

    /// Returns the valid paths that were registered after the one with this number, in order, at most `count` of them.
    /// Rows that are not store paths are omitted.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn registered_after(&self, number: u64, count: u32) -> Result<Vec<Registered>, StoreError> {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        self.pool.query(|connection| {
            let sql = "select id, path, ultimate, narSize from ValidPaths where id > ?1 order by id limit ?2";
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query(params![number, count])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let (number, full): (i64, _) = (row.get(0)?, row::text(row, 1)?.unwrap_or_default());
                match self.rows.path(&full, "path", &full) {
                    Ok(path) => found.push(Registered {
                        number: u64::try_from(number).unwrap_or(0),
                        path,
                        is_built_here: row.get::<_, Option<i64>>(2)? == Some(1),
                        nar_size: u64::try_from(row.get::<_, Option<i64>>(3)?.unwrap_or(0)).unwrap_or(0),
                    }),
                    Err(_) => tracing::warn!("the Nix database has a valid path that is not a store path: '{full}'"),
                }
            }
            Ok(found)
        })
    }

    /// Returns the valid path that was registered with this number, as it is written in the database.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn registered_as(&self, number: u64) -> Result<Option<String>, StoreError> {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        self.pool.query(|connection| {
            let mut statement = connection.prepare_cached("select path from ValidPaths where id = ?1")?;
            Ok(statement.query_row([number], |row| row.get(0)).optional()?)
        })
    }

    /// Returns the number before that of the first path that was registered at or after this time, in seconds since 1970:
    /// [`Database::registered_after`] returns that path and all later ones.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn number_before(&self, time: u64) -> Result<u64, StoreError> {
        let time = i64::try_from(time).unwrap_or(i64::MAX);
        let first: Option<i64> = self.pool.query(|connection| {
            let sql = "select min(id) from ValidPaths where registrationTime >= ?1";
            Ok(connection.prepare_cached(sql)?.query_row([time], |row| row.get(0))?)
        })?;
        match first.and_then(|first| u64::try_from(first).ok()) {
            Some(first) => Ok(first.saturating_sub(1)),
            None => self.last_registered(),
        }
    }

    /// Returns all valid paths, in no particular order.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn all_valid_paths(&self) -> Result<Vec<StorePath>, StoreError> {
        self.paths("select path from ValidPaths", &[])
    }

    /// Returns the references of a valid path, which may include the path itself. Empty for a path that is not valid.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn references(&self, path: &StorePath) -> Result<Vec<StorePath>, StoreError> {
        let sql = "select v.path from Refs r join ValidPaths v on r.reference = v.id \
                   where r.referrer = (select id from ValidPaths where path = ?1) order by v.path";
        self.paths(sql, &[&self.rows.full(path)])
    }

    /// Returns the valid paths that refer to a path.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn referrers(&self, path: &StorePath) -> Result<Vec<StorePath>, StoreError> {
        let sql = "select v.path from Refs r join ValidPaths v on r.referrer = v.id \
                   where r.reference = (select id from ValidPaths where path = ?1) order by v.path";
        self.paths(sql, &[&self.rows.full(path)])
    }

    fn paths(&self, sql: &str, parameters: &[&str]) -> Result<Vec<StorePath>, StoreError> {
        self.pool.query(|connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query(params_from_iter(parameters))?;
            let mut paths = Vec::new();
            while let Some(row) = rows.next()? {
                let path = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
                paths.push(self.rows.path(path, "path", path)?);
            }
            Ok(paths)
        })
    }

    /// Returns the realisation of a derivation's output, if content-addressed derivations were ever enabled (Nix ≥
    /// 2.35).
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn realisation(&self, derivation: &StorePath, output: &str) -> Result<Option<Realisation>, StoreError> {
        let sql = "select outputPath, signatures from BuildTraceV3 where drvPath = ?1 and outputName = ?2 limit 1";
        self.realisation_where("BuildTraceV3", sql, derivation.base_name(), output)
    }

    /// Like [`Database::realisation`] for Nix ≤ 2.34, which uses the derivation's hash, `sha256:<hex>`.
    ///
    /// # Errors
    /// See [`Database::path_from_hash_part`].
    pub fn realisation_by_hash(&self, derivation_hash: &str, output: &str) -> Result<Option<Realisation>, StoreError> {
        let sql = "select v.path, r.signatures from Realisations r join ValidPaths v on r.outputPath = v.id \
                   where r.drvPath = ?1 and r.outputName = ?2 limit 1";
        self.realisation_where("Realisations", sql, derivation_hash, output)
    }

    fn realisation_where(
        &self,
        table: &str,
        sql: &str,
        derivation: &str,
        output: &str,
    ) -> Result<Option<Realisation>, StoreError> {
        self.pool.query(|connection| {
            let exists = "select 1 from sqlite_master where type = 'table' and name = ?1";
            if !connection.prepare_cached(exists)?.exists([table])? {
                return Ok(None);
            }
            let row = connection
                .prepare_cached(sql)?
                .query_row(params![derivation, output], |row| {
                    Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?))
                })
                .optional()?;
            let Some((path, signatures)) = row else { return Ok(None) };
            let output_path = self.rows.path(&path, "outputPath", derivation)?;
            Ok(Some(Realisation { output_path, signatures: split_signatures(signatures.as_deref()) }))
        })
    }
}
