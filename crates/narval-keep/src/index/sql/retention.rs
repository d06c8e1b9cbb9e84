//! Uses, leases, and what a collection removes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use narval_nix::{HashPart, Sha256};

use super::nars::condemned;
use super::paths::commit::{hold, orphan};
use super::pending;
use crate::index::tx::{Arg, LARGE, NOTE_LATER, Row, Sql, Tx, TxError, args, statements};
use crate::index::{CacheId, Commit, Cutoff, Fence, Index, IndexError, Used};

/// Which names are due.
macro_rules! due {
    () => {
        "(f.fence is not null or f.doomed = 0 or (f.orphaned <= $2 and f.used <= $3 and ($4 = -1 or f.doomed <= $4)))"
    };
}

statements! {
    USED_PATHS() { cache: Int, part: Text, time: Int } = "update narval.paths as p set used = r.time from {rows} \
         where p.cache = r.cache and p.hash_part = r.part and p.used < r.time";
    USED_FILES() { cache: Int, file: Text, time: Int } = "update narval.paths as p set used = r.time from {rows} \
         where p.cache = r.cache and p.file = r.file and p.used < r.time";
    /// Whoever was told that a NAR is here may be about to send its narinfo.
    /// Doom after the use stays: 0 is of deleted paths, and a use that is long before it was known.
    USED_ORPHANS() { cache: Int, file: Text, time: Int } = "update narval.files as f set used = r.time, \
         doomed = case when f.doomed = 0 or r.time < f.doomed - 600 then f.doomed end from {rows} \
         where f.cache = r.cache and f.name = r.file and f.orphaned is not null and f.used < r.time";
    /// In one order: others lease the same paths.
    LEASE(Int, Int) { part: Text } = "insert into narval.leases as l (cache, hash_part, until) select $1, r.part, $2 from {rows} \
         where true order by r.part on conflict (cache, hash_part) do update set until = greatest(l.until, excluded.until)";
    /// Those that others have locked, to change them or because they refer to them, are left alone.
    LOCK_UNUSED(Int) { part: Text, used: Int } = "select p.hash_part, p.file from {rows} join narval.paths p on p.cache = $1 \
         and p.hash_part = r.part and p.used <= r.used order by p.hash_part{remove_free}";
    LOCK_FREE_FILES(Int) { name: Text } = "select f.name from narval.files f where f.cache = $1 \
         and f.name in (select r.name from {rows}) order by f.name{lock_free}";
    HELD(Int, Int) { part: Text } = "select l.hash_part from {rows} join narval.leases l on l.cache = $1 and l.hash_part = r.part \
           where l.until > $2 union select i.hash_part from {rows} join narval.pins i on i.cache = $1 and i.hash_part = r.part \
           where i.until is null or i.until > $2";
    LOCK(Int) { part: Text } = "select p.hash_part, p.file from narval.paths p where p.cache = $1 and p.hash_part in (select r.part from {rows}) \
         order by p.hash_part{remove}";
    LOCK_FILES(Int) { name: Text } = "select f.name from narval.files f where f.cache = $1 \
         and f.name in (select r.name from {rows}) order by f.name{lock}";
    REFERRERS(Int) { part: Text } = "select r.part, p.hash_part from {rows} join narval.refs f on f.reference = r.part \
         join narval.paths p on p.id = f.referrer where p.cache = $1 and p.hash_part <> r.part";
    UNPIN(Int) { part: Text } = "delete from narval.pins where cache = $1 and hash_part in (select r.part from {rows})";
    UNLEASE(Int) { part: Text } = "delete from narval.leases where cache = $1 and hash_part in (select r.part from {rows})";
    DELETE(Int) { part: Text } = "delete from narval.paths where cache = $1 and hash_part in (select r.part from {rows}) \
         returning hash_part, file, nar_hash";
    /// Every name and form of the NAR: what leaked is in each.
    DOOM_ALL(Int) { nar_hash: Bytes } = "update narval.files as f set doomed = 0 where f.cache = $1 and f.orphaned is not null \
         and f.nar in (select n.id from {rows} join narval.nars n on n.cache = $1 and n.nar_hash = r.nar_hash)";
    END_LEASES(Int, Int) = "delete from narval.leases where cache = $1 and until <= $2";
    END_PINS(Int, Int) = "delete from narval.pins where cache = $1 and until is not null and until <= $2";
    DOOM(Int, Int, Int, Int, Int) = "update narval.files set doomed = $4 where cache = $1 and orphaned <= $2 and used <= $3 \
         and doomed is null and fence is null and name in (select name from narval.files \
           where cache = $1 and orphaned <= $2 and used <= $3 and doomed is null and fence is null limit $5{lock_free})";
    DUE(Int, Int, Int, Int, Int) = concat!(
        "select f.name, f.nar from narval.files f where f.cache = $1 and f.orphaned is not null and ", due!(), " order by f.name limit $5"
    );
    /// Those that somebody gives a name at the moment are left alone.
    LOCK_NARS() { nar: Int } = "select n.id, n.file_size from {rows} join narval.nars n on n.id = r.nar \
         order by n.nar_hash, n.compression{lock_free}";
    LOCK_DUE(Int, Int, Int, Int) { name: Text } = concat!(
        "select f.name from narval.files f where f.cache = $1 and f.name in (select r.name from {rows}) and f.orphaned is not null and ",
        due!(), " order by f.name{lock_free}"
    );
    CONDEMN(Int, Int) { name: Text } = "update narval.files as f set fence = $2 where f.cache = $1 and f.name in (select r.name from {rows})";
    CONDEMN_NARS(Int) { nar: Int } = concat!(
        "update narval.nars as n set fence = $1 where n.id in (select r.nar from {rows}) \
         and not exists (select 1 from narval.files f where f.nar = n.id and not ", condemned!(), ")"
    );
}

/// Subjects with the times of their last uses, in one order, so that two nodes do not wait for each other.
fn latest(used: &[Used], subject: fn(&Used) -> Option<&str>) -> Vec<Arg<'_>> {
    let mut latest: BTreeMap<(CacheId, &str), u64> = BTreeMap::new();
    for used in used {
        if let Some(subject) = subject(used) {
            let time = latest.entry((used.cache, subject)).or_default();
            *time = (*time).max(used.time);
        }
    }
    latest.into_iter().flat_map(|((cache, subject), time)| args![cache, subject, time]).collect()
}

fn texts(parts: &[HashPart]) -> Vec<Arg<'_>> {
    parts.iter().map(Arg::from).collect()
}

/// Locks the rows of paths and of their files, and returns those of them that nothing holds: not a use, a lease, a pin or a path that stays. A
/// path goes after those before it that refer to it.
fn lock_unheld(
    tx: &mut dyn Tx,
    cache: CacheId,
    (paths, now): (&[(HashPart, u64)], u64),
) -> Result<Vec<(HashPart, String)>, TxError> {
    let in_order: BTreeMap<&HashPart, u64> = paths.iter().map(|(part, used)| (part, *used)).collect();
    let rows: Vec<Arg<'_>> = in_order.into_iter().flat_map(|(part, used)| args![part, used]).collect();
    let path = |row: &dyn Row| Ok((row.parsed::<HashPart>(0)?, row.get::<String>(1)?));
    let locked: BTreeMap<HashPart, String> = tx.all_of(&LOCK_UNUSED, &args![cache], &rows, path)?.into_iter().collect();
    let files: BTreeSet<&str> = locked.values().map(String::as_str).collect();
    let files: Vec<Arg<'_>> = files.into_iter().map(Arg::from).collect();
    let files: HashSet<String> =
        tx.all_of(&LOCK_FREE_FILES, &args![cache], &files, |row| row.get(0))?.into_iter().collect();
    // Nobody leases or pins one of them from now on, or commits a path that refers to it: who has done so is seen.
    let parts: Vec<Arg<'_>> = locked.keys().map(Arg::from).collect();
    let held: HashSet<HashPart> =
        tx.all_of(&HELD, &args![cache, now], &parts, |row| row.parsed(0))?.into_iter().collect();
    let mut referrers: HashMap<HashPart, Vec<HashPart>> = HashMap::new();
    let referrer = |row: &dyn Row| Ok((row.parsed::<HashPart>(0)?, row.parsed(1)?));
    for (part, referrer) in tx.all_of(&REFERRERS, &args![cache], &parts, referrer)? {
        referrers.entry(part).or_default().push(referrer);
    }
    let (mut gone, mut unheld) = (HashSet::new(), Vec::new());
    for (part, _) in paths {
        let Some(file) = locked.get(part).filter(|file| files.contains(*file) && !held.contains(part)) else {
            continue;
        };
        if referrers.get(part).is_none_or(|all| all.iter().all(|referrer| gone.contains(referrer)))
            && gone.insert(*part)
        {
            unheld.push((*part, file.clone()));
        }
    }
    Ok(unheld)
}

impl dyn Index + '_ {
    /// Records when paths were last used.
    pub(crate) fn used(&self, used: &[Used]) -> Result<(), IndexError> {
        let used = used.to_vec();
        self.write(NOTE_LATER, move |tx| {
            let paths = latest(&used, |used| used.path.as_ref().map(HashPart::as_str));
            let files = latest(&used, |used| used.file.as_deref());
            let all: [(&'static Sql, _); 3] = [(&USED_PATHS, &paths), (&USED_FILES, &files), (&USED_ORPHANS, &files)];
            all.into_iter().try_for_each(|(sql, rows)| tx.execute_all(sql, &[], rows).map(drop))
        })
    }

    /// Protects those of these paths that are there from garbage collection until then, and returns them.
    pub(crate) fn lease(&self, cache: CacheId, parts: &[HashPart], until: u64) -> Result<Vec<HashPart>, IndexError> {
        let parts: BTreeSet<HashPart> = parts.iter().copied().collect();
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        self.write(NOTE_LATER, move |tx| {
            // In this order: whoever hides paths has locked them before it looks for leases.
            let held = hold(tx, cache, &parts)?;
            tx.execute_all(&LEASE, &args![cache, until], &texts(&held))?;
            Ok(held)
        })
    }

    /// Hides paths, in the given order, that were not used later than given and that no other path, pin or lease holds.
    /// Returns those that were hidden. Their NARs are kept.
    pub(crate) fn hide(
        &self,
        fence: Fence,
        cache: CacheId,
        paths: &[(HashPart, u64)],
        now: u64,
    ) -> Result<Vec<HashPart>, IndexError> {
        let paths = paths.to_vec();
        self.write_fenced(LARGE, fence, move |tx| {
            let hidden = lock_unheld(tx, cache, (&paths, now))?;
            if hidden.is_empty() {
                return Ok(Vec::new());
            }
            let parts: Vec<HashPart> = hidden.iter().map(|(part, _)| *part).collect();
            tx.all_of(&DELETE, &args![cache], &texts(&parts), |_| Ok(()))?;
            pending::add_paths(tx, cache, parts.iter())?;
            let files: BTreeSet<&str> = hidden.iter().map(|(_, file)| file.as_str()).collect();
            orphan(tx, cache, files.into_iter(), now)?;
            tx.is_visible()?;
            Ok(parts)
        })
    }

    /// Removes paths, their pins and leases, unless another path refers to one of them. The names of their NARs that no other path has
    /// are gone, too, and can be condemned at once.
    pub(crate) fn delete(&self, cache: CacheId, paths: &[HashPart], now: u64) -> Result<Commit, IndexError> {
        let paths = paths.to_vec();
        if paths.is_empty() {
            return Ok(Commit::Done);
        }
        self.write(LARGE, move |tx| {
            let rows: BTreeSet<&HashPart> = paths.iter().collect();
            let rows: Vec<Arg<'_>> = rows.into_iter().map(Arg::from).collect();
            let path = |row: &dyn Row| Ok((row.parsed::<HashPart>(0)?, row.get::<String>(1)?));
            // One that somebody adds meanwhile stays.
            let locked: BTreeMap<HashPart, String> =
                tx.all_of(&LOCK, &args![cache], &rows, path)?.into_iter().collect();
            let files: BTreeSet<&str> = locked.values().map(String::as_str).collect();
            let rows: Vec<Arg<'_>> = locked.keys().map(Arg::from).collect();
            tx.all_of(&LOCK_FILES, &args![cache], &files.into_iter().map(Arg::from).collect::<Vec<_>>(), |_| Ok(()))?;
            // Nobody refers to them from now on, and none of their files gets another path.
            let referrers = tx.all_of(&REFERRERS, &args![cache], &rows, |row| row.parsed::<HashPart>(1))?;
            if referrers.iter().any(|referrer| !locked.contains_key(referrer)) {
                return Ok(Commit::Changed);
            }
            tx.execute_all(&UNPIN, &args![cache], &rows)?;
            tx.execute_all(&UNLEASE, &args![cache], &rows)?;
            let path = |row: &dyn Row| Ok((row.parsed::<HashPart>(0)?, row.get::<String>(1)?, row.get::<Sha256>(2)?));
            let gone = tx.all_of(&DELETE, &args![cache], &rows, path)?;
            pending::add_paths(tx, cache, gone.iter().map(|(part, ..)| part))?;
            orphan(tx, cache, gone.iter().map(|(_, file, _)| file.as_str()), now)?;
            let hashes: Vec<Arg<'_>> = gone.iter().map(|(.., hash)| Arg::from(hash)).collect();
            tx.execute_all(&DOOM_ALL, &args![cache], &hashes)?;
            tx.is_visible()?;
            Ok(Commit::Done)
        })
    }

    /// Dooms a limited number of names of NARs that no path has; also removes expired leases and pins. Returns how many. A commit, an
    /// upload or a request of a NAR ends its doom.
    pub(crate) fn doom(
        &self,
        fence: Fence,
        cache: CacheId,
        cutoff: Cutoff,
        max: usize,
        now: u64,
    ) -> Result<usize, IndexError> {
        self.write_fenced(LARGE, fence, move |tx| {
            tx.execute(&END_LEASES, &args![cache, now])?;
            tx.execute(&END_PINS, &args![cache, now])?;
            let doomed = tx.execute(&DOOM, &args![cache, cutoff.orphaned, cutoff.used, now, max])?;
            if doomed > 0 {
                // Other nodes remember what names mean.
                tx.is_visible()?;
            }
            Ok(usize::try_from(doomed).unwrap_or(usize::MAX))
        })
    }

    /// Condemns a limited number of names of NARs that no path has: those of deleted paths, those that an interrupted collection has
    /// left, and those for which the cutoff holds. From now on they are absent for everybody, until [`forget`](Self::forget). Their pending
    /// entries are removed. Returns the names, and the bytes of the NARs.
    pub(crate) fn condemn(
        &self,
        fence: Fence,
        cache: CacheId,
        cutoff: Option<Cutoff>,
        max: usize,
    ) -> Result<Vec<(String, u64)>, IndexError> {
        self.write_fenced(LARGE, fence, move |tx| {
            // An impossible time, if only what is left is to go; -1 for doom that does not matter.
            let [cache_id, last] = args![cache, max];
            let [orphaned, used, doomed] = match cutoff {
                Some(Cutoff { orphaned, used, doomed: Some(doomed) }) => args![orphaned, used, doomed],
                Some(Cutoff { orphaned, used, doomed: None }) => args![orphaned, used, -1_i64],
                None => args![-1_i64, -1_i64, -1_i64],
            };
            let due = |row: &dyn Row| Ok((row.get::<String>(0)?, row.get::<i64>(1)?));
            let due = tx.all(&DUE, &[cache_id, orphaned, used, doomed, last], due)?;
            // Their NARs first, as uploads lock them: nobody gives one a name from then on.
            let nars: BTreeSet<i64> = due.iter().map(|(_, nar)| *nar).collect();
            let nars: Vec<Arg<'_>> = nars.into_iter().map(Arg::from).collect();
            let size = |row: &dyn Row| Ok((row.get::<i64>(0)?, row.get::<u64>(1)?));
            let sizes: BTreeMap<i64, u64> = tx.all_of(&LOCK_NARS, &[], &nars, size)?.into_iter().collect();
            let nar_of: BTreeMap<&str, i64> = due.iter().map(|(name, nar)| (name.as_str(), *nar)).collect();
            let names: Vec<Arg<'_>> =
                nar_of.iter().filter(|(_, nar)| sizes.contains_key(nar)).map(|(name, _)| Arg::from(*name)).collect();
            // Nor does anybody commit a path with one of these. What is not due any more is left out.
            let locked =
                tx.all_of(&LOCK_DUE, &[cache_id, orphaned, used, doomed], &names, |row| row.get::<String>(0))?;
            if locked.is_empty() {
                return Ok(Vec::new());
            }
            tx.execute_all(&CONDEMN, &args![cache, fence.0], &locked.iter().map(Arg::from).collect::<Vec<_>>())?;
            let of = |name: &str| nar_of.get(name).copied();
            pending::forget_files(tx, cache, &locked.iter().map(String::as_str).collect::<Vec<_>>())?;
            let nars: BTreeSet<i64> = locked.iter().filter_map(|name| of(name)).collect();
            let nars: Vec<Arg<'_>> = nars.into_iter().map(Arg::from).collect();
            tx.execute_all(&CONDEMN_NARS, &args![fence.0], &nars)?;
            let size = |name: &str| of(name).and_then(|nar| sizes.get(&nar).copied()).unwrap_or_default();
            let mut names: Vec<(String, u64)> = locked.iter().map(|name| (name.clone(), size(name))).collect();
            names.sort_unstable();
            tx.is_visible()?;
            Ok(names)
        })
    }
}
