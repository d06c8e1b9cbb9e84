//! Objects that are stored before their names are recorded.

use std::time::Duration;

use narval_nix::Compression;
use rusqlite::{Connection, params};

use super::nars::{Added, add_bytes, add_file, is_in_cache};
use super::schema::settle_these;
use crate::NarFileName;
use crate::index::{COLLECTION, CacheId, Fence, MayStore, NarRecord, NarWriter, Replaced, WRITER_FRESH_FOR};
use crate::receipt_key::ReceiptKey;
use crate::rule::{Rule, holds};

/// The number of the last collection; 0 if there was none.
fn epoch(connection: &Connection) -> rusqlite::Result<Fence> {
    let query = "select coalesce((select fence from work where name = ?), 0)";
    connection.prepare_cached(query)?.query_row([COLLECTION], |row| row.get(0)).map(Fence)
}

/// Whether a collection is at work, or has not ended its lease.
fn is_collecting(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare_cached("select 1 from work where name = ? and until > 0")?.exists([COLLECTION])
}

pub(super) fn may_store(
    connection: &Connection,
    cache: CacheId,
    writer: i64,
    objects: &[(String, NarRecord)],
) -> rusqlite::Result<MayStore> {
    let find = "select 1 from writers where id = ? and seen > unixepoch() - ?";
    let has_writer = connection.prepare_cached(find)?.exists(params![writer, WRITER_FRESH_FOR])?;
    let quiet = !is_collecting(connection)? || !holds(Rule::Quiet);
    let mut nar = connection.prepare_cached("select 1 from nars where nar_hash = ? and compression = ?")?;
    let mut file = connection.prepare_cached("select 1 from files where cache = ? and name = ?")?;
    let mut is_new = |(name, record): &(String, NarRecord)| {
        let (hash, compression) = (record.nar_hash.as_bytes(), record.compression.name());
        Ok(!nar.exists(params![hash, compression])? && !file.exists(params![cache.0, name])? || !holds(Rule::Quiet))
    };
    let are_new = objects.iter().map(&mut is_new).collect::<rusqlite::Result<_>>()?;
    Ok(MayStore { epoch: if quiet { Some(epoch(connection)?) } else { None }, has_writer, are_new })
}

pub(super) fn add_stored(
    connection: &Connection,
    cache: CacheId,
    objects: &[(String, NarRecord)],
    (since, now): (Fence, u64),
) -> rusqlite::Result<Vec<bool>> {
    if epoch(connection)? != since && holds(Rule::Epoch) {
        return Ok(vec![false; objects.len()]);
    }
    let add = |(name, nar): &(String, NarRecord)| match add_file(connection, cache, name, nar, (now, Replaced::Kept))? {
        Added::As(number) => settle_these(connection, &[number]).map(|()| true),
        Added::Removing | Added::InUse => Ok(false),
    };
    objects.iter().map(add).collect()
}

pub(super) fn have_rows(connection: &Connection, cache: CacheId, names: &[&str]) -> rusqlite::Result<Vec<bool>> {
    // Those that were not there for a while may come back.
    let find = "select 1 from files where cache = ?1 and name = ?2 union all select 1 from lost where cache = ?1 and file = ?2";
    let mut find = connection.prepare_cached(find)?;
    names.iter().map(|name| find.exists(params![cache.0, name])).collect()
}

pub(super) fn begin(connection: &Connection, cache: CacheId, key: &ReceiptKey) -> rusqlite::Result<i64> {
    let add = "insert into writers (cache, key, begun, seen) values (?, ?, unixepoch(), unixepoch())";
    connection.prepare_cached(add)?.insert(params![cache.0, key.bytes()])
}

pub(super) fn renew(connection: &Connection, number: i64) -> rusqlite::Result<bool> {
    Ok(connection.prepare_cached("update writers set seen = unixepoch() where id = ?")?.execute([number])? > 0)
}

pub(super) fn end(connection: &Connection, number: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("delete from writers where id = ?")?.execute([number]).map(drop)
}

pub(super) fn all(connection: &Connection, cache: CacheId) -> rusqlite::Result<Vec<NarWriter>> {
    let query = "select id, key, max(0, unixepoch() - begun), max(0, unixepoch() - seen) from writers where cache = ?";
    let mut statement = connection.prepare_cached(query)?;
    let rows = statement.query_map([cache.0], |row| {
        let ago = |column: usize| row.get::<_, u64>(column).map(Duration::from_secs);
        Ok(NarWriter { number: row.get(0)?, key: ReceiptKey::new(row.get(1)?), begun: ago(2)?, seen: ago(3)? })
    })?;
    rows.collect()
}

pub(super) fn condemn_strays(
    connection: &Connection,
    fence: Fence,
    cache: CacheId,
    strays: &[NarFileName],
    now: u64,
) -> rusqlite::Result<Vec<String>> {
    let mut condemned = Vec::new();
    for stray in strays {
        let name = stray.to_string();
        if connection
            .prepare_cached("select 1 from files where cache = ? and name = ?")?
            .exists(params![cache.0, name])?
        {
            continue;
        }
        // Nothing is known of its contents: a NAR of no bytes stands for it, so that it is not counted.
        let compression = stray.compression().unwrap_or(Compression::None).name();
        let hash = stray.file_hash().as_bytes();
        let add = "insert into nars (nar_hash, compression, nar_size, file_hash, file_size, found) values (?1, ?2, 0, ?1, 0, '') \
             on conflict do nothing";
        connection.prepare_cached(add)?.execute(params![hash, compression])?;
        // Another cache may have the same NAR.
        let find = "select id, file_size + coalesce(listing_size, 0) from nars where nar_hash = ? and compression = ?";
        let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let (nar, bytes) = connection.prepare_cached(find)?.query_row(params![hash, compression], row)?;
        if !is_in_cache(connection, cache, nar)? {
            add_bytes(connection, cache, bytes)?;
        }
        let add = "insert into files (cache, name, nar, added, used, orphaned, doomed, fence) values (?1, ?2, ?5, ?3, ?3, ?3, 0, ?4)";
        connection.prepare_cached(add)?.execute(params![cache.0, name, now, fence.0, nar])?;
        condemned.push(name);
    }
    Ok(condemned)
}
