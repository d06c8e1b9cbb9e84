//! Paths whose NARs were not there: remembered for a while.

use narval_nix::HashPart;
use tokio_postgres::{Client, Row};

use super::failed::Failed;
use super::nars::{COLUMNS, record};
use super::sql::{execute, get, int, p, parsed, query, texts};
use super::transaction::Change;
use crate::index::{CacheId, LOST_FOR, LOST_MAX, LostPath};

/// Remembers the paths that are served from a file, which are about to be removed. With the lock for oneself.
pub(super) async fn remember(change: &Change<'_>, cache: CacheId, name: &str) -> Result<(), Failed> {
    let remember = format!(
        "insert into narval.lost as l (cache, hash_part, narinfo, file, nar_hash, nar_size, compression, file_hash, file_size, \
           listing_size, found) select p.cache, p.hash_part, p.narinfo, p.file, {COLUMNS} from narval.paths p \
         join narval.files f on f.cache = p.cache and f.name = p.file join narval.nars n on n.id = f.nar \
         where p.cache = $1 and p.file = $2 on conflict (cache, hash_part) do update set narinfo = excluded.narinfo, \
         file = excluded.file, nar_hash = excluded.nar_hash, nar_size = excluded.nar_size, compression = excluded.compression, \
         file_hash = excluded.file_hash, file_size = excluded.file_size, listing_size = excluded.listing_size, \
         found = excluded.found, at = excluded.at"
    );
    execute(change.client, &remember, &[p(&cache.0), p(&name)]).await.map(drop)
}

pub(super) async fn all(client: &Client, cache: CacheId) -> Result<Vec<LostPath>, Failed> {
    let all = format!(
        "select {COLUMNS}, n.hash_part, n.narinfo, n.file from narval.lost n where n.cache = $1 \
         and n.at > now() - $2 * interval '1 second' order by n.at limit $3"
    );
    let path = |row: &Row| {
        Ok(LostPath { hash_part: parsed(row, 7)?, narinfo: get(row, 8)?, file: get(row, 9)?, nar: record(row)? })
    };
    let rows = query(client, &all, &[p(&cache.0), p(&int(LOST_FOR)), p(&i64::from(LOST_MAX))]).await?;
    rows.iter().map(path).collect()
}

pub(super) async fn forget(change: &Change<'_>, cache: CacheId, parts: &[HashPart]) -> Result<(), Failed> {
    let old = "delete from narval.lost where at <= now() - $1 * interval '1 second'";
    execute(change.client, old, &[p(&int(LOST_FOR))]).await?;
    let forget = "delete from narval.lost where cache = $1 and hash_part = any($2)";
    execute(change.client, forget, &[p(&cache.0), p(&texts(parts))]).await.map(drop)
}
