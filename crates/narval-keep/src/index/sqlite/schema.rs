//! Tables, and how they are made and changed.

use std::path::Path;

use rusqlite::Connection;

use super::sql_error;
use crate::index::IndexError;

/// The version of [`SCHEMA`], in SQLite's `user_version`.
const VERSION: u32 = 10;

/// Times are seconds since 1970; hash parts are their 32 characters.
const SCHEMA: &str = "
create table meta (key text primary key not null, value integer not null) without rowid;
insert into meta values ('stamp', 1);

create table caches (
  id integer primary key autoincrement not null, name text unique not null, settings text not null,
  created integer not null,
  -- Bytes of NARs in it and of their listings, each counted once.
  bytes integer not null default 0);

-- One row for each NarHash and compression.
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

/// Migrates from version 5: who has the lease of a work, and pins by their paths, which a collection asks for.
const FROM_5: &str = "
create index pins_by_path on pins (cache, hash_part);
alter table work add column owner text not null default 'another process';
";

/// Migrates from version 6: releases, and the id of a cache that they name, which stays when its files are moved.
const FROM_6: &str = "
alter table caches add column uid text;
-- One row for each system. `hold` names the pins that keep its paths; `record` is empty for the last one of a name that was forgotten.
create table releases (
  cache integer not null references caches (id), name text not null, revision integer not null, system text not null,
  version text, created integer not null, pinned integer not null, hold text not null, record text not null,
  primary key (cache, name, revision, system)) without rowid;
create index releases_by_hold on releases (cache, hold);
";

/// Migrates from version 7: machines that follow releases.
const FROM_7: &str = "
create table machines (
  cache integer not null references caches (id), name text not null, release text not null, seen integer not null, token text not null,
  report text not null, primary key (cache, name, release)) without rowid;
create index machines_by_seen on machines (cache, seen);
";

/// Migrates from version 8: releases that are for some machines. `request` is what a request for a release had as its key.
const FROM_8: &str = "
alter table releases add column percent integer;
alter table releases add column request text;
";

/// Migrates from version 9, in which all caches had one row for a NAR: what one of them uploaded decided what the others served and counted.
const FROM_9: &str = "
create table own_nars (
  id integer primary key autoincrement not null, cache integer not null references caches (id),
  nar_hash blob not null, compression text not null, nar_size integer not null,
  file_hash blob not null, file_size integer not null, listing_size integer, found text not null, fence integer,
  unique (cache, nar_hash, compression));
insert into own_nars select n.id, f.cache, nar_hash, compression, nar_size, file_hash, file_size, listing_size, found, n.fence
  from nars n join (select nar, min(cache) as cache from files group by nar) f on f.nar = n.id;
insert into own_nars (cache, nar_hash, compression, nar_size, file_hash, file_size, listing_size, found, fence)
  select distinct f.cache, nar_hash, compression, nar_size, file_hash, file_size, listing_size, found, n.fence
  from files f join own_nars n on n.id = f.nar and n.cache <> f.cache;
update files set nar = (select own.id from own_nars n join own_nars own on own.cache = files.cache and own.nar_hash = n.nar_hash
    and own.compression = n.compression where n.id = files.nar)
  where cache <> (select n.cache from own_nars n where n.id = files.nar);
drop table nars;
alter table own_nars rename to nars;
-- Files that all caches shared are gone.
delete from pending where kind = 'blob';
";

/// Creates missing tables, and migrates older ones.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), IndexError> {
    let fail = |error| sql_error(path, &error);
    let version = |connection: &Connection| -> rusqlite::Result<u32> {
        connection.pragma_query_value(None, "user_version", |row| row.get(0))
    };
    let mut found = version(connection).map_err(fail)?;
    if found < VERSION {
        // A table that others refer to is made again.
        connection.pragma_update(None, "foreign_keys", false).map_err(fail)?;
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(fail)?;
        // Another process may have migrated them meanwhile.
        found = version(&transaction).map_err(fail)?;
        if found < VERSION {
            // What the version of the same number is migrated by.
            let steps = [SCHEMA, FROM_1, FROM_2, FROM_3, FROM_4, FROM_5, FROM_6, FROM_7, FROM_8, FROM_9];
            let steps =
                steps.iter().enumerate().filter(|(from, _)| *from >= found as usize && (found > 0 || *from != 1));
            let mut steps = steps.map(|(_, step)| step);
            steps.try_for_each(|step| transaction.execute_batch(step)).map_err(fail)?;
            transaction.pragma_update(None, "user_version", VERSION).map_err(fail)?;
            found = VERSION;
        }
        transaction.commit().map_err(fail)?;
        connection.pragma_update(None, "foreign_keys", true).map_err(fail)?;
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

#[cfg(test)]
mod tests {
    use super::super::connect;
    use super::*;

    /// Caches that had one row for a NAR have one each, with all that it said.
    #[test]
    fn rows_that_caches_shared_are_split() {
        let (path, mut connection) = (Path::new(":memory:"), connect(Path::new(":memory:")).unwrap());
        for step in [SCHEMA, FROM_2, FROM_3, FROM_4, FROM_5, FROM_6, FROM_7, FROM_8] {
            connection.execute_batch(step).unwrap();
        }
        connection
            .execute_batch(
                "pragma user_version = 9;
                 insert into caches (name, settings, created, bytes) values ('a', '', 1, 5), ('b', '', 1, 12), ('c', '', 1, 5);
                 insert into nars values (4, x'01', 'zstd', 9, x'0a', 5, null, 'found', null), (7, x'02', 'xz', 9, x'0b', 7, 2, '', 3),
                   (8, x'03', 'xz', 9, x'0c', 7, 2, '', null);
                 insert into files (cache, name, nar, added, used) values (1, 'x', 4, 1, 1), (2, 'x', 4, 1, 1), (2, 'alias', 4, 1, 1),
                   (3, 'y', 4, 1, 1), (2, 'z', 7, 1, 1);
                 insert into pending (cache, kind, name) values (1, 'blob', 'x zstd'), (1, 'file', 'x');",
            )
            .unwrap();
        prepare(&mut connection, path).unwrap();
        let text = |query: &str| -> Vec<String> {
            let mut statement = connection.prepare(query).unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
        };
        let rows = "select format('%d %s is %s of %d: %s, %d', f.cache, name, compression, n.cache, hex(nar_hash) || hex(file_hash), \
             file_size + coalesce(listing_size, 0) + length(found)) from files f join nars n on n.id = f.nar order by f.cache, name";
        let expected = [
            "1 x is zstd of 1: 010A, 10",
            "2 alias is zstd of 2: 010A, 10",
            "2 x is zstd of 2: 010A, 10",
            "2 z is xz of 2: 020B, 9",
            "3 y is zstd of 3: 010A, 10",
        ];
        assert_eq!(text(rows), expected);
        assert_eq!(
            text("select cast(count(*) as text) from nars"),
            ["4"],
            "one for each cache, and none without a name"
        );
        assert_eq!(text("select kind from pending"), ["file"]);
        assert_eq!(text("select 'broken' from pragma_foreign_key_check"), Vec::<String>::new());
        assert_eq!(text("select cast(foreign_keys as text) from pragma_foreign_keys"), ["1"]);
    }
}
