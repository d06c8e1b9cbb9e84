//! Uses, pins, and garbage collection.

use std::collections::HashSet;

use narval_nix::{HashPart, Sha256};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::nars::CONDEMNED;
use super::paths::orphan;
use super::schema::{add_pending, forget_pending_file, is_visible, parsed};
use crate::index::{CacheId, Commit, Condemned, Cutoff, Used};
use crate::survey::Counted;

pub(super) fn used(connection: &Connection, used: &[Used]) -> rusqlite::Result<()> {
    let by_path = "update paths set used = max(used, ?) where cache = ? and hash_part = ?";
    let by_file = "update paths set used = max(used, ?) where cache = ? and file = ?";
    // A client that was told that a NAR is present may be about to send its narinfo.
    // Doom after the use stays: 0 is of deleted paths, and a use that is long before it was known.
    let orphan = "update files set used = ?1, doomed = iif(doomed = 0 or ?1 < doomed - 600, doomed, null) \
         where cache = ?2 and name = ?3 and orphaned is not null and used < ?1";
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

pub(super) fn count(
    connection: &Connection,
    cache: CacheId,
    lines: &[Vec<u8>],
    after: &str,
    max: usize,
) -> rusqlite::Result<Option<(Counted, String)>> {
    let lacks: Vec<_> = (0..lines.len()).map(|at| format!("instr(narinfo, ?{}) = 0", at + 4)).collect();
    let lacks = if lacks.is_empty() { "0".to_owned() } else { lacks.join(" or ") };
    let query = format!(
        "select count(*), coalesce(sum({lacks}), 0), coalesce(sum(listing_size), 0), min(used), max(hash_part) from \
         (select hash_part, narinfo, listing_size, used from paths where cache = ?1 and hash_part > ?2 order by hash_part limit ?3)"
    );
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let mut params: Vec<&dyn ToSql> = vec![&cache.0, &after, &max];
    params.extend(lines.iter().map(|line| line as &dyn ToSql));
    connection.prepare_cached(&query)?.query_row(params.as_slice(), |row| {
        let counted =
            Counted { paths: row.get(0)?, unsigned: row.get(1)?, listing_bytes: row.get(2)?, oldest_use: row.get(3)? };
        Ok(row.get::<_, Option<String>>(4)?.map(|last| (counted, last)))
    })
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
) -> rusqlite::Result<Commit> {
    let listed: HashSet<&HashPart> = paths.iter().collect();
    for part in paths {
        if referrers(connection, cache, part)?.iter().any(|referrer| !listed.contains(referrer)) {
            return Ok(Commit::Changed);
        }
    }
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
    // Every name and compression of the NAR: a leaked secret is in each.
    let doom = "update files set doomed = 0 where cache = ? and orphaned is not null \
         and nar in (select id from nars where nar_hash = ?)";
    for nar_hash in files {
        connection.prepare_cached(doom)?.execute(params![cache.0, nar_hash])?;
    }
    is_visible(connection)?;
    Ok(Commit::Done)
}

pub(super) fn doom(
    connection: &Connection,
    cache: CacheId,
    cutoff: Cutoff,
    max: usize,
    now: u64,
) -> rusqlite::Result<usize> {
    connection.prepare_cached("delete from leases where cache = ? and until <= ?")?.execute(params![cache.0, now])?;
    connection
        .prepare_cached("delete from pins where cache = ? and until is not null and until <= ?")?
        .execute(params![cache.0, now])?;
    let doom = "update files set doomed = ?4 where cache = ?1 and name in (select name from files \
         where cache = ?1 and orphaned <= ?2 and used <= ?3 and doomed is null and fence is null limit ?5)";
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    connection.prepare_cached(doom)?.execute(params![cache.0, cutoff.orphaned, cutoff.used, now, max])
}

pub(super) fn condemn(
    connection: &Connection,
    fence: i64,
    cache: CacheId,
    cutoff: Option<Cutoff>,
    max: usize,
) -> rusqlite::Result<Condemned> {
    // An impossible time, if only what is left is to go.
    let cutoff = cutoff.map(|cutoff| (int(cutoff.orphaned), int(cutoff.used), cutoff.doomed));
    let (orphaned, used, doomed) = cutoff.unwrap_or((-1, -1, None));
    let due = "update files set fence = ?6 where cache = ?1 and name in (\
           select name from files where cache = ?1 and orphaned is not null and (fence is not null or doomed = 0 \
             or (orphaned <= ?2 and used <= ?3 and (?4 is null or doomed <= ?4))) order by name limit ?5) \
         returning name, nar";
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let due: Vec<(String, i64)> = connection
        .prepare_cached(due)?
        .query_map(params![cache.0, orphaned, used, doomed, max, fence], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let last = format!(
        "update nars set fence = ?2 where id = ?1 \
         and not exists (select 1 from files f where f.nar = ?1 and not {CONDEMNED}) returning nar_hash, compression"
    );
    let size = "select file_size from nars where id = ?";
    let (mut condemned, mut seen) = (Condemned::default(), HashSet::new());
    for (name, nar) in due {
        forget_pending_file(connection, cache, &name)?;
        condemned.names.push((name, connection.prepare_cached(size)?.query_row([nar], |row| row.get(0))?));
        if seen.insert(nar) {
            let blob = |row: &Row<'_>| Ok((Sha256::from_bytes(row.get(0)?), parsed(row, 1)?));
            let blob = connection.prepare_cached(&last)?.query_row(params![nar, fence], blob).optional()?;
            condemned.blobs.extend(blob);
        }
    }
    Ok(condemned)
}

/// Takes the lease of a work for so many seconds; `None` while another process has it.
pub(super) fn begin_work(connection: &Connection, name: &str, seconds: u64) -> rusqlite::Result<Option<i64>> {
    let take = "insert into work (name, fence, until) values (?1, 1, unixepoch() + ?2) on conflict (name) do update \
         set fence = fence + 1, until = excluded.until where until < unixepoch() returning fence";
    connection.prepare_cached(take)?.query_row(params![name, seconds], |row| row.get(0)).optional()
}

/// Whether a process has the lease of a work.
pub(super) fn is_at_work(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    connection.prepare_cached("select 1 from work where name = ? and until >= unixepoch()")?.exists([name])
}

/// Takes it from whoever has it, if there are condemned names, or those of deleted paths.
pub(super) fn take_over_work(
    connection: &Connection,
    name: &str,
    cache: CacheId,
    seconds: u64,
) -> rusqlite::Result<Option<i64>> {
    let left = format!("select 1 from files f where cache = ? and ({CONDEMNED} or doomed = 0)");
    if !connection.prepare_cached(&left)?.exists([cache.0])? {
        return Ok(None);
    }
    connection.prepare_cached("update work set until = 0 where name = ?")?.execute([name])?;
    begin_work(connection, name, seconds)
}

/// Renews it. Returns `false` if another process has taken it since, or it has run out: then others count what it stood for as interrupted.
pub(super) fn renew_work(connection: &Connection, name: &str, fence: i64, seconds: u64) -> rusqlite::Result<bool> {
    let renew = "update work set until = unixepoch() + ?3 where name = ?1 and fence = ?2 and until > unixepoch()";
    Ok(connection.prepare_cached(renew)?.execute(params![name, fence, seconds])? > 0)
}

pub(super) fn end_work(
    connection: &Connection,
    name: &str,
    fence: i64,
    collected: Option<CacheId>,
) -> rusqlite::Result<()> {
    if let Some(cache) = collected {
        let note = "insert into collected (cache, at) values (?, unixepoch()) on conflict (cache) do update set at = excluded.at";
        connection.prepare_cached(note)?.execute([cache.0])?;
    }
    connection
        .prepare_cached("update work set until = 0 where name = ? and fence = ?")?
        .execute(params![name, fence])?;
    Ok(())
}

pub(super) fn collected(connection: &Connection, cache: CacheId) -> rusqlite::Result<Option<u64>> {
    let ago = "select max(0, unixepoch() - at) from collected where cache = ?";
    connection.prepare_cached(ago)?.query_row([cache.0], |row| row.get(0)).optional()
}

fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn referrers(connection: &Connection, cache: CacheId, part: &HashPart) -> rusqlite::Result<Vec<HashPart>> {
    let query = "select p.hash_part from refs r join paths p on p.id = r.referrer \
         where r.reference = ?1 and p.cache = ?2 and p.hash_part <> ?1 order by p.path";
    let mut statement = connection.prepare_cached(query)?;
    statement.query_map(params![part.as_str(), cache.0], |row| parsed(row, 0))?.collect()
}
