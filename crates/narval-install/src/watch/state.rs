//! The pending paths of each cache: an SQLite database, so nothing is lost if the watcher is killed or restarted.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use narval_nix::StorePath;
use narval_store::lock_file;
use rusqlite::{Connection, OptionalExtension, params};

use crate::{Error, now};

/// How long to wait for another watcher with the same state: one that is stopping takes a moment.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// How often a path that a cache refuses is tried.
pub(super) const ATTEMPTS_MAX: u32 = 5;

/// Seconds until a path is tried again after its first refusal; doubled each time.
const RETRY_AFTER_S: u64 = 30;

const SCHEMA: &str = "
    pragma journal_mode = wal;
    pragma synchronous = full;
    pragma foreign_keys = on;
    create table if not exists Destinations (
        id integer primary key, url text not null, store text not null, lastRegistered integer not null, unique (url, store));
    create table if not exists Pending (
        id integer primary key autoincrement, destination integer not null references Destinations(id), path text not null,
        attempts integer not null default 0, notBefore integer not null default 0, unique (destination, path));
";

/// The state of one watcher, locked as long as this lives.
pub(super) struct State {
    path: PathBuf,
    connection: Mutex<Connection>,
    _lock: File,
}

/// The number of a cache in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DestinationId(i64);

impl State {
    /// Opens or creates the state in an existing folder.
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let lock = lock_file(&folder.join("watch.lock"), LOCK_PATIENCE).map_err(|error| match Error::from(error) {
            Error::Locked { .. } => Error::Usage(format!(
                "another 'narval watch-store' uses '{}'; give this one its own folder with --state",
                folder.display()
            )),
            error => error,
        })?;
        let path = folder.join("state.sqlite");
        let open = || {
            let connection = Connection::open(&path)?;
            connection.busy_timeout(LOCK_PATIENCE)?;
            connection.execute_batch(SCHEMA)?;
            Ok(connection)
        };
        let connection = open().map_err(|error| failed(&path, &error))?;
        Ok(Self { path, connection: Mutex::new(connection), _lock: lock })
    }

    /// The cache with this address, for the store with this name. A new one gets the paths after the number `start`.
    pub(super) fn destination(&self, url: &str, store: &str, start: u64) -> Result<DestinationId, Error> {
        self.run(|connection| {
            let sql = "insert or ignore into Destinations (url, store, lastRegistered) values (?1, ?2, ?3)";
            connection.execute(sql, params![url, store, signed(start)])?;
            let sql = "select id from Destinations where url = ?1 and store = ?2";
            connection.query_row(sql, [url, store], |row| row.get(0)).map(DestinationId)
        })
    }

    /// The number of the last path that was read for a cache.
    pub(super) fn last_registered(&self, destination: DestinationId) -> Result<u64, Error> {
        let sql = "select lastRegistered from Destinations where id = ?1";
        let last: i64 = self.run(|connection| connection.query_row(sql, [destination.0], |row| row.get(0)))?;
        Ok(u64::try_from(last).unwrap_or(0))
    }

    /// Records pending paths for a cache, and how far the database was read if that is known. Returns how many are new.
    pub(super) fn add(
        &self,
        destination: DestinationId,
        paths: &[StorePath],
        last_registered: Option<u64>,
    ) -> Result<usize, Error> {
        self.run(|connection| {
            let transaction = connection.unchecked_transaction()?;
            let sql = "insert or ignore into Pending (destination, path) values (?1, ?2)";
            let mut insert = transaction.prepare_cached(sql)?;
            let mut added = 0;
            for path in paths {
                added += insert.execute(params![destination.0, path.base_name()])?;
            }
            drop(insert);
            if let Some(last) = last_registered {
                let sql = "update Destinations set lastRegistered = ?2 where id = ?1";
                transaction.execute(sql, params![destination.0, signed(last)])?;
            }
            transaction.commit()?;
            Ok(added)
        })
    }

    /// The paths to push to a cache now, at most `count`, the oldest first.
    pub(super) fn due(&self, destination: DestinationId, count: u32) -> Result<Vec<StorePath>, Error> {
        let sql = "select path from Pending where destination = ?1 and notBefore <= ?2 order by id limit ?3";
        let names: Vec<String> = self.run(|connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map(params![destination.0, signed(now()), count], |row| row.get(0))?;
            rows.collect()
        })?;
        // Only written by `add`.
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// The number of pending paths of a cache, including those that must wait, and for how many seconds the first of
    /// these must.
    pub(super) fn left(&self, destination: DestinationId) -> Result<(u64, Option<u64>), Error> {
        let sql = "select count(*), min(notBefore) from Pending where destination = ?1";
        let (count, first): (i64, Option<i64>) =
            self.run(|connection| connection.query_row(sql, [destination.0], |row| Ok((row.get(0)?, row.get(1)?))))?;
        let wait = first.map(|first| u64::try_from(first).unwrap_or(0).saturating_sub(now()));
        Ok((u64::try_from(count).unwrap_or(0), wait))
    }

    /// Removes paths that a cache has, or will not get.
    pub(super) fn done(&self, destination: DestinationId, paths: &[StorePath]) -> Result<(), Error> {
        self.run(|connection| {
            let transaction = connection.unchecked_transaction()?;
            let mut delete = transaction.prepare_cached("delete from Pending where destination = ?1 and path = ?2")?;
            for path in paths {
                delete.execute(params![destination.0, path.base_name()])?;
            }
            drop(delete);
            transaction.commit()
        })
    }

    /// Schedules another attempt for a refused path. Returns `false` after [`ATTEMPTS_MAX`], when the path is removed.
    pub(super) fn refused(&self, destination: DestinationId, path: &StorePath) -> Result<bool, Error> {
        self.run(|connection| {
            let sql =
                "update Pending set attempts = attempts + 1 where destination = ?1 and path = ?2 returning attempts";
            let parameters = params![destination.0, path.base_name()];
            let attempts: Option<u32> = connection.query_row(sql, parameters, |row| row.get(0)).optional()?;
            let Some(attempts) = attempts.filter(|attempts| *attempts < ATTEMPTS_MAX) else {
                connection.execute("delete from Pending where destination = ?1 and path = ?2", parameters)?;
                return Ok(false);
            };
            let not_before = now() + (RETRY_AFTER_S << attempts.saturating_sub(1));
            let sql = "update Pending set notBefore = ?3 where destination = ?1 and path = ?2";
            connection.execute(sql, params![destination.0, path.base_name(), signed(not_before)])?;
            Ok(true)
        })
    }

    fn run<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        query(&self.lock()).map_err(|error| failed(&self.path, &error))
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(path: &Path, error: &rusqlite::Error) -> Error {
    let kind = match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => std::io::ErrorKind::StorageFull,
        _ => std::io::ErrorKind::Other,
    };
    Error::file("use the state", path, std::io::Error::new(kind, error.to_string()))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(number: u32) -> StorePath {
        format!("{}-{number}", "0".repeat(32)).parse().unwrap()
    }

    #[test]
    fn the_state_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path()).unwrap();
        let one = state.destination("http://a", "/nix", 7).unwrap();
        let two = state.destination("http://b", "/nix", 0).unwrap();
        assert_eq!(state.add(one, &[path(2), path(1), path(2)], Some(9)).unwrap(), 2);
        state.add(two, &[path(3)], None).unwrap();
        drop(state);
        let state = State::open(dir.path()).unwrap();
        assert_eq!(state.destination("http://a", "/nix", 1).unwrap(), one, "it is known already");
        assert_eq!((state.last_registered(one).unwrap(), state.last_registered(two).unwrap()), (9, 0));
        assert_eq!(state.due(one, 10).unwrap(), [path(2), path(1)]);
        assert_eq!(state.due(one, 1).unwrap(), [path(2)]);
        state.done(one, &[path(2), path(3)]).unwrap();
        assert_eq!(state.due(one, 10).unwrap(), [path(1)]);
        assert_eq!(state.due(two, 10).unwrap(), [path(3)], "another cache's");
        assert_ne!(state.destination("http://a", "/other", 0).unwrap(), one);
    }

    #[test]
    fn refused_paths_are_retried_and_finally_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path()).unwrap();
        let to = state.destination("http://a", "/nix", 0).unwrap();
        state.add(to, &[path(1), path(2)], None).unwrap();
        assert!(state.refused(to, &path(1)).unwrap());
        assert_eq!(state.due(to, 10).unwrap(), [path(2)]);
        state.done(to, &[path(2)]).unwrap();
        let (left, wait) = state.left(to).unwrap();
        assert!(left == 1 && wait.is_some_and(|wait| (RETRY_AFTER_S - 5..=RETRY_AFTER_S).contains(&wait)), "{wait:?}");
        assert_eq!((2..=ATTEMPTS_MAX).filter(|_| state.refused(to, &path(1)).unwrap()).count(), 3);
        assert_eq!(state.left(to).unwrap(), (0, None));
        assert!(!state.refused(to, &path(1)).unwrap(), "nobody waits for it");
    }

    #[test]
    fn a_second_watcher_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let _first = State::open(dir.path()).unwrap();
        let lock = lock_file(&dir.path().join("watch.lock"), Duration::ZERO);
        assert!(matches!(Error::from(lock.unwrap_err()), Error::Locked { .. }));
    }
}
