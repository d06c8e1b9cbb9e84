//! Tables, and how they are made and changed: by one node at a time, while others of this version and the one before go on.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::failed::{Failed, describe};
use super::lease::Lease;
use super::pool::Connection;
use super::sql::{execute, get, p, parsed, query_opt};
use super::transaction::Change;
use crate::index::IndexError;

/// The version of [`TABLES`].
pub(super) const VERSION: u32 = 14;

/// The oldest version that can work with these tables. A change that nodes of the version before do not notice leaves it as it is.
const COMPATIBLE: u32 = 14;

/// PostgreSQL 13: `pg_current_snapshot`, and transaction ids that never come again.
const SERVER_MIN: i32 = 130_000;

/// How long another node may take to change tables.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How often is looked whether it is done.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a change of the tables may take.
const CHANGE_MAX: Duration = Duration::from_secs(600);

/// How long the lease lasts that is taken for it. It only has to last until the transaction of the change has locked its row: from then on,
/// whoever wants it waits for the end of that.
const LEASE: Duration = Duration::from_secs(15);

/// What the lease of a change needs.
const FIRST: &str = "
create schema if not exists narval;
create table if not exists narval.meta (key text primary key, value text not null);
create table if not exists narval.leases_of_work (
  name text primary key, owner text not null, fence bigint not null, until timestamptz not null);
";

/// As the tables of SQLite, with [`super::watch`]'s `changes` in place of a number that every commit would wait for.
const TABLES: &str = r#"
create table narval.caches (
  id bigint generated always as identity primary key,
  name text collate "C" unique not null, settings text not null, created bigint not null,
  -- Bytes of NARs in it and of their listings, each counted once.
  bytes bigint not null default 0);

-- One row for each NarHash and compression.
create table narval.nars (
  id bigint generated always as identity primary key,
  nar_hash bytea not null, compression text not null, nar_size bigint not null,
  file_hash bytea not null, file_size bigint not null, listing_size bigint,
  -- Hash parts that the scan found, one after another.
  found text not null,
  unique (nar_hash, compression));

-- Names below a cache's nar/. Several may mean one NAR.
create table narval.files (
  cache bigint not null references narval.caches (id), name text collate "C" not null,
  nar bigint not null references narval.nars (id),
  added bigint not null, used bigint not null,
  -- Since when no narinfo names it; null while one does.
  orphaned bigint,
  primary key (cache, name));
create index files_by_nar on narval.files (nar, cache);
create index files_orphaned on narval.files (orphaned) where orphaned is not null;

create table narval.paths (
  id bigint generated always as identity primary key,
  cache bigint not null references narval.caches (id),
  hash_part text collate "C" not null, path text collate "C" not null,
  nar_hash bytea not null, file text collate "C" not null, narinfo bytea not null, listing_size bigint,
  version bigint not null, added bigint not null, used bigint not null,
  unique (cache, hash_part));
create index paths_by_file on narval.paths (cache, file);

-- A reference names a hash part: it may be a path of an upstream.
create table narval.refs (
  referrer bigint not null references narval.paths (id) on delete cascade, reference text collate "C" not null,
  primary key (referrer, reference));
create index refs_by_reference on narval.refs (reference);

create table narval.leases (
  cache bigint not null references narval.caches (id), hash_part text collate "C" not null, until bigint not null,
  primary key (cache, hash_part));

create table narval.pins (
  id bigint generated always as identity primary key,
  cache bigint not null references narval.caches (id),
  name text collate "C" not null, hash_part text collate "C" not null, path text collate "C" not null,
  created bigint not null, until bigint, keep bigint);
create index pins_by_name on narval.pins (cache, name);

create table narval.tokens (
  id text primary key, hash bytea not null, label text not null, scopes text not null, caches text not null,
  created bigint not null, expires bigint, last_used bigint, revoked bigint);

-- What a process that is killed may have left undone with files.
create table narval.pending (
  id bigint generated always as identity primary key, cache bigint not null references narval.caches (id),
  kind text not null, name text not null);

-- One row for each transaction that readers can see; removed after an hour.
create table narval.changes (
  id bigint generated always as identity primary key,
  xid xid8 not null default pg_current_xact_id(), node text not null, at timestamptz not null default now());
create index changes_by_xid on narval.changes (xid);
"#;

/// From version 1: what collections of several nodes need. Nodes of version 1 go on with these columns.
const FROM_1: &str = "
-- Since when it is to be removed: 0 if its path was deleted. Null again when somebody wants it.
alter table narval.files add column doomed bigint;
-- The number of the collection that is removing its bytes. Counts only while no narinfo names it.
alter table narval.files add column fence bigint;
alter table narval.nars add column fence bigint;
create index files_fenced on narval.files (cache) where fence is not null or doomed = 0;
-- When caches were last collected, by whichever node.
create table narval.collected (cache bigint primary key references narval.caches (id), at timestamptz not null);
";

/// From version 2: the audit log, which nodes of versions before leave alone.
const FROM_2: &str = "
create table narval.audit (
  id bigint generated always as identity primary key,
  time bigint not null, token text not null, label text not null, peer text, cache text, action text not null,
  subject text not null, result text not null, detail text not null);
create index audit_by_time on narval.audit (time);
";

/// From version 3: the nodes that share disk caches, which nodes of versions before do not.
const FROM_3: &str = "
create table narval.nodes (id text collate \"C\" primary key, url text not null, seen timestamptz not null);
";

/// From version 4: the sizes of their disk caches. Nodes of version 4 leave it null.
const FROM_4: &str = "
alter table narval.nodes add column weight bigint;
";

/// From version 5: processes that store objects before they record their names, and by whose keys their receipts are authenticated. Nodes of
/// versions before record names first, and their collections take the same lease.
const FROM_5: &str = "
create table narval.writers (
  id bigint generated always as identity primary key, cache bigint not null references narval.caches (id),
  key bytea not null, begun timestamptz not null default now(), seen timestamptz not null default now());
";

/// From version 6: entries are looked up by their names, one for each narinfo of a commit.
const FROM_6: &str = "
create index pending_by_name on narval.pending (cache, kind, name, id);
-- Paths that were removed because their NARs were not there, and those NARs: for a day, in case they are found again.
create table narval.lost (
  cache bigint not null references narval.caches (id), hash_part text collate \"C\" not null, narinfo bytea not null,
  file text collate \"C\" not null, nar_hash bytea not null, nar_size bigint not null, compression text not null,
  file_hash bytea not null, file_size bigint not null, listing_size bigint, found text not null,
  at timestamptz not null default now(), primary key (cache, hash_part));
";

/// From version 7: no table refers to caches, which are never removed. Each row that is added would look at the row of its cache, of which each push
/// makes a new version; all of them are kept and passed until the longest transaction ends.
const FROM_7: &str = "
alter table narval.files drop constraint if exists files_cache_fkey;
alter table narval.paths drop constraint if exists paths_cache_fkey;
alter table narval.leases drop constraint if exists leases_cache_fkey;
alter table narval.pins drop constraint if exists pins_cache_fkey;
alter table narval.pending drop constraint if exists pending_cache_fkey;
alter table narval.collected drop constraint if exists collected_cache_fkey;
alter table narval.writers drop constraint if exists writers_cache_fkey;
alter table narval.lost drop constraint if exists lost_cache_fkey;
";

/// From version 8: times are seconds, as in the tables of SQLite. Nodes of versions before cannot read them.
const FROM_8: &str = "
create table narval.work (name text primary key, owner text not null, fence bigint not null, until bigint not null);
insert into narval.work select name, owner, fence, case when isfinite(until) then extract(epoch from until)::bigint else 0 end
  from narval.leases_of_work where name <> 'schema';
delete from narval.leases_of_work where name <> 'schema';
create index pins_by_path on narval.pins (cache, hash_part);
alter table narval.collected alter column at type bigint using extract(epoch from at)::bigint;
alter table narval.lost alter column at drop default, alter column at type bigint using extract(epoch from at)::bigint;
alter table narval.writers alter column begun drop default, alter column begun type bigint using extract(epoch from begun)::bigint,
  alter column seen drop default, alter column seen type bigint using extract(epoch from seen)::bigint;
";

/// From version 9: nobody has a lock of all tables any more, for which nodes of versions before wait in vain.
const FROM_9: &str = "";

/// From version 10: releases, and the id of a cache that they name. Nodes of version 10 know no releases, and leave the pins alone that keep them.
const FROM_10: &str = "
alter table narval.caches add column uid text;
-- One row for each system. `hold` names the pins that keep its paths; `record` is empty for the last one of a name that was forgotten.
create table narval.releases (
  cache bigint not null, name text collate \"C\" not null, revision bigint not null, system text collate \"C\" not null,
  version text, created bigint not null, pinned bigint not null, hold text collate \"C\" not null, record text not null,
  primary key (cache, name, revision, system));
create index releases_by_hold on narval.releases (cache, hold);
";

/// From version 11: machines that follow releases, of which nodes of version 11 know nothing.
const FROM_11: &str = "
create table narval.machines (
  cache bigint not null, name text collate \"C\" not null, release text collate \"C\" not null, seen bigint not null, token text not null,
  report text not null, primary key (cache, name, release));
create index machines_by_seen on narval.machines (cache, seen);
";

/// From version 12: releases that are for some machines. `request` is what a request for a release had as its key. Nodes of version 12 record releases
/// for all, and clients refuse what they answer for some: they leave out a part of what was signed.
const FROM_12: &str = "
alter table narval.releases add column percent bigint;
alter table narval.releases add column request text;
";

/// From version 13, in which all caches had one row for a NAR: what one of them uploaded decided what the others served and counted.
const FROM_13: &str = "
alter table narval.nars add column cache bigint, drop constraint nars_nar_hash_compression_key;
update narval.nars n set cache = f.cache from (select nar, min(cache) as cache from narval.files group by nar) f where f.nar = n.id;
delete from narval.nars where cache is null;
insert into narval.nars (cache, nar_hash, compression, nar_size, file_hash, file_size, listing_size, found, fence)
  select distinct f.cache, nar_hash, compression, nar_size, file_hash, file_size, listing_size, found, n.fence
  from narval.files f join narval.nars n on n.id = f.nar and n.cache <> f.cache;
alter table narval.nars alter column cache set not null, add unique (cache, nar_hash, compression);
update narval.files f set nar = own.id from narval.nars n, narval.nars own
  where n.id = f.nar and n.cache <> f.cache and own.cache = f.cache and own.nar_hash = n.nar_hash and own.compression = n.compression;
-- Files that all caches shared are gone.
delete from narval.pending where kind = 'blob';
";

/// Settings of the database with which a crash loses what was acknowledged.
pub(super) async fn doubts(client: &Client) -> Result<Vec<String>, Failed> {
    let query =
        "select current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes')";
    let row = query_opt(client, query, &[]).await?.ok_or(Failed::Changed)?;
    let [commit, fsync, pages]: [String; 3] = [get(&row, 0)?, get(&row, 1)?, get(&row, 2)?];
    let mut doubts = Vec::new();
    if !["on", "remote_apply"].contains(&&*commit) {
        doubts.push(format!(
            "synchronous_commit is '{commit}' for this user: what must survive a crash is committed with 'on' all the same"
        ));
    }
    for (name, _) in [("fsync", fsync), ("full_page_writes", pages)].iter().filter(|(_, value)| value == "off") {
        doubts.push(format!(
            "{name} is off: a crash of its machine may destroy it. Set '{name} = on' in postgresql.conf"
        ));
    }
    Ok(doubts)
}

/// Makes the tables when they are missing, and brings older ones up to date.
pub(super) fn prepare(
    connection: &mut Connection,
    owner: &str,
    name: &str,
    patience: Duration,
) -> Result<(), IndexError> {
    let until = Instant::now() + patience;
    loop {
        let found = connection.run(CHANGE_MAX, async |client| look(client).await).map_err(|error| error.at(name))?;
        match found {
            Found::Server(version) => {
                let reason = format!("it is PostgreSQL {}, and 13 is the oldest that can be used", version / 10_000);
                return Err(IndexError::Unusable { database: name.to_owned(), reason });
            }
            Found::Tables { version, compatible } if compatible > VERSION => {
                return Err(IndexError::Newer { index: name.to_owned(), found: version, known: VERSION });
            }
            Found::Tables { version, .. } if version >= VERSION => return Ok(()),
            Found::Tables { .. } | Found::Nothing => {}
        }
        match connection.run(CHANGE_MAX, async |client| change(client, owner).await) {
            Ok(()) => {}
            Err(Failed::Changed) if Instant::now() >= until => {
                let holder = connection.run(PATIENCE, async |client| Lease::holder(client, "schema").await);
                let holder = holder.map_err(|error| error.at(name))?;
                let (owner, until) = holder.unwrap_or_else(|| ("another process".to_owned(), "now".to_owned()));
                let reason = format!(
                    "{owner} creates or changes its tables, and has the right to do so until {until}; try again then"
                );
                return Err(IndexError::Unusable { database: name.to_owned(), reason });
            }
            Err(error) if Instant::now() >= until => return Err(error.at(name)),
            // Another node is doing the same.
            Err(Failed::Changed) => std::thread::sleep(LOOK_EVERY),
            Err(error) if error.is_collision() => std::thread::sleep(LOOK_EVERY),
            Err(Failed::Sql(error)) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                let reason = format!(
                    "{}: let the user make tables ('grant create on database … to …'), or make the schema for it ('create schema narval \
                     authorization …')",
                    describe(&error)
                );
                return Err(IndexError::Unusable { database: name.to_owned(), reason });
            }
            Err(error) => return Err(error.at(name)),
        }
    }
}

enum Found {
    /// The server is too old.
    Server(i32),
    /// There are no tables.
    Nothing,
    /// Tables of this version, which nodes from `compatible` on can use.
    Tables { version: u32, compatible: u32 },
}

async fn look(client: &Client) -> Result<Found, Failed> {
    let server: i32 = match query_opt(client, "select current_setting('server_version_num')", &[]).await? {
        Some(row) => parsed(&row, 0)?,
        None => 0,
    };
    if server < SERVER_MIN {
        return Ok(Found::Server(server));
    }
    let is_there = query_opt(client, "select 1 where to_regclass('narval.meta') is not null", &[]).await?;
    if is_there.is_none() {
        return Ok(Found::Nothing);
    }
    let query =
        "select (select value from narval.meta where key = 'version'), value from narval.meta where key = 'compatible'";
    match query_opt(client, query, &[]).await? {
        Some(row) => Ok(Found::Tables { version: parsed(&row, 0)?, compatible: parsed(&row, 1)? }),
        None => Ok(Found::Nothing),
    }
}

/// Takes the lease, and does in one transaction what is to be done.
async fn change(client: &Client, owner: &str) -> Result<(), Failed> {
    // Two nodes that make them at the same time collide, in spite of `if not exists`.
    client.batch_execute(FIRST).await?;
    let Some(lease) = Lease::take(client, "schema", owner, LEASE).await? else { return Err(Failed::Changed) };
    let changed = in_transaction(client, async || {
        lease.check(client).await?;
        // Another node may have been faster.
        let found = match look(client).await? {
            Found::Nothing => {
                client.batch_execute(TABLES).await?;
                1
            }
            Found::Tables { version, .. } => version,
            Found::Server(_) => return Ok(()),
        };
        if found >= VERSION {
            return Ok(());
        }
        // What the version of the same number is brought up to date by.
        let steps = [
            "", FROM_1, FROM_2, FROM_3, FROM_4, FROM_5, FROM_6, FROM_7, FROM_8, FROM_9, FROM_10, FROM_11, FROM_12,
            FROM_13,
        ];
        for step in steps.iter().skip(found as usize) {
            client.batch_execute(step).await?;
        }
        for (key, value) in [("version", VERSION), ("compatible", COMPATIBLE)] {
            let set = "insert into narval.meta values ($1, $2) on conflict (key) do update set value = excluded.value";
            execute(client, set, &[p(&key), p(&value.to_string())]).await?;
        }
        Ok(())
    });
    let changed = changed.await;
    lease.end(client).await?;
    changed
}

async fn in_transaction<T>(client: &Client, work: impl AsyncFnOnce() -> Result<T, Failed>) -> Result<T, Failed> {
    client.batch_execute("begin isolation level read committed").await?;
    match work().await {
        Ok(done) => client.batch_execute("commit").await.map(|()| done).map_err(Failed::from),
        Err(error) => {
            client.batch_execute("rollback").await?;
            Err(error)
        }
    }
}

/// The id of the folder that the index is of: `mine`, if it is of none yet.
pub(super) async fn folder(client: &Client, mine: &str) -> Result<String, Failed> {
    let add = "insert into narval.meta values ('folder', $1) on conflict (key) do nothing";
    execute(client, add, &[p(&mine)]).await?;
    let row = query_opt(client, "select value from narval.meta where key = 'folder'", &[]).await?;
    row.map_or_else(|| Err(Failed::Changed), |row| get(&row, 0))
}

/// Empties the tables, and notes that they must not be used until [`end_rebuild`]. Returns `false` if they have contents, and that was not noted
/// before.
pub(super) async fn begin_rebuild(change: &Change<'_>) -> Result<bool, Failed> {
    // Nobody adds any meanwhile.
    change.client.batch_execute("lock table narval.files in access exclusive mode").await?;
    let is_free =
        "select exists (select from narval.meta where key = 'rebuilding') or not exists (select from narval.files)";
    let row = query_opt(change.client, is_free, &[]).await?.ok_or(Failed::Changed)?;
    if !get::<bool>(&row, 0)? {
        return Ok(false);
    }
    // Numbers are not used again: servers may remember some.
    let empty = "truncate narval.caches, narval.nars, narval.files, narval.paths, narval.refs, narval.leases, narval.pins, narval.tokens, \
         narval.pending, narval.collected, narval.audit, narval.nodes, narval.writers, narval.lost, narval.releases, narval.machines; \
         insert into narval.meta values ('rebuilding', '') on conflict do nothing";
    change.client.batch_execute(empty).await?;
    change.is_visible().await?;
    Ok(true)
}

/// The tables are complete.
pub(super) async fn end_rebuild(change: &Change<'_>) -> Result<(), Failed> {
    execute(change.client, "delete from narval.meta where key = 'rebuilding'", &[]).await?;
    change.is_visible().await
}
