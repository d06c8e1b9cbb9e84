//! Caches, and what files may not show yet.

use std::collections::{HashMap, HashSet};

use narval_nix::{HashPart, Sha256};
use tokio_postgres::{Client, Row};

use super::failed::Failed;
use super::sql::{execute, get, p, parsed, query, query_opt, texts};
use super::transaction::Change;
use crate::index::{CacheId, Pending, Placed};

/// Notes that files may not be as the index says from now on.
pub(super) async fn add_pending(change: &Change<'_>, cache: CacheId, kind: &str, names: &[&str]) -> Result<(), Failed> {
    if names.is_empty() {
        return Ok(());
    }
    let add = "insert into narval.pending (cache, kind, name) select $1, $2, unnest($3)";
    execute(change.client, add, &[p(&cache.0), p(&kind), p(&names.to_vec())]).await.map(drop)
}

pub(super) async fn pending(client: &Client, after: i64) -> Result<Vec<(i64, CacheId, Pending)>, Failed> {
    let all = "select id, cache, kind, name from narval.pending where id > $1 order by id";
    let rows = query(client, all, &[p(&after)]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, CacheId(get(row, 1)?), what(row)?))).collect()
}

fn what(row: &Row) -> Result<Pending, Failed> {
    Ok(match get(row, 2)? {
        "path" => Pending::Path(parsed(row, 3)?),
        "file" => Pending::File(get(row, 3)?),
        _ => {
            let name: &str = get(row, 3)?;
            let blob = name.split_once(' ').and_then(|(hash, compression)| {
                Some(Pending::Blob(hash.parse::<Sha256>().ok()?, compression.parse().ok()?))
            });
            blob.ok_or_else(|| Failed::Row(format!("'{name}' in the table of pending changes is no blob")))?
        }
    })
}

pub(super) async fn settle(change: &Change<'_>, up_to: i64) -> Result<(), Failed> {
    execute(change.client, "delete from narval.pending where id <= $1", &[p(&up_to)]).await.map(drop)
}

pub(super) async fn settle_these(change: &Change<'_>, numbers: &[i64]) -> Result<(), Failed> {
    let settle = "delete from narval.pending where id = any($1) and (kind <> 'path' or id in (select min(id) from narval.pending \
         where kind = 'path' and name in (select name from narval.pending where id = any($1)) \
         group by cache, name having count(*) = 1))";
    execute(change.client, settle, &[p(&numbers.to_vec())]).await.map(drop)
}

/// Gives entries of narinfos new numbers, and one for all of the same narinfo.
pub(super) async fn take_over(change: &Change<'_>, numbers: &[i64]) -> Result<Vec<(i64, CacheId, HashPart)>, Failed> {
    // Who waits for the row of an entry finds it gone.
    let take = "with gone as (delete from narval.pending where id = any($1) and kind = 'path' returning cache, name) \
         insert into narval.pending (cache, kind, name) select distinct cache, 'path', name from gone \
         returning id, cache, name";
    let rows = query(change.client, take, &[p(&numbers.to_vec())]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, CacheId(get(row, 1)?), parsed(row, 2)?))).collect()
}

pub(super) async fn settle_alone(
    change: &Change<'_>,
    cache: CacheId,
    parts: &[HashPart],
    up_to: i64,
) -> Result<(), Failed> {
    let settle = "delete from narval.pending where id in (select min(id) from narval.pending \
         where cache = $1 and kind = 'path' and name = any($2) group by name having count(*) = 1 and min(id) <= $3)";
    execute(change.client, settle, &[p(&cache.0), p(&texts(parts)), p(&up_to)]).await.map(drop)
}

/// The greatest number of a pending entry that this transaction sees. What others add for paths that it has changed comes later.
pub(super) async fn last_pending(client: &Client) -> Result<i64, Failed> {
    let row = query_opt(client, "select coalesce(max(id), 0) from narval.pending", &[]).await?;
    get(&row.ok_or(Failed::Changed)?, 0)
}

pub(super) async fn settle_file(change: &Change<'_>, cache: CacheId, name: &str, number: i64) -> Result<bool, Failed> {
    // Otherwise the entries of others stay: their files may not be stored yet.
    let settle = "delete from narval.pending where cache = $1 and kind = 'file' and name = $2 \
         and exists (select from narval.pending where id = $3) returning id";
    let rows = query(change.client, settle, &[p(&cache.0), p(&name), p(&number)]).await?;
    Ok(!rows.is_empty())
}

/// Removes the pending entries of names below `nar/`.
pub(super) async fn forget_pending_files(change: &Change<'_>, cache: CacheId, names: &[&str]) -> Result<(), Failed> {
    let forget = "delete from narval.pending where cache = $1 and kind = 'file' and name = any($2)";
    execute(change.client, forget, &[p(&cache.0), p(&names.to_vec())]).await.map(drop)
}

/// As [`settle_file`], for files whose upload is complete, with the numbers under which they are pending: what somebody else has
/// recorded since may be on its way.
pub(super) async fn settle_files(change: &Change<'_>, cache: CacheId, files: &[(String, i64)]) -> Result<(), Failed> {
    if files.is_empty() {
        return Ok(());
    }
    let settle = "delete from narval.pending p using unnest($2, $3) as u (name, id) \
         where p.cache = $1 and p.kind = 'file' and p.name = u.name and p.id <= u.id";
    let (names, numbers): (Vec<&str>, Vec<i64>) = files.iter().map(|(name, number)| (name.as_str(), *number)).unzip();
    execute(change.client, settle, &[p(&cache.0), p(&names), p(&numbers)]).await.map(drop)
}

/// Whether the entry with this number is there.
pub(super) async fn is_pending(client: &Client, number: i64) -> Result<bool, Failed> {
    Ok(query_opt(client, "select 1 from narval.pending where id = $1", &[p(&number)]).await?.is_some())
}

/// Of these entries, those that are there.
pub(super) async fn are_pending(client: &Client, numbers: &[i64]) -> Result<HashSet<i64>, Failed> {
    let find = "select id from narval.pending where id = any($1)";
    query(client, find, &[p(&numbers.to_vec())]).await?.iter().map(|row| get(row, 0)).collect()
}

/// The number of the oldest pending entry of a name below `nar/`, and whether the entry with the number `stored` is there.
pub(super) async fn oldest_pending(
    client: &Client,
    cache: CacheId,
    name: &str,
    stored: i64,
) -> Result<(Option<i64>, bool), Failed> {
    let find = "select min(id), exists (select from narval.pending where id = $3) from narval.pending \
         where cache = $1 and kind = 'file' and name = $2";
    let row = query_opt(client, find, &[p(&cache.0), p(&name), p(&stored)]).await?.ok_or(Failed::Changed)?;
    Ok((get(&row, 0)?, get(&row, 1)?))
}

/// The number of the oldest pending entry of each of these names below `nar/` that has one.
pub(super) async fn oldest_pendings(
    client: &Client,
    cache: CacheId,
    names: &[&str],
) -> Result<HashMap<String, i64>, Failed> {
    let all = "select p.name, min(p.id) from unnest($2) as u (name) join narval.pending p on p.cache = $1 and p.kind = 'file' \
         and p.name = u.name group by p.name";
    let rows = query(client, all, &[p(&cache.0), p(&names.to_vec())]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
}

/// Whether one of these files was removed and recorded again since it was looked for. Nobody removes any until the transaction ends.
pub(super) async fn is_any_replaced(client: &Client, cache: CacheId, placed: &[Placed]) -> Result<bool, Failed> {
    if placed.is_empty() {
        return Ok(false);
    }
    let find = "select 1 from unnest($2, $3) as u (name, entry) join narval.pending p on p.cache = $1 and p.kind = 'file' \
         and p.name = u.name group by u.name, u.entry having min(p.id) > u.entry limit 1";
    let (names, entries): (Vec<&str>, Vec<i64>) = placed.iter().map(|file| (file.name.as_str(), file.entry)).unzip();
    Ok(query_opt(client, find, &[p(&cache.0), p(&names), p(&entries)]).await?.is_some())
}

pub(super) async fn note_pending(change: &Change<'_>, cache: CacheId, pending: &Pending) -> Result<i64, Failed> {
    let (kind, name) = pending.row();
    let add = "insert into narval.pending (cache, kind, name) values ($1, $2, $3) returning id";
    let row = query_opt(change.client, add, &[p(&cache.0), p(&kind), p(&name)]).await?.ok_or(Failed::Changed)?;
    get(&row, 0)
}

/// Whether this is the only pending entry of a name below `nar/`; if no narinfo may name it, whether it is the last one and none does.
pub(super) async fn is_still_lost(
    client: &Client,
    cache: CacheId,
    name: &str,
    (entry, is_named): (i64, bool),
) -> Result<bool, Failed> {
    let find = "select 1 from narval.pending where cache = $1 and kind = 'file' and name = $2 \
         having max(id) = $3 and case when $4 = 1 then min(id) = $3 \
           else exists (select from narval.files where cache = $1 and name = $2 and orphaned is not null) end";
    let named = i64::from(is_named);
    let params = [p(&cache.0), p(&name), p(&entry), p(&named)];
    Ok(query_opt(client, find, &params).await?.is_some())
}

/// With the lock for oneself: whatever is added later has a greater number.
pub(super) async fn pending_max(change: &Change<'_>) -> Result<Option<i64>, Failed> {
    let row = query_opt(change.client, "select max(id) from narval.pending", &[]).await?;
    row.map_or(Ok(None), |row| get(&row, 0))
}
