//! Stored NARs and their names.

pub(in crate::index) mod lost;
pub(in crate::index) mod uploads;
pub(in crate::index) mod writers;

use std::collections::{BTreeSet, HashMap};

use narval_nix::{Compression, HashPart, NarHash, Sha256};

use super::pending;
use crate::NarFileName;
use crate::index::tx::{Arg, LARGE, NOTE_LATER, Reading, Refused, Row, Tx, TxError, args, split, statements};
use crate::index::{COLLECTION, CacheId, Cutoff, Fence, Index, IndexError, Lost, NarRecord, Replaced, Usage};
use crate::rule::holds;

macro_rules! columns {
    () => {
        "n.nar_hash, n.nar_size, n.compression, n.file_hash, n.file_size, n.listing_size, n.found"
    };
}

/// A name whose NAR's bytes are being removed.
macro_rules! condemned {
    () => {
        "(f.fence is not null and f.orphaned is not null)"
    };
}

pub(super) use {columns, condemned};

statements! {
    NAR(Int, Bytes, Text) = concat!(
        "select ", columns!(), " from narval.nars n where cache = $1 and nar_hash = $2 and compression = $3 and fence is null"
    );
    FILES(Int) = concat!(
        "select ", columns!(), ", f.name from narval.files f join narval.nars n on n.id = f.nar where f.cache = $1 and not ",
        condemned!(), " order by f.name"
    );
    FILES_OF(Int, Bytes) = concat!(
        "select ", columns!(), ", f.name from narval.nars n join narval.files f on f.nar = n.id \
         where n.cache = $1 and n.nar_hash = $2 and f.doomed is null and not ", condemned!(), " order by f.name"
    );
    NOT_ZSTD(Int, Text, Text, Int) = "select f.name from narval.files f join narval.nars n on n.id = f.nar where f.cache = $1 \
         and f.name > $2 and f.orphaned is null and n.compression <> $3 order by f.name limit $4";
    USAGE(Int) = "select (select count(*) from narval.paths where cache = $1), \
         (select count(*) from narval.files where cache = $1), coalesce((select bytes from narval.caches where id = $1), 0)";
    ORPHANS(Int, Int, Int) = "select f.name, n.file_size from narval.files f join narval.nars n on n.id = f.nar where f.cache = $1 \
         and f.orphaned is not null and (f.fence is not null or f.doomed = 0 or (f.orphaned <= $2 and f.used <= $3)) \
         order by f.name";
    NAMED(Int) { name: Text } = concat!(
        "select ", columns!(), ", f.name, f.doomed is not null or (f.orphaned is not null and f.orphaned <= {now} - 600 \
           and f.used <= {now} - 600 and not exists (select 1 from narval.pending p where p.cache = $1 and p.kind = 'file' and p.name = f.name)) \
         from {rows} join narval.files f on f.cache = $1 and f.name = r.name \
         join narval.nars n on n.id = f.nar where not ", condemned!(), " and (f.doomed is null or f.doomed > 0)"
    );
    KEEP(Int) { name: Text } = concat!(
        "update narval.files as f set doomed = null, used = greatest(f.used, {now}) where f.cache = $1 \
         and f.name in (select r.name from {rows}) and not ", condemned!(), " and (f.doomed is null or f.doomed > 0) returning name"
    );
    INSERT(Int) { nar_hash: Bytes, compression: Text, nar_size: Int, file_hash: Bytes, file_size: Int, listing_size: Int, found: Text } =
        "insert into narval.nars (cache, nar_hash, compression, nar_size, file_hash, file_size, listing_size, found) \
         select $1, r.nar_hash, r.compression, r.nar_size, r.file_hash, r.file_size, r.listing_size, r.found from {rows} where true \
         on conflict (cache, nar_hash, compression) do nothing";
    LOCK(Int) { nar_hash: Bytes, compression: Text } = "select n.id, n.nar_hash, n.compression, n.file_hash, n.file_size, n.fence from {rows} \
         join narval.nars n on n.cache = $1 and n.nar_hash = r.nar_hash and n.compression = r.compression \
         order by n.nar_hash, n.compression{lock}";
    LOCK_NARS() { id: Int } = "select n.id from {rows} join narval.nars n on n.id = r.id order by n.nar_hash, n.compression{lock}";
    NARS_OF(Int) { name: Text } = "select distinct f.nar from {rows} join narval.files f on f.cache = $1 and f.name = r.name";
    LOCK_NAMES(Int) = "select f.name from narval.files f where f.nar = $1 order by f.name{lock}";
    LOCK_NAME(Int, Text) = "select 1 from narval.files f where f.cache = $1 and f.name = $2{lock}";
    ARE_CONDEMNED(Int) { name: Text } = concat!(
        "select 1 from {rows} join narval.files f on f.cache = $1 and f.name = r.name where ", condemned!()
    );
    IS_REMOVING(Int, Text, Int, Text) = concat!(
        "select 1 from narval.work w where w.name = $4 and w.until > {now} and (\
           w.fence in (select n.fence from narval.nars n where n.id = $3) \
           or w.fence in (select f.fence from narval.files f where f.cache = $1 and f.name = $2 and ", condemned!(), "))"
    );
    TAKE_BACK(Int) = "update narval.nars set fence = null where id = $1 and fence is not null";
    TAKE_BACK_NAME(Int, Text) = concat!(
        "update narval.files as f set fence = null where f.cache = $1 and f.name = $2 and ", condemned!()
    );
    NEW_BYTES() { nar: Int, bytes: Int } = "select cast(coalesce(sum(r.bytes), 0) as bigint) from {rows} \
         where not exists (select 1 from narval.files f where f.nar = r.nar)";
    COUNT(Int, Int) = "update narval.caches set bytes = greatest(0, bytes + $2) where id = $1";
    /// One that a collection has condemned meanwhile stays so.
    NAME(Int, Int) { name: Text, nar: Int } = concat!(
        "insert into narval.files as f (cache, name, nar, added, used, orphaned) \
         select $1, r.name, r.nar, $2, $2, $2 from {rows} where true on conflict (cache, name) do update set nar = excluded.nar, \
         used = excluded.used, doomed = null, fence = null, \
         orphaned = case when f.orphaned is null then null else excluded.orphaned end where not ", condemned!()
    );
    IS_IN_USE(Int, Text) = concat!(
        "select 1 from narval.files f where f.nar = $1 and f.name = $2 and not ", condemned!(), " and (f.doomed is null or f.doomed > 0) \
         and (f.orphaned is null or not exists (select 1 from narval.pending p where p.cache = f.cache and p.kind = 'file' \
           and p.name = f.name)) limit 1"
    );
    LOSE_PATHS(Int, Int) = "delete from narval.paths where cache = $1 and file in (select f.name from narval.files f where f.nar = $2) \
         returning hash_part";
    ORPHAN_ALL(Int, Int) = "update narval.files set orphaned = coalesce(orphaned, $2) where nar = $1";
    REPLACE(Int, Bytes, Int) = "update narval.nars set file_hash = $2, file_size = $3 where id = $1";
    NAMES_OF(Int) = "select name from narval.files where nar = $1";
    REMOVE_PATHS(Int) { name: Text } = "delete from narval.paths where cache = $1 and file in (select r.name from {rows}) returning hash_part";
    REMOVE_FILES(Int) { name: Text } = "delete from narval.files where cache = $1 and name in (select r.name from {rows}) returning name, nar";
    FORGET(Int, Int) { name: Text } = concat!(
        "delete from narval.files as f where f.cache = $1 and f.fence = $2 and f.name in (select r.name from {rows}) and ",
        condemned!(), " returning nar"
    );
    DROP() { nar: Int } = "delete from narval.nars as n where n.id in (select r.nar from {rows}) \
         and not exists (select 1 from narval.files f where f.nar = n.id) returning file_size + coalesce(listing_size, 0)";
    LEFT(Int) = concat!("select 1 from narval.files f where f.cache = $1 and (", condemned!(), " or f.doomed = 0) limit 1");
}

/// How often the row of a NAR is made that others remove meanwhile.
const LOCK_ATTEMPTS: usize = 3;

/// The bytes that a NAR and its listing take.
fn bytes(nar: &NarRecord) -> u64 {
    nar.file_size.saturating_add(nar.listing_size.unwrap_or(0))
}

pub(super) fn record(row: &dyn Row) -> Result<NarRecord, TxError> {
    Ok(NarRecord {
        nar_hash: row.get(0)?,
        nar_size: row.get(1)?,
        compression: row.parsed(2)?,
        file_hash: row.get(3)?,
        file_size: row.get(4)?,
        listing_size: row.get(5)?,
        found: split(row.get(6)?),
    })
}

fn named(row: &dyn Row) -> Result<(String, NarRecord), TxError> {
    Ok((row.get(7)?, record(row)?))
}

fn texts<'a>(names: &[&'a str]) -> Vec<Arg<'a>> {
    names.iter().map(|name| Arg::from(*name)).collect()
}

/// Whether there are condemned names, or those of deleted paths.
pub(super) fn is_anything_left(tx: &mut dyn Tx, cache: CacheId) -> Result<bool, TxError> {
    tx.is_there(&LEFT, &args![cache])
}

/// Makes the rows of NARs that have none.
fn insert(tx: &mut dyn Tx, cache: CacheId, nars: &[&NarRecord]) -> Result<(), TxError> {
    let found: Vec<String> = nars.iter().map(|nar| nar.found.iter().map(HashPart::as_str).collect()).collect();
    let rows: Vec<Arg<'_>> = nars
        .iter()
        .zip(&found)
        .flat_map(|(nar, found)| {
            let form = nar.compression.name();
            args![&nar.nar_hash, form, nar.nar_size, &nar.file_hash, nar.file_size, nar.listing_size, found]
        })
        .collect();
    tx.execute_all(&INSERT, &args![cache], &rows).map(drop)
}

/// The row of a NAR.
struct Locked {
    id: i64,
    file_hash: Sha256,
    file_size: u64,
    is_condemned: bool,
}

/// The rows of NARs, which others who give them names wait for: all are locked in one order.
fn lock(
    tx: &mut dyn Tx,
    cache: CacheId,
    nars: &[&NarRecord],
) -> Result<HashMap<(NarHash, Compression), Locked>, TxError> {
    let rows: Vec<Arg<'_>> = nars.iter().flat_map(|nar| args![&nar.nar_hash, nar.compression.name()]).collect();
    let locked = |row: &dyn Row| {
        let is_condemned = row.get::<Option<i64>>(5)?.is_some();
        let locked = Locked { id: row.get(0)?, file_hash: row.get(3)?, file_size: row.get(4)?, is_condemned };
        Ok(((row.get(1)?, row.parsed(2)?), locked))
    };
    Ok(tx.all_of(&LOCK, &args![cache], &rows, locked)?.into_iter().collect())
}

fn lock_one(tx: &mut dyn Tx, cache: CacheId, nar: &NarRecord) -> Result<Locked, TxError> {
    for _ in 0..LOCK_ATTEMPTS {
        insert(tx, cache, &[nar])?;
        if let Some(locked) = lock(tx, cache, &[nar])?.into_values().next() {
            return Ok(locked);
        }
        // A collection has removed it since.
    }
    Err(Refused::Removing.into())
}

/// Locks the rows of the NARs that these names have, so that nobody gives names to them or condemns them.
fn lock_nars_of(tx: &mut dyn Tx, cache: CacheId, names: &[&str]) -> Result<(), TxError> {
    let ids: BTreeSet<i64> = tx.all_of(&NARS_OF, &args![cache], &texts(names), |row| row.get(0))?.into_iter().collect();
    let ids: Vec<Arg<'_>> = ids.into_iter().map(Arg::from).collect();
    if ids.is_empty() { Ok(()) } else { tx.all_of(&LOCK_NARS, &[], &ids, |_| Ok(())).map(drop) }
}

/// Counts so many bytes more in a cache. All uploads change the same row, so this comes last.
pub(super) fn count(tx: &mut dyn Tx, cache: CacheId, bytes: i64) -> Result<(), TxError> {
    if bytes == 0 { Ok(()) } else { tx.execute(&COUNT, &args![cache, bytes]).map(drop) }
}

/// Gives names to NARs, whose rows are locked, with or without pending entries, and returns their numbers.
fn name_all(
    tx: &mut dyn Tx,
    cache: CacheId,
    names: &[(&str, i64, &NarRecord)],
    (now, is_pending): (u64, bool),
) -> Result<Vec<(String, i64)>, TxError> {
    let counted: Vec<Arg<'_>> = names.iter().flat_map(|(_, id, nar)| args![*id, bytes(nar)]).collect();
    let bytes = tx.all_of(&NEW_BYTES, &[], &counted, |row| row.get::<i64>(0))?.into_iter().sum();
    let rows: Vec<Arg<'_>> = names.iter().flat_map(|(name, id, _)| args![*name, *id]).collect();
    if tx.execute_all(&NAME, &args![cache, now], &rows)? < names.len() as u64 {
        return Err(Refused::Changed.into());
    }
    let names: Vec<&str> = names.iter().filter(|_| is_pending).map(|(name, ..)| *name).collect();
    let numbers = pending::add(tx, cache, "file", &names)?;
    count(tx, cache, bytes)?;
    Ok(numbers)
}

/// Gives a name to a NAR, and returns the number of its pending entry. If its bytes are being removed, that has to end before.
/// Where a row has the hash of another file that is in use, nothing is done, and the result is `None`. If it is not in use, that file is lost and
/// this one takes its place: the paths of the lost one are forgotten, since their narinfos say what is no longer true.
pub(super) fn add_file(
    tx: &mut dyn Tx,
    cache: CacheId,
    (file, nar): (&str, &NarRecord),
    (now, replaced): (u64, Replaced),
) -> Result<Option<i64>, TxError> {
    let mut row = lock_one(tx, cache, nar)?;
    tx.first(&LOCK_NAME, &args![cache, file], |_| Ok(()))?;
    // One whose collection was interrupted is not being removed: the NAR is taken back.
    if tx.is_there(&IS_REMOVING, &args![cache, file, row.id, COLLECTION])? && holds!(Condemned) {
        return Err(Refused::Removing.into());
    }
    tx.execute(&TAKE_BACK, &args![row.id])?;
    tx.execute(&TAKE_BACK_NAME, &args![cache, file])?;
    if (row.file_hash, row.file_size) != (nar.file_hash, nar.file_size) {
        // Nobody commits a path with one of them now.
        tx.all(&LOCK_NAMES, &args![row.id], |_| Ok(()))?;
        let own = NarFileName::new(row.file_hash, nar.compression).to_string();
        match replaced {
            Replaced::Kept if tx.is_there(&IS_IN_USE, &args![row.id, &own])? && holds!(InUse) => return Ok(None),
            Replaced::Kept => replace(tx, cache, &row, (nar, now))?,
            Replaced::Removed => {
                forget_names(tx, cache, row.id)?;
                row = lock_one(tx, cache, nar)?;
            }
        }
    }
    match name_all(tx, cache, &[(file, row.id, nar)], (now, true)) {
        // Where there was no row, a collection has made one to remove the object.
        Err(error) if error.downcast_ref() == Some(&Refused::Changed) => Err(Refused::Removing.into()),
        named => Ok(named?.pop().map(|(_, number)| number)),
    }
}

/// As [`add_file`] for several names and NARs of a cache, all different, in one step each. Where something is in the way of one of them, nothing
/// is done. Returns the names with the numbers under which they are pending, if they are to be: otherwise their files are stored.
pub(super) fn add_files(
    tx: &mut dyn Tx,
    cache: CacheId,
    files: &[(String, NarRecord)],
    how: (u64, bool),
) -> Result<Vec<(String, i64)>, TxError> {
    let nars: Vec<&NarRecord> = files.iter().map(|(_, nar)| nar).collect();
    if nars.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    insert(tx, cache, &nars)?;
    let rows = lock(tx, cache, &nars)?;
    let mut named = Vec::with_capacity(files.len());
    for (name, nar) in files {
        let row = rows.get(&(nar.nar_hash, nar.compression)).ok_or(Refused::Changed)?;
        if (row.file_hash, row.file_size) != (nar.file_hash, nar.file_size) || row.is_condemned {
            return Err(Refused::Changed.into());
        }
        named.push((name.as_str(), row.id, nar));
    }
    if !tx.all_of(&ARE_CONDEMNED, &args![cache], &texts(&names), |_| Ok(()))?.is_empty() {
        return Err(Refused::Changed.into());
    }
    // In one order, so that two of these do not wait for each other.
    named.sort_unstable_by_key(|(name, ..)| *name);
    name_all(tx, cache, &named, how)
}

/// Gives a NAR another file, of which the old names are other names. The paths that are served from the old file are removed.
fn replace(tx: &mut dyn Tx, cache: CacheId, old: &Locked, (nar, now): (&NarRecord, u64)) -> Result<(), TxError> {
    let paths = tx.all(&LOSE_PATHS, &args![cache, old.id], |row| row.parsed::<HashPart>(0))?;
    pending::add_paths(tx, cache, paths.iter())?;
    tx.execute(&ORPHAN_ALL, &args![old.id, now])?;
    // Objects have no listings.
    count(tx, cache, nar.file_size.cast_signed().saturating_sub_unsigned(old.file_size))?;
    tx.execute(&REPLACE, &args![old.id, &nar.file_hash, nar.file_size])?;
    tx.is_visible()
}

/// Forgets every name of a NAR, and the paths that are served from it.
fn forget_names(tx: &mut dyn Tx, cache: CacheId, nar: i64) -> Result<(), TxError> {
    let names = tx.all(&NAMES_OF, &args![nar], |row| row.get::<String>(0))?;
    remove_files(tx, cache, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    // A row that had no name at all.
    tx.all_of(&DROP, &[], &args![nar], |_| Ok(())).map(drop)
}

/// Forgets names, whose files are gone, and the paths that are served from them. The rows of the names and of their NARs are locked, and those of
/// the paths come last here. A commit has them first: if the two wait for each other, one of them is done again.
fn remove_files(tx: &mut dyn Tx, cache: CacheId, names: &[&str]) -> Result<(), TxError> {
    let paths = tx.all_of(&REMOVE_PATHS, &args![cache], &texts(names), |row| row.parsed::<HashPart>(0))?;
    pending::add_paths(tx, cache, paths.iter())?;
    let gone =
        tx.all_of(&REMOVE_FILES, &args![cache], &texts(names), |row| Ok((row.get::<String>(0)?, row.get(1)?)))?;
    let names: Vec<&str> = gone.iter().map(|(name, _)| name.as_str()).collect();
    pending::add(tx, cache, "file", &names)?;
    drop_nars(tx, cache, gone.iter().map(|(_, nar)| *nar).collect())?;
    // Even where no path is hidden: nodes remember what names mean.
    tx.is_visible()
}

/// Removes the rows of NARs that have no name left. The rows are locked.
fn drop_nars(tx: &mut dyn Tx, cache: CacheId, nars: BTreeSet<i64>) -> Result<(), TxError> {
    let rows: Vec<Arg<'_>> = nars.into_iter().map(Arg::from).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let bytes: i64 = tx.all_of(&DROP, &[], &rows, |row| row.get::<i64>(0))?.into_iter().sum();
    count(tx, cache, -bytes)
}

impl dyn Index + '_ {
    /// A stored NAR of a cache.
    pub(crate) fn nar(
        &self,
        cache: CacheId,
        nar_hash: &NarHash,
        compression: Compression,
    ) -> Result<Option<NarRecord>, IndexError> {
        self.read(Reading::Some, |tx| tx.first(&NAR, &args![cache, nar_hash, compression.name()], record))
    }

    /// The stored NAR that each of these names below `nar/` refers to in a cache. Those that a collection could remove are kept, and are doomed no
    /// longer: somebody has asked for them and may rely on the answer. Whether their bytes are there is not known: a database that has lost its last transactions does not know
    /// what a collection has removed. So they are looked for, as those of an upload under way are, before anybody relies on them.
    pub(super) fn look_up(&self, cache: CacheId, names: &[&str]) -> Result<HashMap<String, NarRecord>, IndexError> {
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        let row = |row: &dyn Row| Ok((named(row)?, row.get::<bool>(8)?));
        let found = self.read(Reading::Some, |tx| tx.all_of(&NAMED, &args![cache], &texts(names), row))?;
        let due: Vec<String> = found.iter().filter(|(_, is_due)| *is_due).map(|((name, _), _)| name.clone()).collect();
        let mut found: HashMap<String, NarRecord> = found.into_iter().map(|(named, _)| named).collect();
        if !due.is_empty() {
            let names = due.clone();
            let kept = self.write(NOTE_LATER, move |tx| {
                let names: Vec<Arg<'_>> = names.iter().map(Arg::from).collect();
                let kept = tx.all_of(&KEEP, &args![cache], &names, |row| row.get::<String>(0))?;
                pending::add(tx, cache, "file", &kept.iter().map(String::as_str).collect::<Vec<_>>())?;
                Ok(kept)
            })?;
            // The others are condemned meanwhile.
            found.retain(|name, _| !due.contains(name) || kept.contains(name));
        }
        Ok(found)
    }

    /// All names below `nar/`.
    pub(crate) fn files(&self, cache: CacheId) -> Result<Vec<(String, NarRecord)>, IndexError> {
        self.read(Reading::Many, |tx| tx.all(&FILES, &args![cache], named))
    }

    /// The names of a NAR in a cache, in any compression.
    pub(crate) fn files_of(&self, cache: CacheId, nar_hash: &NarHash) -> Result<Vec<(String, NarRecord)>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&FILES_OF, &args![cache, nar_hash], named))
    }

    /// NAR files that paths have and that are not zstd, by name: at most this many, after the given name.
    pub(crate) fn not_zstd(&self, cache: CacheId, after: &str, max: usize) -> Result<Vec<String>, IndexError> {
        let args = args![cache, after, Compression::Zstd.name(), max];
        self.read(Reading::Some, |tx| tx.all(&NOT_ZSTD, &args, |row| row.get(0)))
    }

    /// The totals of a cache.
    pub(crate) fn usage(&self, cache: CacheId) -> Result<Usage, IndexError> {
        let usage =
            |row: &dyn Row| Ok(Usage { paths: row.get(0)?, files: row.get(1)?, bytes: row.get(2)?, small_bytes: 0 });
        Ok(self.read(Reading::Many, |tx| tx.first(&USAGE, &args![cache], usage))?.unwrap_or_default())
    }

    /// The names of NARs that are to be removed, with the bytes of those NARs.
    pub(crate) fn orphans(&self, cache: CacheId, cutoff: Cutoff) -> Result<Vec<(String, u64)>, IndexError> {
        let args = args![cache, cutoff.orphaned, cutoff.used];
        self.read(Reading::Many, |tx| tx.all(&ORPHANS, &args, |row| Ok((row.get(0)?, row.get(1)?))))
    }

    /// Removes a name below `nar/` whose file is lost, and the paths that are served from it. Returns whether it is.
    pub(crate) fn remove_file(&self, cache: CacheId, name: &str, lost: Lost) -> Result<bool, IndexError> {
        let (name, entry) = (name.to_owned(), lost.entry());
        self.write(LARGE, move |tx| {
            // Whoever stores the NAR again, or commits a path with this name, waits until this transaction ends.
            lock_nars_of(tx, cache, &[&name])?;
            tx.first(&LOCK_NAME, &args![cache, &name], |_| Ok(()))?;
            if let Some(entry) = entry
                && !pending::is_still_lost(tx, cache, &name, entry)?
            {
                return Ok(false);
            }
            if matches!(lost, Lost::Doubted(_)) {
                lost::remember(tx, cache, &name)?;
            }
            remove_files(tx, cache, &[&name]).map(|()| true)
        })
    }

    /// Removes the rows of names that this collection has condemned. Their bytes are gone.
    pub(crate) fn forget(&self, fence: Fence, cache: CacheId, names: &[(String, u64)]) -> Result<(), IndexError> {
        let names: Vec<String> = names.iter().map(|(name, _)| name.clone()).collect();
        self.write_fenced(LARGE, fence, move |tx| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            lock_nars_of(tx, cache, &names)?;
            let rows = texts(&names);
            let nars = tx.all_of(&FORGET, &args![cache, fence.0], &rows, |row| row.get(0))?;
            drop_nars(tx, cache, nars.into_iter().collect())?;
            tx.is_visible()
        })
    }
}
