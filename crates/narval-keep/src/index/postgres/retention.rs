//! Uses, pins, and what is forgotten.

use std::collections::{BTreeSet, HashMap};

use narval_nix::HashPart;
use tokio_postgres::Client;

use super::caches::{add_pending, forget_pending_files};
use super::failed::Failed;
use super::nars::CONDEMNED;
use super::paths::orphan;
use super::sql::{execute, get, hash, int, maybe_number, number, p, parsed, query, query_opt, texts};
use super::transaction::Change;
use crate::index::{CacheId, Commit, Condemned, Cutoff, Used};
use crate::survey::Counted;

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
    // Doom after the use stays: 0 is of deleted paths, and a use that is long before it was known.
    let orphans = "update narval.files f set used = u.time, \
         doomed = case when f.doomed = 0 or u.time < f.doomed - 600 then f.doomed end \
         from unnest($1, $2, $3) as u (cache, file, time) where f.cache = u.cache and f.name = u.file and f.orphaned is not null and f.used < u.time";
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

pub(super) async fn count(
    client: &Client,
    cache: CacheId,
    lines: &[Vec<u8>],
    after: &str,
    max: usize,
) -> Result<Option<(Counted, String)>, Failed> {
    let some = "select count(*), count(*) filter (where exists (select from unnest($4) as wanted (line) where position(wanted.line in narinfo) = 0)), \
         coalesce(sum(listing_size), 0)::bigint, min(used), max(hash_part) from \
         (select hash_part, narinfo, listing_size, used from narval.paths where cache = $1 and hash_part > $2 \
           order by hash_part limit $3) step";
    let (lines, max) = (lines.to_vec(), int(max as u64));
    let Some(row) = query_opt(client, some, &[p(&cache.0), p(&after), p(&max), p(&lines)]).await? else {
        return Ok(None);
    };
    let Some(last) = get::<Option<String>>(&row, 4)? else { return Ok(None) };
    let counted = Counted {
        paths: number(&row, 0)?,
        unsigned: number(&row, 1)?,
        listing_bytes: number(&row, 2)?,
        oldest_use: maybe_number(&row, 3)?,
    };
    Ok(Some((counted, last)))
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
) -> Result<Commit, Failed> {
    let (client, parts) = (change.client, texts(paths));
    let others = "select from narval.refs r join narval.paths p on p.id = r.referrer \
         where r.reference = any($2) and p.cache = $1 and p.hash_part <> all($2) limit 1";
    if query_opt(client, others, &[p(&cache.0), p(&parts)]).await?.is_some() {
        return Ok(Commit::Changed);
    }
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
    // Every name and form of the NAR: what leaked is in each.
    let all = "update narval.files f set doomed = 0 from narval.nars n \
         where n.id = f.nar and f.cache = $1 and n.nar_hash = any($2) and f.orphaned is not null";
    let hashes: Vec<&[u8]> = gone.iter().map(|row| get(row, 2)).collect::<Result<_, _>>()?;
    execute(client, all, &[p(&cache.0), p(&hashes)]).await?;
    change.is_visible().await?;
    Ok(Commit::Done)
}

fn named(rows: &[tokio_postgres::Row]) -> Result<Vec<(String, u64)>, Failed> {
    rows.iter().map(|row| Ok((get(row, 0)?, number(row, 1)?))).collect()
}

pub(super) async fn doom(
    change: &Change<'_>,
    cache: CacheId,
    cutoff: Cutoff,
    max: usize,
    now: u64,
) -> Result<usize, Failed> {
    let client = change.client;
    execute(client, "delete from narval.leases where cache = $1 and until <= $2", &[p(&cache.0), p(&int(now))]).await?;
    let pins = "delete from narval.pins where cache = $1 and until is not null and until <= $2";
    execute(client, pins, &[p(&cache.0), p(&int(now))]).await?;
    // The conditions twice: another transaction may change a row between the two.
    let doom = "update narval.files set doomed = $4 where cache = $1 and orphaned <= $2 and used <= $3 and doomed is null \
         and fence is null and name in (select name from narval.files \
           where cache = $1 and orphaned <= $2 and used <= $3 and doomed is null and fence is null limit $5)";
    let (orphaned, used, now, max) = (int(cutoff.orphaned), int(cutoff.used), int(now), int(max as u64));
    let params = [p(&cache.0), p(&orphaned), p(&used), p(&now), p(&max)];
    let doomed = execute(client, doom, &params).await?;
    if doomed > 0 {
        // Other nodes remember what names mean.
        change.is_visible().await?;
    }
    Ok(usize::try_from(doomed).unwrap_or(usize::MAX))
}

pub(super) async fn condemn(
    change: &Change<'_>,
    fence: i64,
    cache: CacheId,
    cutoff: Option<Cutoff>,
    max: usize,
) -> Result<Condemned, Failed> {
    // An impossible time, if only what is left is to go.
    let cutoff = cutoff.map(|cutoff| (int(cutoff.orphaned), int(cutoff.used), cutoff.doomed.map(int)));
    let (orphaned, used, doomed) = cutoff.unwrap_or((-1, -1, None));
    // The conditions twice: another transaction may change a row between the two.
    let due = "update narval.files f set fence = $6 from narval.nars n where n.id = f.nar and f.cache = $1 \
         and f.orphaned is not null and (f.fence is not null or f.doomed = 0 \
           or (f.orphaned <= $2 and f.used <= $3 and ($4 is null or f.doomed <= $4))) and f.name in (\
           select name from narval.files where cache = $1 and orphaned is not null and (fence is not null or doomed = 0 \
             or (orphaned <= $2 and used <= $3 and ($4 is null or doomed <= $4))) order by name limit $5) \
         returning f.name, n.file_size, n.id";
    let max = int(max as u64);
    let params = [p(&cache.0), p(&orphaned), p(&used), p(&doomed), p(&max), p(&fence)];
    let rows = query(change.client, due, &params).await?;
    let names = named(&rows)?;
    if names.is_empty() {
        return Ok(Condemned::default());
    }
    forget_pending_files(change, cache, &names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>()).await?;
    let nars: Vec<i64> = rows.iter().map(|row| get(row, 2)).collect::<Result<_, _>>()?;
    let last = format!(
        "update narval.nars n set fence = $2 where id = any($1) \
         and not exists (select from narval.files f where f.nar = n.id and not {CONDEMNED}) returning nar_hash, compression"
    );
    let blobs = query(change.client, &last, &[p(&nars), p(&fence)]).await?;
    let blobs = blobs.iter().map(|row| Ok((hash(row, 0)?, parsed(row, 1)?))).collect::<Result<_, Failed>>()?;
    change.is_visible().await?;
    Ok(Condemned { names, blobs })
}

/// Whether there are condemned names, or those of deleted paths.
pub(super) async fn is_anything_left(client: &Client, cache: CacheId) -> Result<bool, Failed> {
    let left = format!("select from narval.files f where cache = $1 and ({CONDEMNED} or doomed = 0) limit 1");
    Ok(query_opt(client, &left, &[p(&cache.0)]).await?.is_some())
}

pub(super) async fn collected(client: &Client, cache: CacheId) -> Result<Option<u64>, Failed> {
    let ago = "select greatest(0, extract(epoch from now() - at))::bigint from narval.collected where cache = $1";
    query_opt(client, ago, &[p(&cache.0)]).await?.map(|row| number(&row, 0)).transpose()
}

pub(super) async fn note_collected(client: &Client, cache: CacheId) -> Result<(), Failed> {
    let note =
        "insert into narval.collected (cache, at) values ($1, now()) on conflict (cache) do update set at = now()";
    execute(client, note, &[p(&cache.0)]).await.map(drop)
}
