//! Uses, pins, and what is forgotten.

use std::collections::{BTreeSet, HashMap};

use narval_nix::HashPart;
use tokio_postgres::Client;

use super::Change;
use super::caches::add_pending;
use super::failed::Failed;
use super::nars::remove_files;
use super::paths::orphan;
use super::sql::{execute, get, int, maybe_number, number, p, parsed, query, query_opt, texts};
use crate::written::index::{CacheId, Cutoff, PinRecord, Snapshot, SnapshotPath, Used};

pub(super) async fn used(change: &Change<'_>, used: &[Used]) -> Result<(), Failed> {
    let latest = |subject: fn(&Used) -> Option<&str>| {
        let mut latest: HashMap<(i64, &str), u64> = HashMap::new();
        for used in used {
            if let Some(subject) = subject(used) {
                let time = latest.entry((used.cache.0, subject)).or_default();
                *time = (*time).max(used.time);
            }
        }
        let mut latest: Vec<_> = latest.into_iter().collect();
        // In one order, so that two nodes do not wait for each other.
        latest.sort_unstable_by_key(|(subject, _)| *subject);
        latest
    };
    let by_path = "update narval.paths p set used = u.time from unnest($1, $2, $3) as u (cache, part, time) \
         where p.cache = u.cache and p.hash_part = u.part and p.used < u.time";
    let by_file = "update narval.paths p set used = u.time from unnest($1, $2, $3) as u (cache, file, time) \
         where p.cache = u.cache and p.file = u.file and p.used < u.time";
    // Whoever was told that a NAR is here may be about to send its narinfo.
    let orphans = "update narval.files f set used = u.time from unnest($1, $2, $3) as u (cache, file, time) \
         where f.cache = u.cache and f.name = u.file and f.orphaned is not null and f.used < u.time";
    let (paths, files) = (latest(|used| used.path.as_ref().map(HashPart::as_str)), latest(|used| used.file.as_deref()));
    for (statement, subjects) in [(by_path, &paths), (by_file, &files), (orphans, &files)] {
        if subjects.is_empty() {
            continue;
        }
        let caches: Vec<i64> = subjects.iter().map(|((cache, _), _)| *cache).collect();
        let names: Vec<&str> = subjects.iter().map(|((_, name), _)| *name).collect();
        let times: Vec<i64> = subjects.iter().map(|(_, time)| int(*time)).collect();
        execute(change.client, statement, &[p(&caches), p(&names), p(&times)]).await?;
    }
    Ok(())
}

/// All of a cache, at one moment.
pub(super) async fn snapshot(client: &Client, cache: CacheId) -> Result<Snapshot, Failed> {
    client.batch_execute("begin isolation level repeatable read read only").await?;
    let snapshot = snapshot_within(client, cache).await;
    client.batch_execute("commit").await?;
    snapshot
}

async fn snapshot_within(client: &Client, cache: CacheId) -> Result<Snapshot, Failed> {
    let all = "select p.id, p.hash_part, p.path, p.used, coalesce(n.id, 0), coalesce(n.file_size, 0), \
         coalesce(n.listing_size, 0) from narval.paths p \
         left join narval.files f on f.cache = p.cache and f.name = p.file left join narval.nars n on n.id = f.nar \
         where p.cache = $1 order by p.id";
    let (mut paths, mut by_id) = (Vec::new(), HashMap::new());
    for row in query(client, all, &[p(&cache.0)]).await? {
        by_id.insert(get::<i64>(&row, 0)?, paths.len());
        paths.push(SnapshotPath {
            hash_part: parsed(&row, 1)?,
            path: get(&row, 2)?,
            used: number(&row, 3)?,
            nar: get(&row, 4)?,
            file_size: number(&row, 5)?,
            listing_size: number(&row, 6)?,
            references: Vec::new(),
        });
    }
    let refs = "select r.referrer, r.reference from narval.refs r join narval.paths p on p.id = r.referrer \
         where p.cache = $1";
    for row in query(client, refs, &[p(&cache.0)]).await? {
        if let Some(path) = by_id.get(&get::<i64>(&row, 0)?).and_then(|at| paths.get_mut(*at)) {
            path.references.push(parsed(&row, 1)?);
        }
    }
    let leases = query(client, "select hash_part, until from narval.leases where cache = $1", &[p(&cache.0)]).await?;
    let leases = leases.iter().map(|row| Ok((parsed(row, 0)?, number(row, 1)?))).collect::<Result<_, Failed>>()?;
    Ok(Snapshot { paths, pins: pins(client, cache).await?, leases })
}

pub(super) async fn hide(
    change: &Change<'_>,
    cache: CacheId,
    paths: &[(HashPart, u64)],
    now: u64,
) -> Result<Vec<HashPart>, Failed> {
    // One by one: a path may be held by one that is before it.
    let hide = "with gone as (delete from narval.paths p where cache = $1 and hash_part = $2 and used <= $3 \
           and not exists (select from narval.leases where cache = $1 and hash_part = $2 and until > $4) \
           and not exists (select from narval.pins where cache = $1 and hash_part = $2 and (until is null or until > $4)) \
           and not exists (select from narval.refs r join narval.paths p on p.id = r.referrer \
             where r.reference = $2 and p.cache = $1 and p.hash_part <> $2) returning file), \
         noted as (insert into narval.pending (cache, kind, name) select $1, 'path', $2 from gone) \
         select file from gone";
    let (mut hidden, mut files) = (Vec::new(), BTreeSet::new());
    for (part, used) in paths {
        let (text, used, now) = (part.as_str(), int(*used), int(now));
        let params = [p(&cache.0), p(&text), p(&used), p(&now)];
        if let Some(row) = query_opt(change.client, hide, &params).await? {
            files.insert(get::<String>(&row, 0)?);
            hidden.push(*part);
        }
    }
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    orphan(change, cache, &files, now).await?;
    if !hidden.is_empty() {
        change.is_visible().await?;
    }
    Ok(hidden)
}

pub(super) async fn delete(
    change: &Change<'_>,
    cache: CacheId,
    paths: &[HashPart],
    now: u64,
) -> Result<Vec<(String, u64)>, Failed> {
    let (client, parts) = (change.client, texts(paths));
    for table in ["pins", "leases"] {
        let delete = format!("delete from narval.{table} where cache = $1 and hash_part = any($2)");
        execute(client, &delete, &[p(&cache.0), p(&parts)]).await?;
    }
    let delete =
        "delete from narval.paths where cache = $1 and hash_part = any($2) returning hash_part, file, nar_hash";
    let gone = query(client, delete, &[p(&cache.0), p(&parts)]).await?;
    let parts: Vec<&str> = gone.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
    add_pending(change, cache, "path", &parts).await?;
    let files: Vec<&str> = gone.iter().map(|row| get(row, 1)).collect::<Result<_, _>>()?;
    orphan(change, cache, &files, now).await?;
    change.is_visible().await?;
    // Every name and form of the NAR: what leaked is in each.
    let all = "select f.name, n.file_size from narval.files f join narval.nars n on n.id = f.nar \
         where f.cache = $1 and n.nar_hash = any($2) and f.orphaned is not null order by f.name";
    let hashes: Vec<&[u8]> = gone.iter().map(|row| get(row, 2)).collect::<Result<_, _>>()?;
    let names = query(client, all, &[p(&cache.0), p(&hashes)]).await?;
    remove(change, cache, names).await
}

/// Forgets the names in these rows.
async fn remove(
    change: &Change<'_>,
    cache: CacheId,
    rows: Vec<tokio_postgres::Row>,
) -> Result<Vec<(String, u64)>, Failed> {
    let named = rows.iter().map(|row| Ok((get(row, 0)?, number(row, 1)?)));
    let named: Vec<(String, u64)> = named.collect::<Result<_, Failed>>()?;
    let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
    remove_files(change, cache, &names).await?;
    Ok(named)
}

const ORPHANS: &str = "select f.name, n.file_size from narval.files f join narval.nars n on n.id = f.nar \
     where f.cache = $1 and f.orphaned is not null and f.orphaned <= $2 and f.used <= $3 order by f.name limit $4";

pub(super) async fn orphans(client: &Client, cache: CacheId, cutoff: Cutoff) -> Result<Vec<(String, u64)>, Failed> {
    let (orphaned, used, max) = (int(cutoff.orphaned), int(cutoff.used), i64::MAX);
    let rows = query(client, ORPHANS, &[p(&cache.0), p(&orphaned), p(&used), p(&max)]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, number(row, 1)?))).collect()
}

pub(super) async fn sweep_files(
    change: &Change<'_>,
    cache: CacheId,
    cutoff: Cutoff,
    max: usize,
    now: u64,
) -> Result<Vec<(String, u64)>, Failed> {
    let client = change.client;
    execute(client, "delete from narval.leases where cache = $1 and until <= $2", &[p(&cache.0), p(&int(now))]).await?;
    let pins = "delete from narval.pins where cache = $1 and until is not null and until <= $2";
    execute(client, pins, &[p(&cache.0), p(&int(now))]).await?;
    let (orphaned, used, max) = (int(cutoff.orphaned), int(cutoff.used), int(max as u64));
    let rows = query(client, ORPHANS, &[p(&cache.0), p(&orphaned), p(&used), p(&max)]).await?;
    remove(change, cache, rows).await
}

pub(super) async fn referrers(client: &Client, cache: CacheId, part: &HashPart) -> Result<Vec<HashPart>, Failed> {
    let all = "select p.hash_part from narval.refs r join narval.paths p on p.id = r.referrer \
         where r.reference = $1 and p.cache = $2 and p.hash_part <> $1 order by p.path";
    let rows = query(client, all, &[p(&part.as_str()), p(&cache.0)]).await?;
    rows.iter().map(|row| parsed(row, 0)).collect()
}

pub(super) async fn pin(change: &Change<'_>, cache: CacheId, pin: &PinRecord) -> Result<(), Failed> {
    unpin(change, cache, &pin.name, Some(pin.hash_part)).await?;
    let add = "insert into narval.pins (cache, name, hash_part, path, created, until, keep) \
         values ($1, $2, $3, $4, $5, $6, $7)";
    let PinRecord { name, hash_part, path, created, until, keep } = pin;
    let (part, created, until) = (hash_part.as_str(), int(*created), until.map(int));
    let keep = keep.map(i64::from);
    let params = [p(&cache.0), p(name), p(&part), p(path), p(&created), p(&until), p(&keep)];
    execute(change.client, add, &params).await?;
    if keep.is_some() {
        let surplus = "delete from narval.pins where cache = $1 and name = $2 and id not in \
             (select id from narval.pins where cache = $1 and name = $2 order by id desc limit $3)";
        execute(change.client, surplus, &[p(&cache.0), p(name), p(&keep)]).await?;
    }
    Ok(())
}

pub(super) async fn unpin(
    change: &Change<'_>,
    cache: CacheId,
    name: &str,
    part: Option<HashPart>,
) -> Result<u64, Failed> {
    let part = part.as_ref().map(HashPart::as_str);
    let delete = "delete from narval.pins where cache = $1 and name = $2 and hash_part = coalesce($3, hash_part)";
    execute(change.client, delete, &[p(&cache.0), p(&name), p(&part)]).await
}

pub(super) async fn pins(client: &Client, cache: CacheId) -> Result<Vec<PinRecord>, Failed> {
    let all = "select name, hash_part, path, created, until, keep from narval.pins where cache = $1 \
         order by name, id desc";
    let rows = query(client, all, &[p(&cache.0)]).await?;
    let record = |row: &tokio_postgres::Row| {
        Ok(PinRecord {
            name: get(row, 0)?,
            hash_part: parsed(row, 1)?,
            path: get(row, 2)?,
            created: number(row, 3)?,
            until: maybe_number(row, 4)?,
            keep: maybe_number(row, 5)?.map(|keep| u32::try_from(keep).unwrap_or(u32::MAX)),
        })
    };
    rows.iter().map(record).collect()
}
