//! Paths, their references, and leases.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use narval_nix::HashPart;
use tokio_postgres::Client;

use super::caches::add_pending;
use super::failed::Failed;
use super::nars::CONDEMNED;
use super::sql::{execute, get, int, p, parsed, query, texts};
use super::transaction::Change;
use crate::index::{CacheId, Commit, PathRecord};

/// Paths in one statement: a statement is in memory as a whole, here and in the database.
const STEP: usize = 4096;

pub(super) async fn present(client: &Client, cache: CacheId, hash_parts: &[HashPart]) -> Result<Vec<bool>, Failed> {
    if hash_parts.is_empty() {
        return Ok(Vec::new());
    }
    let all = "select hash_part from narval.paths where cache = $1 and hash_part = any($2)";
    let rows = query(client, all, &[p(&cache.0), p(&texts(hash_parts))]).await?;
    let found: BTreeSet<HashPart> = rows.iter().map(|row| parsed(row, 0)).collect::<Result<_, _>>()?;
    Ok(hash_parts.iter().map(|part| found.contains(part)).collect())
}

/// Makes paths visible.
///
/// Rows are locked in one order before anything is looked at: paths, then the files that they name or named. So two commits never
/// wait for each other, and whether a file has become an orphan is decided by a statement that sees all commits before it.
pub(super) async fn commit(
    change: &Change<'_>,
    cache: CacheId,
    paths: &[PathRecord],
    now: u64,
) -> Result<Commit, Failed> {
    let paths: BTreeMap<HashPart, &PathRecord> = paths.iter().map(|path| (path.hash_part, path)).collect();
    let paths: Vec<&PathRecord> = paths.into_values().collect();
    let old = lock(change, cache, &paths).await?;
    let new: BTreeSet<&str> = paths.iter().map(|path| path.file.as_str()).collect();
    lock_files(change, cache, &new, &old).await?;
    for step in paths.chunks(STEP) {
        let (known, added): (Vec<&PathRecord>, Vec<&PathRecord>) = step.iter().partition(|path| path.version > 0);
        let mut ids = write(change, cache, &known, now, UPDATE).await?;
        ids.extend(write(change, cache, &added, now, INSERT).await?);
        // Somebody else has added one since the rows were locked.
        if ids.len() < step.len() {
            return Err(Failed::Changed);
        }
        refer(change, step, &ids).await?;
        let parts: Vec<&str> = step.iter().map(|path| path.hash_part.as_str()).collect();
        add_pending(change, cache, "path", &parts).await?;
    }
    let adopt = "update narval.files set orphaned = null, doomed = null, used = $3 where cache = $1 and name = any($2)";
    execute(change.client, adopt, &[p(&cache.0), p(&Vec::from_iter(new)), p(&int(now))]).await?;
    let old: Vec<&str> = old.iter().map(String::as_str).collect();
    orphan(change, cache, &old, now).await?;
    change.is_visible().await?;
    Ok(Commit::Done)
}

const UPDATE: &str = "update narval.paths p set path = u.path, nar_hash = u.nar_hash, file = u.file, narinfo = u.narinfo, \
     listing_size = u.listing, version = p.version + 1, used = $8 \
     from unnest($2, $3, $4, $5, $6, $7) as u (part, path, nar_hash, file, narinfo, listing) \
     where p.cache = $1 and p.hash_part = u.part returning p.hash_part, p.id";

/// In the order of the hash parts, as everybody does it.
const INSERT: &str = "insert into narval.paths \
     (cache, hash_part, path, nar_hash, file, narinfo, listing_size, version, added, used) \
     select $1, u.part, u.path, u.nar_hash, u.file, u.narinfo, u.listing, 1, $8, $8 \
     from unnest($2, $3, $4, $5, $6, $7) as u (part, path, nar_hash, file, narinfo, listing) order by u.part collate \"C\" \
     on conflict (cache, hash_part) do nothing returning hash_part, id";

async fn write(
    change: &Change<'_>,
    cache: CacheId,
    paths: &[&PathRecord],
    now: u64,
    statement: &str,
) -> Result<HashMap<HashPart, i64>, Failed> {
    if paths.is_empty() {
        return Ok(HashMap::new());
    }
    let column = |value: fn(&PathRecord) -> &str| -> Vec<&str> { paths.iter().map(|path| value(path)).collect() };
    let bytes = |value: fn(&PathRecord) -> &[u8]| -> Vec<&[u8]> { paths.iter().map(|path| value(path)).collect() };
    let (part, path, file) =
        (column(|path| path.hash_part.as_str()), column(|path| &path.path), column(|path| &path.file));
    let (nar_hash, narinfo) = (bytes(|path| path.nar_hash.as_bytes()), bytes(|path| &path.narinfo));
    let listing: Vec<Option<i64>> = paths.iter().map(|path| path.listing_size.map(int)).collect();
    let now = int(now);
    let params = [p(&cache.0), p(&part), p(&path), p(&nar_hash), p(&file), p(&narinfo), p(&listing), p(&now)];
    let rows = query(change.client, statement, &params).await?;
    rows.iter().map(|row| Ok((parsed(row, 0)?, get(row, 1)?))).collect()
}

/// Records what paths refer to, in place of what they referred to.
async fn refer(change: &Change<'_>, paths: &[&PathRecord], ids: &HashMap<HashPart, i64>) -> Result<(), Failed> {
    let known = paths.iter().filter(|path| path.version > 0);
    let known: Vec<i64> = known.filter_map(|path| ids.get(&path.hash_part).copied()).collect();
    if !known.is_empty() {
        execute(change.client, "delete from narval.refs where referrer = any($1)", &[p(&known)]).await?;
    }
    let (mut referrers, mut references) = (Vec::new(), Vec::new());
    for path in paths {
        let Some(id) = ids.get(&path.hash_part) else { continue };
        referrers.extend(std::iter::repeat_n(*id, path.references.len()));
        references.extend(path.references.iter().map(HashPart::as_str));
    }
    let add = "insert into narval.refs (referrer, reference) select * from unnest($1, $2) on conflict do nothing";
    if references.is_empty() {
        return Ok(());
    }
    execute(change.client, add, &[p(&referrers), p(&references)]).await.map(drop)
}

/// Locks the rows of paths, which must have the versions of their records. Returns the files that they name so far.
async fn lock(change: &Change<'_>, cache: CacheId, paths: &[&PathRecord]) -> Result<BTreeSet<String>, Failed> {
    let lock = "select hash_part, version, file from narval.paths where cache = $1 and hash_part = any($2) \
         order by hash_part for update";
    let mut files = BTreeSet::new();
    for step in paths.chunks(STEP) {
        let parts: Vec<&str> = step.iter().map(|path| path.hash_part.as_str()).collect();
        let rows = query(change.client, lock, &[p(&cache.0), p(&parts)]).await?;
        let mut versions: HashMap<HashPart, i64> = HashMap::new();
        for row in &rows {
            versions.insert(parsed(row, 0)?, get(row, 1)?);
            files.insert(get(row, 2)?);
        }
        if step.iter().any(|path| versions.get(&path.hash_part).copied().unwrap_or(0) != path.version) {
            return Err(Failed::Changed);
        }
    }
    Ok(files)
}

/// Locks the rows of files. Those that paths are to name must be there, and not be condemned.
async fn lock_files(
    change: &Change<'_>,
    cache: CacheId,
    new: &BTreeSet<&str>,
    old: &BTreeSet<String>,
) -> Result<(), Failed> {
    let lock = format!(
        "select name from narval.files f where cache = $1 and name = any($2) and not {CONDEMNED} order by name for update"
    );
    let all: BTreeSet<&str> = new.iter().copied().chain(old.iter().map(String::as_str)).collect();
    let rows = query(change.client, &lock, &[p(&cache.0), p(&Vec::from_iter(all))]).await?;
    let found: BTreeSet<&str> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
    if new.is_subset(&found) { Ok(()) } else { Err(Failed::Changed) }
}

pub(super) async fn rename(
    change: &Change<'_>,
    cache: CacheId,
    paths: &[PathRecord],
    old: &str,
    orphaned: u64,
) -> Result<Commit, Failed> {
    let paths: BTreeMap<HashPart, &PathRecord> = paths.iter().map(|path| (path.hash_part, path)).collect();
    let paths: Vec<&PathRecord> = paths.into_values().collect();
    let mut files = lock(change, cache, &paths).await?;
    files.insert(old.to_owned());
    let new: BTreeSet<&str> = paths.iter().map(|path| path.file.as_str()).collect();
    lock_files(change, cache, &new, &files).await?;
    let rename = "update narval.paths p set file = u.file, narinfo = u.narinfo, version = p.version + 1 \
         from unnest($2, $3, $4) as u (part, file, narinfo) where p.cache = $1 and p.hash_part = u.part";
    let parts: Vec<&str> = paths.iter().map(|path| path.hash_part.as_str()).collect();
    let names: Vec<&str> = paths.iter().map(|path| path.file.as_str()).collect();
    let narinfos: Vec<&[u8]> = paths.iter().map(|path| path.narinfo.as_slice()).collect();
    execute(change.client, rename, &[p(&cache.0), p(&parts), p(&names), p(&narinfos)]).await?;
    let adopt = "update narval.files set orphaned = null, doomed = null where cache = $1 and name = any($2)";
    execute(change.client, adopt, &[p(&cache.0), p(&Vec::from_iter(new))]).await?;
    add_pending(change, cache, "path", &parts).await?;
    orphan(change, cache, &[old], orphaned).await?;
    change.is_visible().await?;
    Ok(Commit::Done)
}

/// Notes that no narinfo names these files any more, where that is so. Their rows are locked.
pub(super) async fn orphan(change: &Change<'_>, cache: CacheId, files: &[&str], now: u64) -> Result<(), Failed> {
    if files.is_empty() {
        return Ok(());
    }
    let orphan = "update narval.files f set orphaned = $3, doomed = null where cache = $1 and name = any($2) \
         and not exists (select from narval.paths p where p.cache = $1 and p.file = f.name)";
    execute(change.client, orphan, &[p(&cache.0), p(&files.to_vec()), p(&int(now))]).await.map(drop)
}

pub(super) async fn lease(
    change: &Change<'_>,
    cache: CacheId,
    hash_parts: &[HashPart],
    until: u64,
) -> Result<Vec<HashPart>, Failed> {
    // In one order: others lease the same paths.
    let lease = "insert into narval.leases as l (cache, hash_part, until) select cache, hash_part, $3 from narval.paths \
         where cache = $1 and hash_part = any($2) order by hash_part \
         on conflict (cache, hash_part) do update set until = greatest(l.until, excluded.until) returning hash_part";
    let rows = query(change.client, lease, &[p(&cache.0), p(&texts(hash_parts)), p(&int(until))]).await?;
    rows.iter().map(|row| parsed(row, 0)).collect()
}
