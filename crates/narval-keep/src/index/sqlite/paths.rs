//! Paths, their references, and leases.

use narval_nix::HashPart;
use rusqlite::{Connection, OptionalExtension, params};

use super::nars::CONDEMNED;
use super::schema::{add_pending, is_visible};
use crate::index::{CacheId, Commit, PathRecord};

pub(super) fn is_present(connection: &Connection, cache: CacheId, hash_part: &HashPart) -> rusqlite::Result<bool> {
    let query = "select 1 from paths where cache = ? and hash_part = ?";
    connection.prepare_cached(query)?.exists(params![cache.0, hash_part.as_str()])
}

pub(super) fn commit(
    connection: &Connection,
    cache: CacheId,
    paths: &[PathRecord],
    now: u64,
) -> rusqlite::Result<Commit> {
    // All versions are checked before the first change, so that a conflict leaves nothing to undo.
    if have_changed(connection, cache, paths)? || !have_files(connection, cache, paths)? {
        return Ok(Commit::Changed);
    }
    for path in paths {
        write(connection, cache, path, now)?;
    }
    is_visible(connection)?;
    Ok(Commit::Done)
}

/// Whether one of these paths has another version than its record.
fn have_changed(connection: &Connection, cache: CacheId, paths: &[PathRecord]) -> rusqlite::Result<bool> {
    let query = "select version from paths where cache = ? and hash_part = ?";
    let mut statement = connection.prepare_cached(query)?;
    for path in paths {
        let version: Option<i64> =
            statement.query_row(params![cache.0, path.hash_part.as_str()], |row| row.get(0)).optional()?;
        if version.unwrap_or(0) != path.version {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the NARs of these paths are there, and not condemned.
fn have_files(connection: &Connection, cache: CacheId, paths: &[PathRecord]) -> rusqlite::Result<bool> {
    let query = format!("select 1 from files f where cache = ? and name = ? and not {CONDEMNED}");
    let mut statement = connection.prepare_cached(&query)?;
    for path in paths {
        if !statement.exists(params![cache.0, path.file])? {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn rename(
    connection: &Connection,
    cache: CacheId,
    paths: &[PathRecord],
    old: &str,
    orphaned: u64,
) -> rusqlite::Result<Commit> {
    if have_changed(connection, cache, paths)? || !have_files(connection, cache, paths)? {
        return Ok(Commit::Changed);
    }
    for path in paths {
        let change =
            "update paths set file = ?1, narinfo = ?2, version = version + 1 where cache = ?3 and hash_part = ?4";
        let part = path.hash_part.as_str();
        connection.prepare_cached(change)?.execute(params![path.file, path.narinfo, cache.0, part])?;
        let adopt = "update files set orphaned = null, doomed = null where cache = ? and name = ?";
        connection.prepare_cached(adopt)?.execute(params![cache.0, path.file])?;
        add_pending(connection, cache, "path", part)?;
    }
    orphan(connection, cache, old, orphaned)?;
    is_visible(connection)?;
    Ok(Commit::Done)
}

fn write(connection: &Connection, cache: CacheId, path: &PathRecord, now: u64) -> rusqlite::Result<()> {
    let part = path.hash_part.as_str();
    let old: Option<String> = connection
        .prepare_cached("select file from paths where cache = ? and hash_part = ?")?
        .query_row(params![cache.0, part], |row| row.get(0))
        .optional()?;
    let upsert = "insert into paths \
         (cache, hash_part, path, nar_hash, file, narinfo, listing_size, version, added, used) \
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, ?8, ?8) on conflict (cache, hash_part) do update set \
         path = excluded.path, nar_hash = excluded.nar_hash, file = excluded.file, narinfo = excluded.narinfo, \
         listing_size = excluded.listing_size, version = version + 1, used = excluded.used returning id";
    let id: i64 = connection.prepare_cached(upsert)?.query_row(
        params![cache.0, part, path.path, path.nar_hash.as_bytes(), path.file, path.narinfo, path.listing_size, now],
        |row| row.get(0),
    )?;
    connection.prepare_cached("delete from refs where referrer = ?")?.execute([id])?;
    let mut add =
        connection.prepare_cached("insert into refs (referrer, reference) values (?, ?) on conflict do nothing")?;
    for reference in &path.references {
        add.execute(params![id, reference.as_str()])?;
    }
    let adopt = "update files set orphaned = null, doomed = null, used = ? where cache = ? and name = ?";
    connection.prepare_cached(adopt)?.execute(params![now, cache.0, path.file])?;
    if let Some(old) = old.filter(|old| *old != path.file) {
        orphan(connection, cache, &old, now)?;
    }
    add_pending(connection, cache, "path", part).map(drop)
}

/// Marks a file as orphaned if no narinfo names it any more.
pub(super) fn orphan(connection: &Connection, cache: CacheId, file: &str, now: u64) -> rusqlite::Result<()> {
    let orphan = "update files set orphaned = ?1, doomed = null where cache = ?2 and name = ?3 \
         and not exists (select 1 from paths where cache = ?2 and file = ?3)";
    connection.prepare_cached(orphan)?.execute(params![now, cache.0, file]).map(drop)
}

pub(super) fn lease(
    connection: &Connection,
    cache: CacheId,
    hash_parts: &[HashPart],
    until: u64,
) -> rusqlite::Result<Vec<HashPart>> {
    let lease = "insert into leases (cache, hash_part, until) select cache, hash_part, ?3 from paths where cache = ?1 and hash_part = ?2 \
         on conflict do update set until = max(until, excluded.until)";
    let mut statement = connection.prepare_cached(lease)?;
    let mut leased = Vec::new();
    for part in hash_parts {
        if statement.execute(params![cache.0, part.as_str(), until])? > 0 {
            leased.push(*part);
        }
    }
    Ok(leased)
}
