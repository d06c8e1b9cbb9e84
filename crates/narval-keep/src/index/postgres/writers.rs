//! Objects that are stored before their names are recorded.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use narval_nix::Compression;
use tokio_postgres::Client;

use super::failed::Failed;
use super::nars::{Entry, add_files};
use super::sql::{execute, get, int, number, p, query, query_opt};
use super::together::Addition;
use super::transaction::Change;
use crate::NarFileName;
use crate::index::{COLLECTION, CacheId, Fence, MayStore, NarRecord, NarWriter, WRITER_FRESH_FOR};
use crate::receipt_key::{RECEIPT_KEY_LEN, ReceiptKey};

pub(super) async fn may_store(
    client: &Client,
    cache: CacheId,
    writer: i64,
    objects: &[(String, NarRecord)],
) -> Result<MayStore, Failed> {
    // One statement: all of it at one moment. A lease that was ended is over; one that has run out may be renewed.
    let ask = "select coalesce((select fence from narval.leases_of_work where name = $1), 0), \
         exists (select from narval.leases_of_work where name = $1 and until > '-infinity'), \
         exists (select from narval.writers where id = $2 and seen > now() - $7 * interval '1 second'), \
         array(select u.name from unnest($4, $5, $6) as u (name, nar_hash, compression) \
           where exists (select from narval.files f where f.cache = $3 and f.name = u.name) \
           or exists (select from narval.nars n where n.nar_hash = u.nar_hash and n.compression = u.compression))";
    let names: Vec<&str> = objects.iter().map(|(name, _)| name.as_str()).collect();
    let hashes: Vec<&[u8]> = objects.iter().map(|(_, nar)| &nar.nar_hash.as_bytes()[..]).collect();
    let compressions: Vec<&str> = objects.iter().map(|(_, nar)| nar.compression.name()).collect();
    let fresh_for = int(WRITER_FRESH_FOR);
    let params = [p(&COLLECTION), p(&writer), p(&cache.0), p(&names), p(&hashes), p(&compressions), p(&fresh_for)];
    let row = query_opt(client, ask, &params).await?.ok_or(Failed::Changed)?;
    let (epoch, is_collecting): (i64, bool) = (get(&row, 0)?, get(&row, 1)?);
    let known: Vec<&str> = get(&row, 3)?;
    let known: HashSet<&str> = known.into_iter().collect();
    let are_new = names.iter().map(|name| !known.contains(name)).collect();
    Ok(MayStore { epoch: (!is_collecting).then_some(Fence(epoch)), has_writer: get(&row, 2)?, are_new })
}

/// Adds objects, unless a collection has begun since then. Whoever condemns names waits until this transaction ends.
pub(super) async fn add_stored(change: &Change<'_>, additions: &[Addition], since: Fence) -> Result<(), Failed> {
    let epoch = "select coalesce((select fence from narval.leases_of_work where name = $1), 0)";
    let row = query_opt(change.client, epoch, &[p(&COLLECTION)]).await?.ok_or(Failed::Changed)?;
    if get::<i64>(&row, 0)? != since.0 {
        return Err(Failed::Changed);
    }
    add_files(change, additions, Entry::None).await.map(drop)
}

pub(super) async fn have_rows(client: &Client, cache: CacheId, names: &[&str]) -> Result<Vec<bool>, Failed> {
    // Those that were not there for a while may come back.
    let find = "select name from narval.files where cache = $1 and name = any($2) \
         union select file from narval.lost where cache = $1 and file = any($2)";
    let rows = query(client, find, &[p(&cache.0), p(&names.to_vec())]).await?;
    let found: HashSet<&str> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
    Ok(names.iter().map(|name| found.contains(name)).collect())
}

pub(super) async fn begin(change: &Change<'_>, cache: CacheId, key: &ReceiptKey) -> Result<i64, Failed> {
    let add = "insert into narval.writers (cache, key) values ($1, $2) returning id";
    let key: &[u8] = key.bytes();
    let row = query_opt(change.client, add, &[p(&cache.0), p(&key)]).await?.ok_or(Failed::Changed)?;
    get(&row, 0)
}

pub(super) async fn renew(change: &Change<'_>, number: i64) -> Result<bool, Failed> {
    Ok(execute(change.client, "update narval.writers set seen = now() where id = $1", &[p(&number)]).await? > 0)
}

pub(super) async fn end(change: &Change<'_>, number: i64) -> Result<(), Failed> {
    execute(change.client, "delete from narval.writers where id = $1", &[p(&number)]).await.map(drop)
}

pub(super) async fn all(client: &Client, cache: CacheId) -> Result<Vec<NarWriter>, Failed> {
    let all = "select id, key, greatest(0, extract(epoch from now() - begun))::bigint, \
         greatest(0, extract(epoch from now() - seen))::bigint from narval.writers where cache = $1";
    let rows = query(client, all, &[p(&cache.0)]).await?;
    let writer = |row: &tokio_postgres::Row| {
        let key: &[u8] = get(row, 1)?;
        let key: [u8; RECEIPT_KEY_LEN] =
            key.try_into().map_err(|_| Failed::Row("the key of a writer has another length".to_owned()))?;
        let ago = |column| number(row, column).map(Duration::from_secs);
        Ok(NarWriter { number: get(row, 0)?, key: ReceiptKey::new(key), begun: ago(2)?, seen: ago(3)? })
    };
    rows.iter().map(writer).collect()
}

/// With the lock for oneself.
pub(super) async fn condemn_strays(
    change: &Change<'_>,
    fence: i64,
    cache: CacheId,
    strays: &[NarFileName],
    now: u64,
) -> Result<Vec<String>, Failed> {
    // Once each, and in one order.
    let strays: BTreeMap<String, &NarFileName> = strays.iter().map(|stray| (stray.to_string(), stray)).collect();
    let names: Vec<&str> = strays.keys().map(String::as_str).collect();
    let known = have_rows(change.client, cache, &names).await?;
    let strays: Vec<(&String, &&NarFileName)> =
        strays.iter().zip(known).filter(|(_, is_known)| !is_known).map(|(stray, _)| stray).collect();
    if strays.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = strays.iter().map(|(name, _)| name.as_str()).collect();
    let hashes: Vec<&[u8]> = strays.iter().map(|(_, stray)| &stray.file_hash().as_bytes()[..]).collect();
    let compressions: Vec<&str> =
        strays.iter().map(|(_, stray)| stray.compression().unwrap_or(Compression::None).name()).collect();
    // Nothing is known of their contents: NARs of no bytes stand for them, so that they are not counted.
    let nars = "insert into narval.nars (nar_hash, compression, nar_size, file_hash, file_size, found) \
         select nar_hash, compression, 0, nar_hash, 0, '' from unnest($1, $2) as u (nar_hash, compression) \
         on conflict (nar_hash, compression) do nothing";
    execute(change.client, nars, &[p(&hashes), p(&compressions)]).await?;
    // Another cache may have the same NAR.
    let add = "with given as (select u.name, n.id, n.file_size + coalesce(n.listing_size, 0) as bytes \
           from unnest($2, $3, $4) as u (name, nar_hash, compression) \
           join narval.nars n on n.nar_hash = u.nar_hash and n.compression = u.compression), \
         counted as (update narval.caches set bytes = bytes + coalesce((select sum(g.bytes) from given g \
           where not exists (select from narval.files f where f.nar = g.id and f.cache = $1)), 0)::bigint where id = $1) \
         insert into narval.files (cache, name, nar, added, used, orphaned, doomed, fence) \
           select $1, g.name, g.id, $5, $5, $5, 0, $6 from given g order by g.name";
    let now = int(now);
    let params = [p(&cache.0), p(&names), p(&hashes), p(&compressions), p(&now), p(&fence)];
    execute(change.client, add, &params).await?;
    Ok(names.into_iter().map(str::to_owned).collect())
}
