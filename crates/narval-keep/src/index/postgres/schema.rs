//! Tables in PostgreSQL.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::failed::{Failed, describe};
use super::pool::Connection;
use super::sql::{execute, get, p, parsed, query_opt};
use super::transaction::Change;
use crate::index::IndexError;
use crate::index::schema::{TABLES, VERSION, tables};

/// PostgreSQL 13: `pg_current_snapshot`, and transaction ids that never come again.
const SERVER_MIN: i32 = 130_000;

/// How long the creation of the tables may take, by whichever node.
const CREATE_MAX: Duration = Duration::from_secs(60);

/// Begins that. One node at a time does it, and one that is paused meanwhile does not keep the others from it.
pub(super) const BEGIN: &str = "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'; \
     select pg_advisory_xact_lock(7021802517)";

/// What only PostgreSQL has: [`super::watch`]'s `changes` in place of a number that every commit would wait for, the audit log, and the nodes that
/// share disk caches with the sizes of these.
const OWN: &str = r#"
create table narval.meta (key text primary key, value text not null);
-- One row for each transaction that readers can see; removed after an hour.
create table narval.changes (
  {id}, xid xid8 not null default pg_current_xact_id(), node text not null, at timestamptz not null default now());
create index changes_by_xid on narval.changes (xid);
create table narval.audit (
  {id}, time bigint not null, token text not null, label text not null, peer text, cache text, action text not null,
  subject text not null, result text not null, detail text not null);
create index audit_by_time on narval.audit (time);
-- Bytes of NARs are counted by whichever statement adds or removes some.
create function narval.count_nars() returns trigger language plpgsql as $$ begin
  update narval.caches as c set bytes = greatest(0, c.bytes + case tg_op when 'INSERT' then n.bytes else -n.bytes end)
    from (select cache, sum(file_size + coalesce(listing_size, 0))::bigint as bytes from changed group by cache) n where c.id = n.cache;
  return null;
end $$;
create trigger nars_added after insert on narval.nars referencing new table as changed for each statement execute function narval.count_nars();
create trigger nars_removed after delete on narval.nars referencing old table as changed for each statement execute function narval.count_nars();
create table narval.nodes (id {text} primary key, url text not null, weight bigint not null, seen timestamptz not null);
"#;

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

/// Makes the tables when they are missing.
pub(super) fn prepare(connection: &mut Connection, name: &str) -> Result<(), IndexError> {
    let unusable = |reason: String| IndexError::Unusable { database: name.to_owned(), reason };
    let found = connection.run(CREATE_MAX, async |client| match look(client).await? {
        Found { server: SERVER_MIN.., version: None, .. } => create(client).await,
        found => Ok(found),
    });
    let found = found.map_err(|error| match &error {
        Failed::Sql(sql) if sql.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => unusable(format!(
            "{}: let the user make tables ('grant create on database … to …'), or make the schema for it ('create schema narval \
             authorization …')",
            describe(sql)
        )),
        _ => error.at(name),
    })?;
    match found.version {
        Some(VERSION) => Ok(()),
        Some(found) => {
            Err(IndexError::Version { index: name.to_owned(), found, with: " and '--database' of an empty one" })
        }
        None => {
            Err(unusable(format!("it is PostgreSQL {}, and 13 is the oldest that can be used", found.server / 10_000)))
        }
    }
}

struct Found {
    /// The version of the server.
    server: i32,
    has_schema: bool,
    /// That of the tables, if there are any.
    version: Option<u32>,
}

async fn look(client: &Client) -> Result<Found, Failed> {
    // By the tables: what a session remembers of names may be older than the lock that it has just got.
    let query = "select current_setting('server_version_num'), exists (select from pg_namespace where nspname = 'narval'), \
         exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'narval' and c.relname = 'meta')";
    let row = query_opt(client, query, &[]).await?.ok_or(Failed::Changed)?;
    let mut found = Found { server: parsed(&row, 0)?, has_schema: get(&row, 1)?, version: None };
    if get(&row, 2)? {
        let row = query_opt(client, "select value from narval.meta where key = 'version'", &[]).await?;
        found.version = Some(row.map_or(Ok(0), |row| parsed(&row, 0))?);
    }
    Ok(found)
}

async fn create(client: &Client) -> Result<Found, Failed> {
    client.batch_execute(BEGIN).await?;
    // Another node may have been faster.
    let mut found = look(client).await?;
    if found.version.is_none() {
        if !found.has_schema {
            client.batch_execute("create schema narval").await?;
        }
        let types = [
            ("{id}", "id bigint generated always as identity primary key"),
            ("{text}", "text collate \"C\""),
            ("{bytes}", "bytea"),
            ("{rowless}", ""),
        ];
        client.batch_execute(&[tables(TABLES, types), tables(OWN, types)].concat()).await?;
        let set = "insert into narval.meta values ('version', $1)";
        execute(client, set, &[p(&VERSION.to_string())]).await?;
        found.version = Some(VERSION);
    }
    client.batch_execute("commit").await?;
    Ok(found)
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
    change.client.batch_execute("lock table narval.nars in access exclusive mode").await?;
    let is_free =
        "select exists (select from narval.meta where key = 'rebuilding') or not exists (select from narval.nars)";
    let row = query_opt(change.client, is_free, &[]).await?.ok_or(Failed::Changed)?;
    if !get::<bool>(&row, 0)? {
        return Ok(false);
    }
    // Numbers are not used again: servers may remember some.
    let empty = "truncate narval.caches, narval.nars, narval.garbage, narval.former, narval.paths, narval.refs, narval.leases, narval.pins, narval.tokens, \
         narval.pending, narval.collected, narval.audit, narval.nodes, narval.writers, narval.lost, narval.releases, narval.machines, narval.jobs, \
         narval.sign_keys; \
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
