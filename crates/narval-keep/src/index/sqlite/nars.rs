//! Stored NARs and their names.

use narval_nix::Sha256;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::schema::{add_pending, is_visible, join, parsed};
use crate::NarFileName;
use crate::index::tx::split;
use crate::index::{COLLECTION, CacheId, NarRecord, Replaced};
use crate::rule::{Rule, holds};

pub(super) const COLUMNS: &str =
    "n.nar_hash, n.nar_size, n.compression, n.file_hash, n.file_size, n.listing_size, n.found";

/// A name whose NAR's bytes are being removed.
pub(super) const CONDEMNED: &str = "(f.fence is not null and f.orphaned is not null)";

pub(super) fn record(row: &Row<'_>) -> rusqlite::Result<NarRecord> {
    let found: String = row.get(6)?;
    Ok(NarRecord {
        nar_hash: Sha256::from_bytes(row.get(0)?),
        nar_size: row.get(1)?,
        compression: parsed(row, 2)?,
        file_hash: Sha256::from_bytes(row.get(3)?),
        file_size: row.get(4)?,
        listing_size: row.get(5)?,
        found: split(&found),
    })
}

/// The NAR of a name, and whether it is doomed.
pub(super) fn file(connection: &Connection, cache: CacheId, name: &str) -> rusqlite::Result<Option<(NarRecord, bool)>> {
    let query = format!(
        "select {COLUMNS}, f.doomed is not null from files f join nars n on n.id = f.nar where f.cache = ? and f.name = ? \
         and not {CONDEMNED} and (f.doomed is null or f.doomed > 0)"
    );
    let row = |row: &Row<'_>| Ok((record(row)?, row.get(7)?));
    connection.prepare_cached(&query)?.query_row(params![cache.0, name], row).optional()
}

/// Ends the doom of a name, because somebody has asked for it and may rely on the answer. Returns `false` if it is condemned meanwhile.
pub(super) fn keep(connection: &Connection, cache: CacheId, name: &str) -> rusqlite::Result<bool> {
    let keep = format!(
        "update files as f set doomed = null, used = max(used, unixepoch()) where cache = ? and name = ? \
         and not {CONDEMNED} and (doomed is null or doomed > 0)"
    );
    Ok(connection.prepare_cached(&keep)?.execute(params![cache.0, name])? > 0)
}

/// What became of a name that was to be added.
pub(super) enum Added {
    /// The number of its pending entry.
    As(i64),
    /// Its bytes are being removed.
    Removing,
    /// Another file of the NAR is in use.
    InUse,
}

/// Adds a name for a NAR. If its row has the hash of another file that is not in use, that file is lost and this one replaces it. The paths of the lost file are removed, since their narinfos are no longer correct.
pub(super) fn add_file(
    connection: &Connection,
    cache: CacheId,
    name: &str,
    nar: &NarRecord,
    (now, replaced): (u64, Replaced),
) -> rusqlite::Result<Added> {
    if is_condemned(connection, cache, name, nar)? && holds(Rule::Condemned) {
        return Ok(Added::Removing);
    }
    let query = "select id, file_hash, file_size from nars where nar_hash = ? and compression = ?";
    let row = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, [u8; 32]>(1)?, row.get::<_, u64>(2)?));
    let key = params![nar.nar_hash.as_bytes(), nar.compression.name()];
    let known = connection.prepare_cached(query)?.query_row(key, row).optional()?;
    let id = match known {
        Some((id, file_hash, file_size)) if file_hash == *nar.file_hash.as_bytes() && file_size == nar.file_size => id,
        Some((id, file_hash, file_size)) if replaced == Replaced::Kept => {
            let own = NarFileName::new(Sha256::from_bytes(file_hash), nar.compression).to_string();
            if is_in_use(connection, id, &own)? && holds(Rule::InUse) {
                return Ok(Added::InUse);
            }
            replace(connection, (id, file_size), nar, now)?;
            id
        }
        Some((id, ..)) => {
            forget_names(connection, id)?;
            insert(connection, nar)?
        }
        None => insert(connection, nar)?,
    };
    if !is_in_cache(connection, cache, id)? {
        let bytes = nar.file_size.saturating_add(nar.listing_size.unwrap_or(0));
        add_bytes(connection, cache, i64::try_from(bytes).unwrap_or(i64::MAX))?;
    }
    let add = "insert into files (cache, name, nar, added, used, orphaned) values (?1, ?2, ?3, ?4, ?4, ?4) \
         on conflict (cache, name) do update set nar = excluded.nar, used = excluded.used, doomed = null, fence = null, \
         orphaned = iif(orphaned is null, null, excluded.orphaned)";
    connection.prepare_cached(add)?.execute(params![cache.0, name, id, now])?;
    add_pending(connection, cache, "file", name).map(Added::As)
}

/// Whether a collection is removing the bytes of this name or NAR. One that was interrupted is not: the NAR is taken back.
fn is_condemned(connection: &Connection, cache: CacheId, name: &str, nar: &NarRecord) -> rusqlite::Result<bool> {
    let fences = format!(
        "select exists (select 1 from work w where w.name = ?1 and w.until > unixepoch() and (\
           w.fence in (select fence from nars where nar_hash = ?2 and compression = ?3) \
           or w.fence in (select fence from files f where cache = ?4 and name = ?5 and {CONDEMNED})))"
    );
    let (nar_hash, compression) = (nar.nar_hash.as_bytes(), nar.compression.name());
    let key = params![COLLECTION, nar_hash, compression, cache.0, name];
    if connection.prepare_cached(&fences)?.query_row(key, |row| row.get(0))? {
        return Ok(true);
    }
    let back = "update nars set fence = null where nar_hash = ? and compression = ? and fence is not null";
    connection.prepare_cached(back)?.execute(params![nar_hash, compression])?;
    Ok(false)
}

fn insert(connection: &Connection, nar: &NarRecord) -> rusqlite::Result<i64> {
    let insert = "insert into nars (nar_hash, compression, nar_size, file_hash, file_size, listing_size, found) \
         values (?, ?, ?, ?, ?, ?, ?) returning id";
    connection.prepare_cached(insert)?.query_row(
        params![
            nar.nar_hash.as_bytes(),
            nar.compression.name(),
            nar.nar_size,
            nar.file_hash.as_bytes(),
            nar.file_size,
            nar.listing_size,
            join(&nar.found)
        ],
        |row| row.get(0),
    )
}

pub(super) fn is_in_cache(connection: &Connection, cache: CacheId, nar: i64) -> rusqlite::Result<bool> {
    connection.prepare_cached("select 1 from files where nar = ? and cache = ?")?.exists(params![nar, cache.0])
}

pub(super) fn add_bytes(connection: &Connection, cache: CacheId, bytes: i64) -> rusqlite::Result<()> {
    let add = "update caches set bytes = max(0, bytes + ?) where id = ?";
    connection.prepare_cached(add)?.execute(params![bytes, cache.0]).map(drop)
}

/// Whether a path has the file of this name, or it is stored and a narinfo may follow.
fn is_in_use(connection: &Connection, nar: i64, name: &str) -> rusqlite::Result<bool> {
    let query = format!(
        "select 1 from files f where nar = ? and name = ? and not {CONDEMNED} and (doomed is null or doomed > 0) \
         and (orphaned is null or not exists (select 1 from pending p where p.cache = f.cache and p.kind = 'file' and p.name = f.name))"
    );
    connection.prepare_cached(&query)?.exists(params![nar, name])
}

/// Gives a NAR another file, of which the old names are other names. The paths that are served from the old file are removed.
fn replace(connection: &Connection, (id, old_size): (i64, u64), nar: &NarRecord, now: u64) -> rusqlite::Result<()> {
    let paths = "delete from paths where (cache, file) in (select cache, name from files where nar = ?) returning cache, hash_part";
    let paths: Vec<(i64, String)> = connection
        .prepare_cached(paths)?
        .query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (cache, part) in paths {
        add_pending(connection, CacheId(cache), "path", &part)?;
    }
    connection
        .prepare_cached("update files set orphaned = coalesce(orphaned, ?2) where nar = ?1")?
        .execute(params![id, now])?;
    // Objects have no listings.
    let bytes =
        "update caches set bytes = max(0, bytes - ?2 + ?3) where id in (select cache from files where nar = ?1)";
    connection.prepare_cached(bytes)?.execute(params![id, old_size, nar.file_size])?;
    let update = "update nars set file_hash = ?2, file_size = ?3 where id = ?1";
    connection.prepare_cached(update)?.execute(params![id, nar.file_hash.as_bytes(), nar.file_size])?;
    is_visible(connection)
}

/// Removes every name of a NAR, and the paths that are served from it.
fn forget_names(connection: &Connection, nar: i64) -> rusqlite::Result<()> {
    let names: Vec<(i64, String)> = connection
        .prepare_cached("select cache, name from files where nar = ?")?
        .query_map([nar], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    names.iter().try_for_each(|(cache, name)| remove_file(connection, CacheId(*cache), name))
}

/// Removes a name whose file is lost, and the paths that are served from it.
pub(super) fn remove_file(connection: &Connection, cache: CacheId, name: &str) -> rusqlite::Result<()> {
    let query = "select n.id, n.file_size + coalesce(n.listing_size, 0) from files f join nars n on n.id = f.nar \
         where f.cache = ? and f.name = ?";
    let row = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let found = connection.prepare_cached(query)?.query_row(params![cache.0, name], row).optional()?;
    let Some((nar, bytes)) = found else { return Ok(()) };
    let paths: Vec<String> = connection
        .prepare_cached("delete from paths where cache = ? and file = ? returning hash_part")?
        .query_map(params![cache.0, name], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for part in &paths {
        add_pending(connection, cache, "path", part)?;
    }
    connection.prepare_cached("delete from files where cache = ? and name = ?")?.execute(params![cache.0, name])?;
    add_pending(connection, cache, "file", name)?;
    drop_nar(connection, cache, (nar, bytes), None)?;
    if paths.is_empty() { Ok(()) } else { is_visible(connection) }
}

/// Counts a NAR no more that has no name left in a cache, and removes its row if it has none at all. Its file is removed later, unless
/// the collection with this number has done so.
fn drop_nar(
    connection: &Connection,
    cache: CacheId,
    (nar, bytes): (i64, i64),
    removed_by: Option<i64>,
) -> rusqlite::Result<()> {
    if !is_in_cache(connection, cache, nar)? {
        add_bytes(connection, cache, -bytes)?;
    }
    let last = "delete from nars where id = ?1 and not exists (select 1 from files where nar = ?1) \
         returning nar_hash, compression, fence";
    let blob = |row: &Row<'_>| {
        let name = format!("{} {}", Sha256::from_bytes(row.get(0)?), row.get::<_, String>(1)?);
        Ok((name, row.get::<_, Option<i64>>(2)?))
    };
    match connection.prepare_cached(last)?.query_row([nar], blob).optional()? {
        Some((blob, fence)) if fence.is_none() || fence != removed_by => {
            add_pending(connection, cache, "blob", &blob).map(drop)
        }
        _ => Ok(()),
    }
}

/// Forgets a name that a collection has condemned, and whose bytes are gone.
pub(super) fn forget(connection: &Connection, fence: i64, cache: CacheId, name: &str) -> rusqlite::Result<()> {
    let delete =
        format!("delete from files as f where cache = ? and name = ? and fence = ? and {CONDEMNED} returning nar");
    let key = params![cache.0, name, fence];
    let gone: Option<i64> = connection.prepare_cached(&delete)?.query_row(key, |row| row.get(0)).optional()?;
    let Some(nar) = gone else { return Ok(()) };
    let bytes = "select file_size + coalesce(listing_size, 0) from nars where id = ?";
    let bytes = connection.prepare_cached(bytes)?.query_row([nar], |row| row.get(0))?;
    drop_nar(connection, cache, (nar, bytes), Some(fence))
}
