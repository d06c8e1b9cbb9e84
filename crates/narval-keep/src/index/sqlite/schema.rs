//! Tables, caches, and pending entries for files.

use std::collections::BTreeSet;
use std::path::Path;

use narval_nix::HashPart;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::sql_error;
use crate::index::{CacheId, Commit, IndexError, Pending};
use crate::rule::{Rule, holds};

/// The version of [`SCHEMA`], in SQLite's `user_version`.
const VERSION: u32 = 5;

/// Times are seconds since 1970; hash parts are their 32 characters.
const SCHEMA: &str = "
create table meta (key text primary key not null, value integer not null) without rowid;
insert into meta values ('stamp', 1);

create table caches (
  id integer primary key autoincrement not null, name text unique not null, settings text not null,
  created integer not null,
  -- Bytes of NARs in it and of their listings, each counted once.
  bytes integer not null default 0);

-- One row for each NarHash and compression: one file below blobs/.
create table nars (
  id integer primary key autoincrement not null,
  nar_hash blob not null, compression text not null, nar_size integer not null,
  file_hash blob not null, file_size integer not null, listing_size integer,
  -- Hash parts that the scan found, one after another.
  found text not null,
  unique (nar_hash, compression));

-- Names below a cache's nar/. Several may mean one NAR.
create table files (
  cache integer not null references caches (id), name text not null, nar integer not null references nars (id),
  added integer not null, used integer not null,
  -- Since when no narinfo names it; null while one does.
  orphaned integer,
  primary key (cache, name)) without rowid;
create index files_by_nar on files (nar, cache);
create index files_orphaned on files (orphaned) where orphaned is not null;

create table paths (
  id integer primary key autoincrement not null,
  cache integer not null references caches (id), hash_part text not null, path text not null,
  nar_hash blob not null, file text not null, narinfo blob not null, listing_size integer,
  version integer not null, added integer not null, used integer not null,
  unique (cache, hash_part));
create index paths_by_file on paths (cache, file);

-- A reference names a hash part: it may be a path of an upstream.
create table refs (
  referrer integer not null references paths (id) on delete cascade, reference text not null,
  primary key (referrer, reference)) without rowid;
create index refs_by_reference on refs (reference);

create table leases (
  cache integer not null references caches (id), hash_part text not null, until integer not null,
  primary key (cache, hash_part)) without rowid;

create table pins (
  id integer primary key autoincrement not null,
  cache integer not null references caches (id), name text not null, hash_part text not null, path text not null,
  created integer not null, until integer, keep integer);
create index pins_by_name on pins (cache, name);

create table tokens (
  id text primary key not null, hash blob not null, label text not null, scopes text not null, caches text not null,
  created integer not null, expires integer, last_used integer, revoked integer) without rowid;

-- What a process that is killed may have left undone with files.
create table pending (
  id integer primary key autoincrement not null, cache integer not null references caches (id),
  kind text not null, name text not null);
";

/// Migrates from version 1, in which listings were not counted.
const FROM_1: &str = "
update caches set bytes = coalesce((select sum(n.file_size + coalesce(n.listing_size, 0)) from nars n
  where exists (select 1 from files f where f.nar = n.id and f.cache = caches.id)), 0);
";

/// Migrates from version 2: what collections of several processes need, as in the tables of PostgreSQL.
const FROM_2: &str = "
-- Since when it is to be removed: 0 if its path was deleted. Null again when somebody wants it.
alter table files add column doomed integer;
-- The number of the collection that is removing its bytes. Counts only while no narinfo names it.
alter table files add column fence integer;
alter table nars add column fence integer;
create table work (name text primary key not null, fence integer not null, until integer not null) without rowid;
create table collected (cache integer primary key not null references caches (id), at integer not null);
";

/// Migrates from version 3: processes that store objects before they record their names, as in the tables of PostgreSQL.
const FROM_3: &str = "
create table writers (
  id integer primary key autoincrement not null, cache integer not null references caches (id), key blob not null,
  begun integer not null, seen integer not null);
";

/// Migrates from version 4: entries are looked up by their names, one for each narinfo of a commit.
const FROM_4: &str = "
create index pending_by_name on pending (cache, kind, name);
-- Paths that were removed because their NARs were not there, and those NARs: for a day, in case they are found again.
create table lost (
  cache integer not null references caches (id), hash_part text not null, narinfo blob not null, file text not null,
  nar_hash blob not null, nar_size integer not null, compression text not null, file_hash blob not null, file_size integer not null,
  listing_size integer, found text not null, at integer not null, primary key (cache, hash_part)) without rowid;
";

/// Creates missing tables, and migrates older ones.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), IndexError> {
    let fail = |error| sql_error(path, &error);
    let version = |connection: &Connection| -> rusqlite::Result<u32> {
        connection.pragma_query_value(None, "user_version", |row| row.get(0))
    };
    let mut found = version(connection).map_err(fail)?;
    if found < VERSION {
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(fail)?;
        // Another process may have migrated them meanwhile.
        found = version(&transaction).map_err(fail)?;
        if found < VERSION {
            let steps = match found {
                0 => [SCHEMA, "", FROM_2, FROM_3, FROM_4],
                1 => ["", FROM_1, FROM_2, FROM_3, FROM_4],
                2 => ["", "", FROM_2, FROM_3, FROM_4],
                3 => ["", "", "", FROM_3, FROM_4],
                _ => ["", "", "", "", FROM_4],
            };
            steps.iter().try_for_each(|step| transaction.execute_batch(step)).map_err(fail)?;
            transaction.pragma_update(None, "user_version", VERSION).map_err(fail)?;
            found = VERSION;
        }
        transaction.commit().map_err(fail)?;
    }
    if found > VERSION {
        return Err(IndexError::Newer { index: path.display().to_string(), found, known: VERSION });
    }
    Ok(())
}

pub(super) fn stamp(connection: &Connection) -> rusqlite::Result<u64> {
    connection.prepare_cached("select value from meta where key = 'stamp'")?.query_row([], |row| row.get(0))
}

/// Must be called in every transaction that changes what a reader can see.
pub(super) fn is_visible(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("update meta set value = value + 1 where key = 'stamp'")?.execute([]).map(drop)
}

/// Records that files may differ from the index from now on.
pub(super) fn add_pending(connection: &Connection, cache: CacheId, kind: &str, name: &str) -> rusqlite::Result<i64> {
    let mut statement = connection.prepare_cached("insert into pending (cache, kind, name) values (?, ?, ?)")?;
    statement.insert(params![cache.0, kind, name])
}

pub(super) fn pending(connection: &Connection, after: i64) -> rusqlite::Result<Vec<(i64, CacheId, Pending)>> {
    let mut statement =
        connection.prepare_cached("select cache, kind, name, id from pending where id > ? order by id")?;
    let rows = statement.query_map([after], |row| {
        let pending = match row.get::<_, String>(1)?.as_str() {
            "path" => Pending::Path(parsed(row, 2)?),
            "file" => Pending::File(row.get(2)?),
            _ => {
                let name: String = row.get(2)?;
                let (hash, compression) = name.split_once(' ').unwrap_or_default();
                Pending::Blob(convert(hash.parse(), 2)?, convert(compression.parse(), 2)?)
            }
        };
        Ok((row.get(3)?, CacheId(row.get(0)?), pending))
    })?;
    rows.collect()
}

pub(super) fn settle(connection: &Connection, up_to: i64) -> rusqlite::Result<()> {
    connection.execute("delete from pending where id <= ?", [up_to]).map(drop)
}

pub(super) fn settle_these(connection: &Connection, numbers: &[i64]) -> rusqlite::Result<()> {
    let settle = "delete from pending where id = ?1 and (?2 or kind <> 'path' or not exists (select 1 from pending other \
         where other.cache = pending.cache and other.kind = 'path' and other.name = pending.name and other.id <> ?1))";
    let whatever = !holds(Rule::SettleAlone) || !holds(Rule::Renumbered);
    let mut settle = connection.prepare_cached(settle)?;
    numbers.iter().try_for_each(|number| settle.execute(params![number, whatever]).map(drop))
}

/// Gives entries of narinfos new numbers, and one for all of the same narinfo.
pub(super) fn take_over(connection: &Connection, numbers: &[i64]) -> rusqlite::Result<Vec<(i64, CacheId, HashPart)>> {
    let mut take =
        connection.prepare_cached("delete from pending where id = ? and kind = 'path' returning cache, name")?;
    let mut taken = BTreeSet::new();
    for number in numbers {
        let row = |row: &Row<'_>| Ok((CacheId(row.get(0)?), parsed::<HashPart>(row, 1)?));
        taken.extend(take.query_row([number], row).optional()?);
    }
    let again =
        |(cache, part): (CacheId, HashPart)| Ok((add_pending(connection, cache, "path", part.as_str())?, cache, part));
    taken.into_iter().map(again).collect()
}

pub(super) fn settle_alone(
    connection: &Connection,
    cache: CacheId,
    parts: &[HashPart],
    up_to: i64,
) -> rusqlite::Result<()> {
    let settle = "delete from pending where cache = ?1 and kind = 'path' and name = ?2 and id <= ?4 \
         and (?3 or (select count(*) from pending where cache = ?1 and kind = 'path' and name = ?2) = 1)";
    let (mut settle, whatever) = (connection.prepare_cached(settle)?, !holds(Rule::SettleAlone));
    let up_to = if holds(Rule::SettleOwn) { up_to } else { i64::MAX };
    parts.iter().try_for_each(|part| settle.execute(params![cache.0, part.as_str(), whatever, up_to]).map(drop))
}

/// The greatest number of a pending entry, after a commit.
pub(super) fn number_of(connection: &Connection, commit: Commit) -> rusqlite::Result<Option<i64>> {
    match commit {
        Commit::Done => Ok(Some(pending_max(connection)?.unwrap_or_default())),
        Commit::Changed => Ok(None),
    }
}

pub(super) fn settle_file(connection: &Connection, cache: CacheId, name: &str, number: i64) -> rusqlite::Result<bool> {
    // Otherwise the entries of others stay: their files may not be stored yet.
    let is_there = connection.prepare_cached("select 1 from pending where id = ?")?.exists([number])?;
    if is_there {
        forget_pending_file(connection, cache, name)?;
    }
    Ok(is_there)
}

/// Removes the pending entries of a name below `nar/`.
pub(super) fn forget_pending_file(connection: &Connection, cache: CacheId, name: &str) -> rusqlite::Result<()> {
    let forget = "delete from pending where cache = ? and kind = 'file' and name = ?";
    connection.prepare_cached(forget)?.execute(params![cache.0, name]).map(drop)
}

/// Whether this is the only pending entry of a name below `nar/`; if no narinfo may name it, whether it is the last one and none does.
pub(super) fn is_still_lost(
    connection: &Connection,
    cache: CacheId,
    name: &str,
    (entry, is_named): (i64, bool),
) -> rusqlite::Result<bool> {
    let query = "select max(id) = ?3 and iif(?4, min(id) = ?3, exists (select 1 from files where cache = ?1 and name = ?2 \
           and orphaned is not null)) from pending where cache = ?1 and kind = 'file' and name = ?2";
    let key = params![cache.0, name, entry, is_named];
    let is_lost: Option<bool> = connection.prepare_cached(query)?.query_row(key, |row| row.get(0))?;
    Ok(is_lost.unwrap_or(false))
}

/// The number of the oldest pending entry of a name below `nar/`.
pub(super) fn oldest_pending(connection: &Connection, cache: CacheId, name: &str) -> rusqlite::Result<Option<i64>> {
    let query = "select min(id) from pending where cache = ? and kind = 'file' and name = ?";
    connection.prepare_cached(query)?.query_row(params![cache.0, name], |row| row.get(0))
}

pub(super) fn pending_max(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached("select max(id) from pending")?
        .query_row([], |row| row.get(0))
        .optional()
        .map(Option::flatten)
}

/// Parses a text column.
pub(super) fn parsed<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    convert(row.get::<_, String>(column)?.parse(), column)
}

fn convert<T, E>(parsed: Result<T, E>, column: usize) -> rusqlite::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    parsed.map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// Concatenates hash parts.
pub(super) fn join(parts: &[HashPart]) -> String {
    parts.iter().map(HashPart::as_str).collect()
}
