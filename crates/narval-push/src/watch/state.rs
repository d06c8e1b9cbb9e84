//! The pending paths of each cache: an SQLite database, so nothing is lost if the watcher is killed or restarted.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narval_client::{Scheme, Url};
use narval_nix::StorePath;
use narval_s3::BucketAddress;
use narval_store::lock_file;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use narval_client::clock::now;
use narval_transfer::Error;

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
    create table if not exists Positions (
        destination integer primary key references Destinations(id), lastPath text, device integer, inode integer, lookedAt integer,
        isFromStart integer not null default 0);
    create table if not exists Pending (
        id integer primary key autoincrement, destination integer not null references Destinations(id), path text not null,
        attempts integer not null default 0, notBefore integer not null default 0, unique (destination, path));
";

/// Earlier versions recorded buckets without their object stores. Which one that was is only known when it is asked for.
const WITH_ENDPOINTS: &str = "
    begin immediate;
    create table WithoutEndpoint (destination integer primary key references Destinations(id) on delete cascade);
    insert into WithoutEndpoint select id from Destinations where url like 's3://%';
    pragma user_version = 1;
    commit;
";

/// The state of one watcher, locked as long as this lives.
pub(super) struct WatcherState {
    path: PathBuf,
    connection: Mutex<Connection>,
    _lock: File,
}

/// The number of a cache in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DestinationId(i64);

/// How far the database of a store was read for a cache, and which database that was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The number of the last path that was read.
    pub(super) number: u64,
    /// That path, if it was still valid.
    pub(super) path: Option<String>,
    /// The device and the inode of the database. `None` in a state of an earlier version.
    pub(super) file: Option<(u64, u64)>,
    /// When that was, in seconds since 1970.
    pub(super) looked_at: u64,
    /// Whether all paths are read that were valid before the cache was new to the state.
    pub(super) is_from_start: bool,
}

impl WatcherState {
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
            if connection.query_row("pragma user_version", (), |row| row.get::<_, i64>(0))? == 0 {
                connection.execute_batch(WITH_ENDPOINTS)?;
            }
            Ok(connection)
        };
        let connection = open().map_err(|error| failed(&path, &error))?;
        Ok(Self { path, connection: Mutex::new(connection), _lock: lock })
    }

    /// The cache with this address, however it is spelled, for the store with this name. A new one gets the paths after `start`.
    pub(super) fn destination(&self, url: &Url, store: &str, start: &Position) -> Result<DestinationId, Error> {
        let name = name(url);
        let earlier = spelled_once(&url.to_string());
        self.run(|connection| {
            let transaction = connection.unchecked_transaction()?;
            let sql = "select id, url, exists (select 1 from WithoutEndpoint where destination = id) from Destinations
                where store = ?1 order by lastRegistered, id";
            let known: Vec<(i64, String, bool)> = transaction
                .prepare_cached(sql)?
                .query_map([store], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let is_same = |(_, other, may_be_any): &&(i64, String, bool)| {
                let other = spelled_once(other);
                other == name || (*may_be_any && other == earlier)
            };
            let mut same = known.iter().filter(is_same);
            let Some((id, ..)) = same.next() else {
                let sql = "insert into Destinations (url, store, lastRegistered) values (?1, ?2, 0)";
                transaction.execute(sql, [&name, store])?;
                let id = transaction.last_insert_rowid();
                move_to(&transaction, id, start)?;
                transaction.commit()?;
                return Ok(DestinationId(id));
            };
            // Earlier versions took each spelling for a cache of its own: the one that was read least gets the paths of the others.
            for (other, ..) in same {
                let sql = "update or ignore Pending set destination = ?1 where destination = ?2";
                transaction.execute(sql, [id, other])?;
                for sql in [
                    "delete from Pending where destination = ?1",
                    "delete from Positions where destination = ?1",
                    "delete from Destinations where id = ?1",
                ] {
                    transaction.execute(sql, [other])?;
                }
            }
            transaction.execute("update Destinations set url = ?2 where id = ?1", params![id, name])?;
            transaction.execute("delete from WithoutEndpoint where destination = ?1", [id])?;
            transaction.commit()?;
            Ok(DestinationId(*id))
        })
    }

    /// How far the database was read for a cache.
    pub(super) fn position(&self, destination: DestinationId) -> Result<Position, Error> {
        let sql = "select lastRegistered, lastPath, device, inode, lookedAt, isFromStart from Destinations
            left join Positions on destination = id where id = ?1";
        let number = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
        let file = |value: Option<i64>| value.map(i64::cast_unsigned);
        self.run(|connection| {
            connection.query_row(sql, [destination.0], |row| {
                Ok(Position {
                    number: number(row.get(0)?).unwrap_or(0),
                    path: row.get(1)?,
                    file: file(row.get(2)?).zip(file(row.get(3)?)),
                    looked_at: number(row.get(4)?).unwrap_or(0),
                    is_from_start: row.get::<_, Option<bool>>(5)?.unwrap_or(false),
                })
            })
        })
    }

    /// Records pending paths for a cache, and how far the database was read if that is known. Returns how many are new.
    pub(super) fn add(
        &self,
        destination: DestinationId,
        paths: &[StorePath],
        position: Option<&Position>,
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
            if let Some(position) = position {
                move_to(&transaction, destination.0, position)?;
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
        query(&self.connection.lock()).map_err(|error| failed(&self.path, &error))
    }
}

fn move_to(transaction: &Transaction<'_>, destination: i64, position: &Position) -> rusqlite::Result<()> {
    let sql = "update Destinations set lastRegistered = ?2 where id = ?1";
    transaction.execute(sql, params![destination, signed(position.number)])?;
    let Position { path, file, looked_at, is_from_start, .. } = position;
    // Numbers of 64 bits, which SQLite has only with a sign.
    let (device, inode) = file.map(|(device, inode)| (device.cast_signed(), inode.cast_signed())).unzip();
    let sql = "insert or replace into Positions values (?1, ?2, ?3, ?4, ?5, ?6)";
    transaction.execute(sql, params![destination, path, device, inode, signed(*looked_at), is_from_start])?;
    Ok(())
}

/// The name of a cache in the state: its address without what makes no difference. The query may have secrets, and of it only the endpoint says which
/// cache it is: an object store that is not AWS's.
fn name(url: &Url) -> String {
    let address = spelled_once(&url.to_string());
    match url.query_value("endpoint").and_then(|_| BucketAddress::of(url).ok()) {
        Some(place) if url.scheme() == Scheme::S3 => format!("{address}?endpoint={}", spelled_once(&place.endpoint)),
        _ => address,
    }
}

/// The address of a cache without what makes no difference: a slash at the end, and in a folder also `//` and `/./`.
fn spelled_once(url: &str) -> String {
    let url = url.trim_end_matches('/');
    match url.strip_prefix("file://") {
        Some(folder) => format!("file://{}", Path::new(folder).components().collect::<PathBuf>().display()),
        None => url.to_owned(),
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

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn path(number: u32) -> StorePath {
        format!("{}-{number}", "0".repeat(32)).parse().unwrap()
    }

    #[test]
    fn the_state_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let state = WatcherState::open(dir.path()).unwrap();
        let at = |number| Position { number, ..Position::default() };
        let last = |state: &WatcherState, id| state.position(id).unwrap();
        let one = state.destination(&url("http://a"), "/nix", &at(7)).unwrap();
        let two = state.destination(&url("http://b"), "/nix", &at(0)).unwrap();
        let file = Some((u64::MAX, 1));
        let read = Position { number: 9, path: Some("a".to_owned()), file, looked_at: 5, is_from_start: true };
        assert_eq!(state.add(one, &[path(2), path(1), path(2)], Some(&read)).unwrap(), 2);
        state.add(two, &[path(3)], None).unwrap();
        drop(state);
        let state = WatcherState::open(dir.path()).unwrap();
        assert_eq!(state.destination(&url("http://a"), "/nix", &at(1)).unwrap(), one, "it is known already");
        assert_eq!((last(&state, one), last(&state, two)), (read, at(0)));
        assert_eq!(state.due(one, 10).unwrap(), [path(2), path(1)]);
        assert_eq!(state.due(one, 1).unwrap(), [path(2)]);
        state.done(one, &[path(2), path(3)]).unwrap();
        assert_eq!(state.due(one, 10).unwrap(), [path(1)]);
        assert_eq!(state.due(two, 10).unwrap(), [path(3)], "another cache's");
        assert_ne!(state.destination(&url("http://a"), "/other", &at(0)).unwrap(), one);
    }

    /// Earlier versions took each spelling for a cache of its own.
    #[test]
    fn an_address_in_another_spelling_is_the_same_cache() {
        let dir = tempfile::tempdir().unwrap();
        let state = WatcherState::open(dir.path()).unwrap();
        let folder = state.destination(&url("file:///a/b"), "/nix", &Position::default()).unwrap();
        for same in ["file:///a/b/", "file:///a//b", "file:///a/./b/."] {
            assert_eq!(state.destination(&url(same), "/nix", &Position::default()).unwrap(), folder, "{same}");
        }
        assert_ne!(state.destination(&url("file:///a"), "/nix", &Position::default()).unwrap(), folder);
        let insert = "insert into Destinations values (10, 'http://a', '/nix', 7), (11, 'http://a/', '/nix', 5);
            insert into Pending (destination, path) values (10, '00000000000000000000000000000000-1'),
                (10, '00000000000000000000000000000000-2'), (11, '00000000000000000000000000000000-2')";
        state.connection.lock().execute_batch(insert).unwrap();
        let merged = state.destination(&url("http://a"), "/nix", &Position::default()).unwrap();
        assert_eq!(state.position(merged).unwrap().number, 5);
        let mut due = state.due(merged, 10).unwrap();
        due.sort();
        assert_eq!(due, [path(1), path(2)]);
    }

    #[test]
    fn a_bucket_in_another_object_store_is_another_cache() {
        let dir = tempfile::tempdir().unwrap();
        let state = WatcherState::open(dir.path()).unwrap();
        let get =
            |state: &WatcherState, text: &str| state.destination(&url(text), "/nix", &Position::default()).unwrap();
        let [aws, one, two] = ["", "?endpoint=one:9000", "?region=x&endpoint=https://two"]
            .map(|query| get(&state, &format!("s3://bucket/prefix{query}")));
        assert!(aws != one && aws != two && one != two);
        for (same, id) in [("/?endpoint=https://one:9000/&profile=x", one), ("?region=eu-central-1", aws)] {
            assert_eq!(get(&state, &format!("s3://bucket/prefix{same}")), id, "{same}");
        }
        assert_eq!(get(&state, "http://a?endpoint=b"), get(&state, "http://a"));
    }

    /// What earlier versions recorded, without the endpoint, goes to the object store that is asked for first.
    #[test]
    fn a_state_without_endpoints_is_continued() {
        for first in ["s3://bucket?endpoint=https://one", "s3://bucket/?region=eu-central-1"] {
            let dir = tempfile::tempdir().unwrap();
            let earlier = Connection::open(dir.path().join("state.sqlite")).unwrap();
            earlier.execute_batch(SCHEMA).unwrap();
            let insert = "insert into Destinations values (10, 's3://bucket', '/nix', 7)";
            earlier.execute_batch(insert).unwrap();
            drop(earlier);
            let state = WatcherState::open(dir.path()).unwrap();
            let get = |text: &str| state.destination(&url(text), "/nix", &Position::default()).unwrap();
            assert_eq!(state.position(get(first)).unwrap().number, 7);
            assert_eq!(state.position(get("s3://bucket?endpoint=two")).unwrap().number, 0);
            drop(state);
            let state = WatcherState::open(dir.path()).unwrap();
            let get = |text: &str| state.destination(&url(text), "/nix", &Position::default()).unwrap();
            assert_eq!(get(first), DestinationId(10));
        }
    }

    #[test]
    fn refused_paths_are_retried_and_finally_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let state = WatcherState::open(dir.path()).unwrap();
        let to = state.destination(&url("http://a"), "/nix", &Position::default()).unwrap();
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
        let _first = WatcherState::open(dir.path()).unwrap();
        let lock = lock_file(&dir.path().join("watch.lock"), Duration::ZERO);
        assert!(matches!(Error::from(lock.unwrap_err()), Error::Locked { .. }));
    }
}
