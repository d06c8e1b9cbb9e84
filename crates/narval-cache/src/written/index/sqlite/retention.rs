//! Uses, pins, and garbage collection.

use std::collections::HashMap;

use narval_nix::HashPart;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::nars::remove_file;
use super::paths::orphan;
use super::schema::{add_pending, is_visible, parsed};
use crate::written::index::{CacheId, Cutoff, PinRecord, Snapshot, SnapshotPath, Used};

pub(super) fn used(connection: &Connection, used: &[Used]) -> rusqlite::Result<()> {
    let by_path = "update paths set used = max(used, ?) where cache = ? and hash_part = ?";
    let by_file = "update paths set used = max(used, ?) where cache = ? and file = ?";
    // A client that was told that a NAR is present may be about to send its narinfo.
    let orphan = "update files set used = max(used, ?) where cache = ? and name = ? and orphaned is not null";
    for Used { cache, path, file, time } in used {
        if let Some(part) = path {
            connection.prepare_cached(by_path)?.execute(params![time, cache.0, part.as_str()])?;
        }
        if let Some(name) = file {
            connection.prepare_cached(by_file)?.execute(params![time, cache.0, name])?;
            connection.prepare_cached(orphan)?.execute(params![time, cache.0, name])?;
        }
    }
    Ok(())
}

pub(super) fn snapshot(connection: &Connection, cache: CacheId) -> rusqlite::Result<Snapshot> {
    // A read transaction, for a consistent snapshot.
    let transaction = connection.unchecked_transaction()?;
    let query = "select p.id, p.hash_part, p.path, p.used, coalesce(n.id, 0), coalesce(n.file_size, 0), \
         coalesce(n.listing_size, 0) from paths p \
         left join files f on f.cache = p.cache and f.name = p.file left join nars n on n.id = f.nar where p.cache = ?";
    let mut statement = transaction.prepare_cached(query)?;
    let rows = statement.query_map([cache.0], |row| {
        let path = SnapshotPath {
            hash_part: parsed(row, 1)?,
            path: row.get(2)?,
            used: row.get(3)?,
            nar: row.get(4)?,
            file_size: row.get(5)?,
            listing_size: row.get(6)?,
            references: Vec::new(),
        };
        Ok((row.get::<_, i64>(0)?, path))
    })?;
    let (mut paths, mut by_id) = (Vec::new(), HashMap::new());
    for row in rows {
        let (id, path) = row?;
        by_id.insert(id, paths.len());
        paths.push(path);
    }
    drop(statement);
    let query = "select r.referrer, r.reference from refs r join paths p on p.id = r.referrer where p.cache = ?";
    let mut statement = transaction.prepare_cached(query)?;
    let mut rows = statement.query([cache.0])?;
    while let Some(row) = rows.next()? {
        let (referrer, reference): (i64, HashPart) = (row.get(0)?, parsed(row, 1)?);
        if let Some(path) = by_id.get(&referrer).and_then(|at| paths.get_mut(*at)) {
            path.references.push(reference);
        }
    }
    drop(rows);
    drop(statement);
    let mut statement = transaction.prepare_cached("select hash_part, until from leases where cache = ?")?;
    let leases = statement.query_map([cache.0], |row| Ok((parsed(row, 0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    drop(statement);
    let pins = pins(&transaction, cache)?;
    transaction.commit()?;
    Ok(Snapshot { paths, pins, leases })
}

pub(super) fn hide(
    connection: &Connection,
    cache: CacheId,
    paths: &[(HashPart, u64)],
    now: u64,
) -> rusqlite::Result<Vec<HashPart>> {
    let hide = "delete from paths where cache = ?1 and hash_part = ?2 and used <= ?3 \
         and not exists (select 1 from leases where cache = ?1 and hash_part = ?2 and until > ?4) \
         and not exists (select 1 from pins where cache = ?1 and hash_part = ?2 and (until is null or until > ?4)) \
         and not exists (select 1 from refs r join paths p on p.id = r.referrer \
           where r.reference = ?2 and p.cache = ?1 and p.hash_part <> ?2) returning file";
    let mut hidden = Vec::new();
    for (part, used) in paths {
        let key = params![cache.0, part.as_str(), used, now];
        let file: Option<String> = connection.prepare_cached(hide)?.query_row(key, |row| row.get(0)).optional()?;
        if let Some(file) = file {
            orphan(connection, cache, &file, now)?;
            add_pending(connection, cache, "path", part.as_str())?;
            hidden.push(*part);
        }
    }
    if !hidden.is_empty() {
        is_visible(connection)?;
    }
    Ok(hidden)
}

pub(super) fn delete(
    connection: &Connection,
    cache: CacheId,
    paths: &[HashPart],
    now: u64,
) -> rusqlite::Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for part in paths {
        let key = params![cache.0, part.as_str()];
        for table in ["pins", "leases"] {
            connection.execute(&format!("delete from {table} where cache = ? and hash_part = ?"), key)?;
        }
        let delete = "delete from paths where cache = ? and hash_part = ? returning file, nar_hash";
        let row = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, [u8; 32]>(1)?));
        if let Some((file, nar_hash)) = connection.prepare_cached(delete)?.query_row(key, row).optional()? {
            add_pending(connection, cache, "path", part.as_str())?;
            orphan(connection, cache, &file, now)?;
            files.push(nar_hash);
        }
    }
    is_visible(connection)?;
    let mut removed = Vec::new();
    for nar_hash in files {
        // Every name and compression of the NAR: a leaked secret is in each.
        let query = "select f.name, n.file_size from files f join nars n on n.id = f.nar \
             where f.cache = ? and n.nar_hash = ? and f.orphaned is not null";
        let names: Vec<(String, u64)> = connection
            .prepare_cached(query)?
            .query_map(params![cache.0, nar_hash], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        for (name, bytes) in names {
            remove_file(connection, cache, &name)?;
            removed.push((name, bytes));
        }
    }
    Ok(removed)
}

pub(super) fn orphans(
    connection: &Connection,
    cache: CacheId,
    cutoff: Cutoff,
    max: usize,
) -> rusqlite::Result<Vec<(String, u64)>> {
    let query = "select f.name, n.file_size from files f join nars n on n.id = f.nar \
         where f.cache = ? and f.orphaned is not null and f.orphaned <= ? and f.used <= ? limit ?";
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    connection
        .prepare_cached(query)?
        .query_map(params![cache.0, cutoff.orphaned, cutoff.used, max], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

pub(super) fn sweep_files(
    connection: &Connection,
    cache: CacheId,
    cutoff: Cutoff,
    max: usize,
    now: u64,
) -> rusqlite::Result<Vec<(String, u64)>> {
    connection.prepare_cached("delete from leases where cache = ? and until <= ?")?.execute(params![cache.0, now])?;
    connection
        .prepare_cached("delete from pins where cache = ? and until is not null and until <= ?")?
        .execute(params![cache.0, now])?;
    let names = orphans(connection, cache, cutoff, max)?;
    names.iter().try_for_each(|(name, _)| remove_file(connection, cache, name))?;
    Ok(names)
}

pub(super) fn referrers(connection: &Connection, cache: CacheId, part: &HashPart) -> rusqlite::Result<Vec<HashPart>> {
    let query = "select p.hash_part from refs r join paths p on p.id = r.referrer \
         where r.reference = ?1 and p.cache = ?2 and p.hash_part <> ?1 order by p.path";
    let mut statement = connection.prepare_cached(query)?;
    statement.query_map(params![part.as_str(), cache.0], |row| parsed(row, 0))?.collect()
}

pub(super) fn pin(connection: &Connection, cache: CacheId, pin: &PinRecord) -> rusqlite::Result<()> {
    unpin(connection, cache, &pin.name, Some(pin.hash_part))?;
    let add = "insert into pins (cache, name, hash_part, path, created, until, keep) values (?, ?, ?, ?, ?, ?, ?)";
    let PinRecord { name, hash_part, path, created, until, keep } = pin;
    connection.execute(add, params![cache.0, name, hash_part.as_str(), path, created, until, keep])?;
    if let Some(keep) = keep {
        let surplus = "delete from pins where cache = ?1 and name = ?2 and id not in \
             (select id from pins where cache = ?1 and name = ?2 order by id desc limit ?3)";
        connection.execute(surplus, params![cache.0, name, keep])?;
    }
    Ok(())
}

pub(super) fn unpin(
    connection: &Connection,
    cache: CacheId,
    name: &str,
    part: Option<HashPart>,
) -> rusqlite::Result<usize> {
    let part = part.map(|part| part.to_string());
    connection.execute(
        "delete from pins where cache = ?1 and name = ?2 and hash_part = coalesce(?3, hash_part)",
        params![cache.0, name, part],
    )
}

pub(super) fn pins(connection: &Connection, cache: CacheId) -> rusqlite::Result<Vec<PinRecord>> {
    let query = "select name, hash_part, path, created, until, keep from pins where cache = ? order by name, id desc";
    let mut statement = connection.prepare_cached(query)?;
    let rows = statement.query_map([cache.0], |row| {
        Ok(PinRecord {
            name: row.get(0)?,
            hash_part: parsed(row, 1)?,
            path: row.get(2)?,
            created: row.get(3)?,
            until: row.get(4)?,
            keep: row.get(5)?,
        })
    })?;
    rows.collect()
}
