//! What makes paths visible, and changes them.
//!
//! Rows are locked in one order before anything is looked at: the paths that are changed, those that they refer to, then the files that they name
//! or named. So two commits never wait for each other, and whether a file has become an orphan is decided by a statement that sees all commits
//! before it. Whoever hides paths locks them, too, and leaves those alone that somebody else has locked.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use narval_nix::HashPart;

use super::STEP;
use crate::index::sql::pending;
use crate::index::tx::{Arg, LARGE, NOTE, Refused, Row, Sql, Tx, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::paths::{CacheId, Commit, PathRecord};
use crate::rule::holds;

statements! {
    LOCK(Int) { part: Text } = "select p.hash_part, p.version, p.file from narval.paths p where p.cache = $1 \
         and p.hash_part in (select r.part from {rows}) order by p.hash_part{lock}";
    /// Those that paths refer to stay until the commit ends, after which they have a referrer.
    HOLD(Int) { part: Text } = "select p.hash_part from narval.paths p where p.cache = $1 \
         and p.hash_part in (select r.part from {rows}) order by p.hash_part{hold}";
    LOCK_FILES(Int) { name: Text } = "select n.name from narval.nars n where n.cache = $1 and n.name in (select r.name from {rows}) \
         order by n.name{lock}";
    UPDATE(Int, Int) { part: Text, path: Text, nar_hash: Bytes, file: Text, narinfo: Bytes, listing: Int } =
        "update narval.paths as p set path = r.path, nar_hash = r.nar_hash, file = r.file, narinfo = r.narinfo, \
         listing_size = r.listing, version = p.version + 1, used = $2 from {rows} \
         where p.cache = $1 and p.hash_part = r.part returning hash_part, id";
    /// In the order of the hash parts, as everybody does it.
    INSERT(Int, Int) { part: Text, path: Text, nar_hash: Bytes, file: Text, narinfo: Bytes, listing: Int } =
        "insert into narval.paths (cache, hash_part, path, nar_hash, file, narinfo, listing_size, version, added, used) \
         select $1, r.part, r.path, r.nar_hash, r.file, r.narinfo, r.listing, 1, $2, $2 from {rows} where true \
         on conflict (cache, hash_part) do nothing returning hash_part, id";
    UNREFER() { id: Int } = "delete from narval.refs where referrer in (select r.id from {rows})";
    REFER() { referrer: Int, reference: Text } = "insert into narval.refs (referrer, reference) select r.referrer, r.reference from {rows} \
         where true on conflict do nothing";
    ADOPT(Int, Int) { name: Text } = "update narval.nars set orphaned = null, used = coalesce($2, used) \
         where cache = $1 and name in (select r.name from {rows})";
    ORPHAN(Int, Int) { name: Text } = "update narval.nars as n set orphaned = $2 where n.cache = $1 \
         and n.name in (select r.name from {rows}) and not exists (select 1 from narval.paths p where p.cache = $1 and p.file = n.name)";
    RENAME(Int) { part: Text, file: Text, narinfo: Bytes } = "update narval.paths as p set file = r.file, narinfo = r.narinfo, \
         version = p.version + 1 from {rows} where p.cache = $1 and p.hash_part = r.part";
}

/// Notes that no narinfo names these files any more, where that is so. Their rows are locked.
pub(in crate::index::sql) fn orphan<'a>(
    tx: &mut dyn Tx,
    cache: CacheId,
    files: impl Iterator<Item = &'a str>,
    now: u64,
) -> Result<(), TxError> {
    tx.execute_all(&ORPHAN, &args![cache, now], &files.map(Arg::from).collect::<Vec<_>>()).map(drop)
}

/// Locks the rows of paths, which must have the versions of their records. Returns the files that they name so far.
fn lock(tx: &mut dyn Tx, cache: CacheId, paths: &[&PathRecord]) -> Result<BTreeSet<String>, TxError> {
    let mut files = BTreeSet::new();
    for step in paths.chunks(STEP) {
        let parts: Vec<Arg<'_>> = step.iter().map(|path| Arg::from(&path.hash_part)).collect();
        let row = |row: &dyn Row| Ok((row.parsed::<HashPart>(0)?, row.get::<i64>(1)?, row.get::<String>(2)?));
        let mut versions = HashMap::new();
        for (part, version, file) in tx.all_of(&LOCK, &args![cache], &parts, row)? {
            versions.insert(part, version);
            files.insert(file);
        }
        if step.iter().any(|path| versions.get(&path.hash_part).copied().unwrap_or(0) != path.version) {
            return Err(Refused::Changed.into());
        }
    }
    Ok(files)
}

/// Keeps the rows of paths as they are, except for changes that leave them there. Returns those that are there.
pub(in crate::index::sql) fn hold(
    tx: &mut dyn Tx,
    cache: CacheId,
    parts: &BTreeSet<HashPart>,
) -> Result<Vec<HashPart>, TxError> {
    let (parts, mut held) = (Vec::from_iter(parts), Vec::with_capacity(parts.len()));
    for step in parts.chunks(STEP) {
        let rows: Vec<Arg<'_>> = step.iter().map(|part| Arg::from(*part)).collect();
        held.extend(tx.all_of(&HOLD, &args![cache], &rows, |row| row.parsed::<HashPart>(0))?);
    }
    Ok(held)
}

/// Locks the rows of files.
fn lock_files(tx: &mut dyn Tx, cache: CacheId, new: &BTreeSet<&str>, old: &BTreeSet<String>) -> Result<(), TxError> {
    let all: BTreeSet<&str> = new.iter().copied().chain(old.iter().map(String::as_str)).collect();
    let all: Vec<Arg<'_>> = all.into_iter().map(Arg::from).collect();
    let found = tx.all_of(&LOCK_FILES, &args![cache], &all, |row| row.get::<String>(0))?;
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    if new.is_subset(&found) || !holds!(Stored) { Ok(()) } else { Err(Refused::Changed.into()) }
}

/// Writes the rows of paths. Returns their ids.
fn write(
    tx: &mut dyn Tx,
    sql: &'static Sql,
    cache: CacheId,
    (paths, now): (&[&PathRecord], u64),
) -> Result<HashMap<HashPart, i64>, TxError> {
    if paths.is_empty() {
        return Ok(HashMap::new());
    }
    let mut rows = Vec::with_capacity(6 * paths.len());
    for PathRecord { hash_part, path, nar_hash, file, narinfo, listing_size, .. } in paths.iter().copied() {
        rows.extend(args![hash_part, path, nar_hash, file, narinfo.as_slice(), *listing_size]);
    }
    let ids = tx.all_of(sql, &args![cache, now], &rows, |row| Ok((row.parsed(0)?, row.get(1)?)))?;
    Ok(ids.into_iter().collect())
}

/// Records what paths refer to, in place of what they referred to.
fn refer(tx: &mut dyn Tx, paths: &[&PathRecord], ids: &HashMap<HashPart, i64>) -> Result<(), TxError> {
    let known = paths.iter().filter(|path| path.version > 0);
    let known: Vec<Arg<'_>> = known.filter_map(|path| ids.get(&path.hash_part).copied().map(Arg::from)).collect();
    tx.execute_all(&UNREFER, &[], &known)?;
    let mut references = Vec::new();
    for path in paths {
        let Some(id) = ids.get(&path.hash_part) else { continue };
        references.extend(path.references.iter().flat_map(|reference| args![*id, reference]));
    }
    tx.execute_all(&REFER, &[], &references).map(drop)
}

/// Records of paths, in the order in which their rows are locked.
fn in_order(paths: &[PathRecord]) -> Vec<&PathRecord> {
    let paths: BTreeMap<&HashPart, &PathRecord> = paths.iter().map(|path| (&path.hash_part, path)).collect();
    paths.into_values().collect()
}

fn commit(
    tx: &mut dyn Tx,
    cache: CacheId,
    paths: &[PathRecord],
    (needed, now): (&BTreeSet<HashPart>, u64),
) -> Result<i64, TxError> {
    let paths = in_order(paths);
    let old = lock(tx, cache, &paths)?;
    if holds!(Needed) && hold(tx, cache, needed)?.len() < needed.len() {
        return Err(Refused::Changed.into());
    }
    let new: BTreeSet<&str> = paths.iter().map(|path| path.file.as_str()).collect();
    lock_files(tx, cache, &new, &old)?;
    let mut last = 0;
    for step in paths.chunks(STEP) {
        let (known, added): (Vec<&PathRecord>, Vec<&PathRecord>) = step.iter().partition(|path| path.version > 0);
        let mut ids = write(tx, &UPDATE, cache, (&known, now))?;
        ids.extend(write(tx, &INSERT, cache, (&added, now))?);
        // Somebody else has added one since the rows were locked.
        if ids.len() < step.len() {
            return Err(Refused::Changed.into());
        }
        refer(tx, step, &ids)?;
        last = pending::add(tx, cache, step.iter().map(|path| &path.hash_part))?.max(last);
    }
    tx.execute_all(&ADOPT, &args![cache, now], &new.into_iter().map(Arg::from).collect::<Vec<_>>())?;
    orphan(tx, cache, old.iter().map(String::as_str), now)?;
    tx.is_visible()?;
    Ok(last)
}

impl dyn Index + '_ {
    /// Makes paths visible, durably, and either all or none: each must still have the version of its record, and the paths in `needed` and the
    /// NARs must be there. Returns the greatest number of their pending entries; `None` if another writer has changed something meanwhile.
    pub(crate) fn commit_numbered(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        needed: &[HashPart],
        now: u64,
    ) -> Result<Option<i64>, IndexError> {
        let needed: BTreeSet<HashPart> = needed.iter().copied().collect();
        self.try_write(LARGE, move |tx| commit(tx, cache, &paths, (&needed, now)))
    }

    /// As [`commit_numbered`](Self::commit_numbered).
    pub(crate) fn commit(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        needed: &[HashPart],
        now: u64,
    ) -> Result<Commit, IndexError> {
        let number = self.commit_numbered(cache, paths, needed, now)?;
        Ok(number.map_or(Commit::Changed, |_| Commit::Done))
    }

    /// Points paths to another file of their NAR, durably, and either all or none: each must still have the version of its record.
    /// This does not count as a use. Nothing names the old file afterwards, and it counts as orphaned since `orphaned`.
    /// Returns the same as [`commit_numbered`](Self::commit_numbered).
    pub(crate) fn rename(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        old: &str,
        orphaned: u64,
    ) -> Result<Option<i64>, IndexError> {
        let old = old.to_owned();
        self.try_write(NOTE, move |tx| {
            let paths = in_order(&paths);
            let mut files = lock(tx, cache, &paths)?;
            files.insert(old.clone());
            let new: BTreeSet<&str> = paths.iter().map(|path| path.file.as_str()).collect();
            lock_files(tx, cache, &new, &files)?;
            let mut rows = Vec::with_capacity(3 * paths.len());
            for PathRecord { hash_part, file, narinfo, .. } in paths.iter().copied() {
                rows.extend(args![hash_part, file, narinfo.as_slice()]);
            }
            tx.execute_all(&RENAME, &args![cache], &rows)?;
            let new: Vec<Arg<'_>> = new.into_iter().map(Arg::from).collect();
            tx.execute_all(&ADOPT, &args![cache, None::<u64>], &new)?;
            let last = pending::add(tx, cache, paths.iter().map(|path| &path.hash_part))?;
            orphan(tx, cache, std::iter::once(old.as_str()), orphaned)?;
            tx.is_visible()?;
            Ok(last)
        })
    }
}
