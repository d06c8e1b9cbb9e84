//! Stored NARs and their names.

use std::collections::{BTreeSet, HashMap};

use narval_nix::{HashPart, Sha256};
use tokio_postgres::{Client, Row};

use super::caches::add_pending;
use super::failed::Failed;
use super::sql::{execute, get, hash, int, maybe_number, number, p, parsed, query, query_opt};
use super::together::Addition;
use super::transaction::Change;
use crate::NarFileName;
use crate::index::tx::split;
use crate::index::{COLLECTION, CacheId, NarRecord, Replaced};

pub(super) const COLUMNS: &str =
    "n.nar_hash, n.nar_size, n.compression, n.file_hash, n.file_size, n.listing_size, n.found";

/// A name whose NAR's bytes are being removed. A node of version 1 may have given it a path since, which ends that.
pub(super) const CONDEMNED: &str = "(f.fence is not null and f.orphaned is not null)";

pub(super) fn record(row: &Row) -> Result<NarRecord, Failed> {
    let found: &str = get(row, 6)?;
    Ok(NarRecord {
        nar_hash: hash(row, 0)?,
        nar_size: number(row, 1)?,
        compression: parsed(row, 2)?,
        file_hash: hash(row, 3)?,
        file_size: number(row, 4)?,
        listing_size: maybe_number(row, 5)?,
        found: split(found),
    })
}

fn named(row: &Row) -> Result<(String, NarRecord), Failed> {
    Ok((get(row, 7)?, record(row)?))
}

pub(super) async fn file(client: &Client, cache: CacheId, name: &str) -> Result<Option<NarRecord>, Failed> {
    let query = format!(
        "select {COLUMNS}, f.doomed from narval.files f join narval.nars n on n.id = f.nar \
         where f.cache = $1 and f.name = $2 and not {CONDEMNED} and (f.doomed is null or f.doomed > 0)"
    );
    let Some(row) = query_opt(client, &query, &[p(&cache.0), p(&name)]).await? else { return Ok(None) };
    if maybe_number(&row, 7)?.is_some() && !keep(client, cache, name).await? {
        return Ok(None);
    }
    record(&row).map(Some)
}

/// As [`file`], for each of these names.
pub(super) async fn files_named(
    client: &Client,
    cache: CacheId,
    names: &[&str],
) -> Result<HashMap<String, NarRecord>, Failed> {
    let all = format!(
        "select {COLUMNS}, f.name, f.doomed from narval.files f join narval.nars n on n.id = f.nar \
         where f.cache = $1 and f.name = any($2) and not {CONDEMNED} and (f.doomed is null or f.doomed > 0)"
    );
    let mut found = HashMap::new();
    for row in query(client, &all, &[p(&cache.0), p(&names.to_vec())]).await? {
        let (name, nar) = named(&row)?;
        if maybe_number(&row, 8)?.is_none() || keep(client, cache, &name).await? {
            found.insert(name, nar);
        }
    }
    Ok(found)
}

/// Ends the doom of a name, because somebody has asked for it and may rely on the answer. Returns `false` if it is condemned meanwhile.
async fn keep(client: &Client, cache: CacheId, name: &str) -> Result<bool, Failed> {
    let keep = format!(
        "update narval.files f set doomed = null, used = greatest(used, extract(epoch from now())::bigint) \
         where cache = $1 and name = $2 and not {CONDEMNED} and (doomed is null or doomed > 0)"
    );
    Ok(execute(client, &keep, &[p(&cache.0), p(&name)]).await? > 0)
}

/// Gives a name to a NAR, and returns the number of its pending entry. If its bytes are being removed, that has to end before.
/// Where a row has the hash of another file that is in use, nothing is done, and the result is `None`. If it is not in use, that file is lost and this one takes its place: the paths of the lost one are forgotten, since their
/// narinfos say what is no longer true. That needs the lock for oneself.
pub(super) async fn add_file(
    change: &Change<'_>,
    cache: CacheId,
    name: &str,
    nar: &NarRecord,
    (now, replaced): (u64, Replaced),
) -> Result<Option<i64>, Failed> {
    insert(change, nar).await?;
    let (mut id, file_hash, file_size) = locked(change, nar).await?;
    take_back(change, cache, name, id).await?;
    if (file_hash, file_size) != (nar.file_hash, nar.file_size) {
        if !change.is_alone {
            return Err(Failed::NeedsLock);
        }
        let own = NarFileName::new(file_hash, nar.compression).to_string();
        match replaced {
            Replaced::Kept if is_in_use(change, id, &own).await? => return Ok(None),
            Replaced::Kept => replace(change, (id, file_size), nar, now).await?,
            Replaced::Removed => {
                forget_names(change, id).await?;
                insert(change, nar).await?;
                (id, ..) = locked(change, nar).await?;
            }
        }
    }
    let bytes = int(nar.file_size.saturating_add(nar.listing_size.unwrap_or(0)));
    let add = "with counted as (update narval.caches set bytes = bytes + $4 where id = $1 \
           and not exists (select from narval.files where nar = $3 and cache = $1)), \
         noted as (insert into narval.pending (cache, kind, name) values ($1, 'file', $2) returning id), \
         named as (insert into narval.files as f (cache, name, nar, added, used, orphaned) values ($1, $2, $3, $5, $5, $5) \
         on conflict (cache, name) do update set nar = excluded.nar, used = excluded.used, doomed = null, fence = null, \
         orphaned = case when f.orphaned is null then null else excluded.orphaned end) select id from noted";
    let now = int(now);
    let row = query_opt(change.client, add, &[p(&cache.0), p(&name), p(&id), p(&bytes), p(&now)]).await?;
    get(&row.ok_or(Failed::Changed)?, 0).map(Some)
}

/// Whether names that are added get pending entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// They do: their files are about to be stored.
    Pending,
    /// They do not: their files are stored.
    None,
}

/// As [`add_file`] for several names and NARs of a cache, all different, in one step each. Where something is in the way of one of them,
/// nothing is done. Returns the names with the numbers under which they are pending.
pub(super) async fn add_files(
    change: &Change<'_>,
    additions: &[Addition],
    entry: Entry,
) -> Result<Vec<(String, i64)>, Failed> {
    let mut additions: Vec<&Addition> = additions.iter().collect();
    // In one order, so that two of these never wait for each other.
    additions.sort_by_key(|addition| (addition.nar.nar_hash, addition.nar.compression.name()));
    let Some(cache) = additions.first().map(|addition| addition.cache) else { return Ok(Vec::new()) };
    let bytes = |of: fn(&NarRecord) -> &[u8]| -> Vec<&[u8]> { additions.iter().map(|one| of(&one.nar)).collect() };
    let numbers = |of: fn(&NarRecord) -> u64| -> Vec<i64> { additions.iter().map(|one| int(of(&one.nar))).collect() };
    let (nar_hashes, file_hashes) = (bytes(|nar| nar.nar_hash.as_bytes()), bytes(|nar| nar.file_hash.as_bytes()));
    let (nar_sizes, file_sizes) = (numbers(|nar| nar.nar_size), numbers(|nar| nar.file_size));
    let compressions: Vec<&str> = additions.iter().map(|one| one.nar.compression.name()).collect();
    let listings: Vec<Option<i64>> = additions.iter().map(|one| one.nar.listing_size.map(int)).collect();
    let found: Vec<String> = additions.iter().map(|one| one.nar.found.iter().map(HashPart::as_str).collect()).collect();
    let insert = "insert into narval.nars (nar_hash, compression, nar_size, file_hash, file_size, listing_size, found) \
         select * from unnest($1, $2, $3, $4, $5, $6, $7) on conflict (nar_hash, compression) do nothing";
    let params =
        [p(&nar_hashes), p(&compressions), p(&nar_sizes), p(&file_hashes), p(&file_sizes), p(&listings), p(&found)];
    execute(change.client, insert, &params).await?;
    let lock = "select n.nar_hash, n.compression, n.id, n.file_hash, n.file_size, n.fence from narval.nars n \
         join unnest($1, $2) as u (nar_hash, compression) on n.nar_hash = u.nar_hash and n.compression = u.compression \
         order by n.nar_hash, n.compression for update of n";
    let rows = query(change.client, lock, &[p(&nar_hashes), p(&compressions)]).await?;
    let given: HashMap<(Sha256, &str), &NarRecord> =
        additions.iter().map(|one| ((one.nar.nar_hash, one.nar.compression.name()), &one.nar)).collect();
    let mut there: HashMap<(Sha256, &str), i64> = HashMap::new();
    for row in &rows {
        let (nar_hash, compression, id) = (hash(row, 0)?, get(row, 1)?, get(row, 2)?);
        let file = (hash(row, 3)?, number(row, 4)?);
        let same = given.get(&(nar_hash, compression)).is_some_and(|nar| (nar.file_hash, nar.file_size) == file);
        if !same || get::<Option<i64>>(row, 5)?.is_some() {
            return Err(Failed::Changed);
        }
        there.insert((nar_hash, compression), id);
    }
    let ids = additions.iter().map(|one| there.get(&(one.nar.nar_hash, one.nar.compression.name())).copied());
    let ids: Vec<i64> = ids.collect::<Option<_>>().ok_or(Failed::Changed)?;
    let names: Vec<&str> = additions.iter().map(|one| one.name.as_str()).collect();
    let condemned =
        format!("select 1 from narval.files f where f.cache = $1 and f.name = any($2) and {CONDEMNED} limit 1");
    if query_opt(change.client, &condemned, &[p(&cache.0), p(&names)]).await?.is_some() {
        return Err(Failed::Changed);
    }
    let bytes = numbers(|nar| nar.file_size.saturating_add(nar.listing_size.unwrap_or(0)));
    let now = int(additions.iter().map(|one| one.now).max().unwrap_or_default());
    let add = "with given as (select * from unnest($2, $3, $4) as u (name, nar, bytes)), \
         counted as (update narval.caches set bytes = bytes + coalesce((select sum(g.bytes) from given g \
           where not exists (select from narval.files f where f.nar = g.nar and f.cache = $1)), 0)::bigint where id = $1), \
         noted as (insert into narval.pending (cache, kind, name) select $1, 'file', g.name from given g where $6 = 1 \
           returning name, id), \
         filed as (insert into narval.files as f (cache, name, nar, added, used, orphaned) \
           select $1, g.name, g.nar, $5, $5, $5 from given g order by g.name collate \"C\" \
           on conflict (cache, name) do update set nar = excluded.nar, used = excluded.used, doomed = null, fence = null, \
           orphaned = case when f.orphaned is null then null else excluded.orphaned end) \
         select name, id from noted";
    let pending = i64::from(entry == Entry::Pending);
    let params = [p(&cache.0), p(&names), p(&ids), p(&bytes), p(&now), p(&pending)];
    let rows = query(change.client, add, &params).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
}

/// Ends the condemnation of a name and of its NAR, if the collection that removes their bytes was interrupted.
async fn take_back(change: &Change<'_>, cache: CacheId, name: &str, nar: i64) -> Result<(), Failed> {
    let fences = format!(
        "select fence from narval.nars where id = $3 and fence is not null \
         union select fence from narval.files f where cache = $1 and name = $2 and {CONDEMNED}"
    );
    let rows = query(change.client, &fences, &[p(&cache.0), p(&name), p(&nar)]).await?;
    let fences: Vec<i64> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
    if fences.is_empty() {
        return Ok(());
    }
    let active = "select from narval.leases_of_work where name = $1 and fence = any($2) and until > now() for share";
    // One that is being renewed is waited for.
    if query_opt(change.client, active, &[p(&COLLECTION), p(&fences)]).await?.is_some() {
        return Err(Failed::Condemned);
    }
    execute(change.client, "update narval.nars set fence = null where id = $1", &[p(&nar)]).await.map(drop)
}

async fn insert(change: &Change<'_>, nar: &NarRecord) -> Result<(), Failed> {
    let insert = "insert into narval.nars (nar_hash, compression, nar_size, file_hash, file_size, listing_size, found) \
         values ($1, $2, $3, $4, $5, $6, $7) on conflict (nar_hash, compression) do nothing";
    let (nar_hash, file_hash): (&[u8], &[u8]) = (nar.nar_hash.as_bytes(), nar.file_hash.as_bytes());
    let (nar_size, file_size, listing) = (int(nar.nar_size), int(nar.file_size), nar.listing_size.map(int));
    let (compression, found) = (nar.compression.name(), nar.found.iter().map(HashPart::as_str).collect::<String>());
    let params = [p(&nar_hash), p(&compression), p(&nar_size), p(&file_hash), p(&file_size), p(&listing), p(&found)];
    execute(change.client, insert, &params).await.map(drop)
}

/// The row of a NAR, which others who give it a name wait for.
async fn locked(change: &Change<'_>, nar: &NarRecord) -> Result<(i64, Sha256, u64), Failed> {
    let query = "select id, file_hash, file_size from narval.nars where nar_hash = $1 and compression = $2 for update";
    let (nar_hash, compression): (&[u8], _) = (nar.nar_hash.as_bytes(), nar.compression.name());
    let row = query_opt(change.client, query, &[p(&nar_hash), p(&compression)]).await?.ok_or(Failed::Changed)?;
    Ok((get(&row, 0)?, hash(&row, 1)?, number(&row, 2)?))
}

/// Whether a path has the file of this name, or it is stored and a narinfo may follow. With the lock for oneself.
async fn is_in_use(change: &Change<'_>, nar: i64, name: &str) -> Result<bool, Failed> {
    let find = format!(
        "select 1 from narval.files f where nar = $1 and name = $2 and not {CONDEMNED} and (doomed is null or doomed > 0) \
         and (orphaned is null or not exists (select from narval.pending p where p.cache = f.cache and p.kind = 'file' \
           and p.name = f.name)) limit 1"
    );
    Ok(query_opt(change.client, &find, &[p(&nar), p(&name)]).await?.is_some())
}

/// Gives a NAR another file, of which the old names are other names. The paths that are served from the old file are removed.
async fn replace(change: &Change<'_>, (id, old_size): (i64, u64), nar: &NarRecord, now: u64) -> Result<(), Failed> {
    let paths = "with gone as (delete from narval.paths p using narval.files f where f.nar = $1 and p.cache = f.cache \
           and p.file = f.name returning p.cache, p.hash_part) \
         insert into narval.pending (cache, kind, name) select cache, 'path', hash_part from gone";
    execute(change.client, paths, &[p(&id)]).await?;
    let files = "update narval.files set orphaned = coalesce(orphaned, $2) where nar = $1";
    execute(change.client, files, &[p(&id), p(&int(now))]).await?;
    // Objects have no listings.
    let bytes = "update narval.caches set bytes = greatest(0, bytes - $2 + $3) \
         where id in (select cache from narval.files where nar = $1)";
    execute(change.client, bytes, &[p(&id), p(&int(old_size)), p(&int(nar.file_size))]).await?;
    let update = "update narval.nars set file_hash = $2, file_size = $3 where id = $1";
    let file_hash: &[u8] = nar.file_hash.as_bytes();
    execute(change.client, update, &[p(&id), p(&file_hash), p(&int(nar.file_size))]).await?;
    change.is_visible().await
}

/// Forgets every name of a NAR, and the paths that are served from it.
async fn forget_names(change: &Change<'_>, nar: i64) -> Result<(), Failed> {
    let names = query(change.client, "select cache, name from narval.files where nar = $1", &[p(&nar)]).await?;
    for row in &names {
        remove_files(change, CacheId(get(row, 0)?), &[get(row, 1)?]).await?;
    }
    // A row that had no name at all.
    let last = "delete from narval.nars where id = $1 and not exists (select from narval.files where nar = $1)";
    execute(change.client, last, &[p(&nar)]).await.map(drop)
}

/// Forgets names that a collection has condemned, and whose bytes are gone.
pub(super) async fn forget(change: &Change<'_>, cache: CacheId, fence: i64, names: &[&str]) -> Result<(), Failed> {
    let files = format!(
        "delete from narval.files f where cache = $1 and name = any($2) and fence = $3 and {CONDEMNED} returning nar"
    );
    let rows = query(change.client, &files, &[p(&cache.0), p(&names.to_vec()), p(&fence)]).await?;
    let nars: BTreeSet<i64> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
    drop_nars(change, cache, &Vec::from_iter(nars), Some(fence)).await?;
    change.is_visible().await
}

/// Forgets names, whose files are gone, and the paths that are served from them. Needs the lock for oneself.
pub(super) async fn remove_files(change: &Change<'_>, cache: CacheId, names: &[&str]) -> Result<(), Failed> {
    if names.is_empty() {
        return Ok(());
    }
    let (client, names) = (change.client, names.to_vec());
    let paths = "with gone as (delete from narval.paths where cache = $1 and file = any($2) returning hash_part) \
         insert into narval.pending (cache, kind, name) select $1, 'path', hash_part from gone";
    execute(client, paths, &[p(&cache.0), p(&names.to_vec())]).await?;
    let files = "with gone as (delete from narval.files where cache = $1 and name = any($2) returning name, nar), \
         noted as (insert into narval.pending (cache, kind, name) select $1, 'file', name from gone) \
         select distinct nar from gone";
    let rows = query(client, files, &[p(&cache.0), p(&names.to_vec())]).await?;
    let nars: Vec<i64> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
    drop_nars(change, cache, &nars, None).await?;
    // Even where no path is hidden: nodes remember what names mean.
    change.is_visible().await
}

/// Counts NARs no more that have no name left in a cache, and removes the rows of those that have none at all. Their files are removed
/// later, unless the collection with this number has done so.
async fn drop_nars(change: &Change<'_>, cache: CacheId, nars: &[i64], removed_by: Option<i64>) -> Result<(), Failed> {
    let (client, nars) = (change.client, nars.to_vec());
    let bytes = "update narval.caches set bytes = greatest(0, bytes - coalesce((\
           select sum(n.file_size + coalesce(n.listing_size, 0)) from narval.nars n where n.id = any($2) \
           and not exists (select from narval.files f where f.nar = n.id and f.cache = $1)), 0)::bigint) where id = $1";
    execute(client, bytes, &[p(&cache.0), p(&nars)]).await?;
    let last = "delete from narval.nars n where n.id = any($1) \
         and not exists (select from narval.files f where f.nar = n.id) returning nar_hash, compression, fence";
    let mut left = Vec::new();
    for row in query(client, last, &[p(&nars)]).await? {
        let fence: Option<i64> = get(&row, 2)?;
        if fence.is_none() || fence != removed_by {
            left.push(format!("{} {}", hash(&row, 0)?, get::<&str>(&row, 1)?));
        }
    }
    let left: Vec<&str> = left.iter().map(String::as_str).collect();
    add_pending(change, cache, "blob", &left).await
}
