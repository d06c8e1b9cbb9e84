//! Paths whose NARs were not there: remembered for a while.

use narval_nix::HashPart;
use rusqlite::{Connection, Row, params};

use super::nars::{COLUMNS, record};
use super::schema::parsed;
use crate::index::{CacheId, LOST_FOR, LOST_MAX, LostPath};

/// Remembers the paths that are served from a file, which are about to be removed.
pub(super) fn remember(connection: &Connection, cache: CacheId, name: &str) -> rusqlite::Result<()> {
    let remember = format!(
        "insert or replace into lost (cache, hash_part, narinfo, file, nar_hash, nar_size, compression, file_hash, file_size, \
           listing_size, found, at) select p.cache, p.hash_part, p.narinfo, p.file, {COLUMNS}, unixepoch() from paths p \
         join files f on f.cache = p.cache and f.name = p.file join nars n on n.id = f.nar where p.cache = ? and p.file = ?"
    );
    connection.prepare_cached(&remember)?.execute(params![cache.0, name]).map(drop)
}

pub(super) fn all(connection: &Connection, cache: CacheId) -> rusqlite::Result<Vec<LostPath>> {
    let all = format!(
        "select {COLUMNS}, n.hash_part, n.narinfo, n.file from lost n where n.cache = ? and n.at > unixepoch() - ? order by n.at limit ?"
    );
    let path = |row: &Row<'_>| {
        Ok(LostPath { hash_part: parsed(row, 7)?, narinfo: row.get(8)?, file: row.get(9)?, nar: record(row)? })
    };
    connection.prepare_cached(&all)?.query_map(params![cache.0, LOST_FOR, LOST_MAX], path)?.collect()
}

pub(super) fn forget(connection: &Connection, cache: CacheId, parts: &[HashPart]) -> rusqlite::Result<()> {
    connection.prepare_cached("delete from lost where at <= unixepoch() - ?")?.execute([LOST_FOR])?;
    let mut forget = connection.prepare_cached("delete from lost where cache = ? and hash_part = ?")?;
    parts.iter().try_for_each(|part| forget.execute(params![cache.0, part.as_str()]).map(drop))
}
