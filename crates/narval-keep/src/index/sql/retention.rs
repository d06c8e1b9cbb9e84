//! Uses, leases, and what a collection removes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use narval_nix::HashPart;

use super::nars;
use super::paths::commit::{hold, orphan};
use super::pending;
use crate::index::tx::{Arg, LARGE, NOTE_LATER, Row, Sql, Tx, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::leases::Fence;
use crate::records::paths::{CacheId, Used};

statements! {
    USED_PATHS() { cache: Int, part: Text, time: Int } = "update narval.paths as p set used = r.time from {rows} \
         where p.cache = r.cache and p.hash_part = r.part and p.used < r.time";
    USED_FILES() { cache: Int, file: Text, time: Int } = "update narval.paths as p set used = r.time from {rows} \
         where p.cache = r.cache and p.file = r.file and p.used < r.time";
    /// Whoever was told that a NAR is here may be about to send its narinfo.
    USED_ORPHANS() { cache: Int, file: Text, time: Int } = "update narval.nars as n set used = r.time from {rows} \
         where n.cache = r.cache and n.name = r.file and n.orphaned is not null and n.used < r.time";
    /// In one order: others lease the same paths.
    LEASE(Int, Int) { part: Text } = "insert into narval.leases as l (cache, hash_part, until) select $1, r.part, $2 from {rows} \
         where true order by r.part on conflict (cache, hash_part) do update set until = greatest(l.until, excluded.until)";
    /// Those that others have locked, to change them or because they refer to them, are left alone.
    LOCK_UNUSED(Int) { part: Text, used: Int } = "select p.hash_part, p.file from {rows} join narval.paths p on p.cache = $1 \
         and p.hash_part = r.part and p.used <= r.used order by p.hash_part{remove_free}";
    LOCK_FREE_FILES(Int) { name: Text } = "select n.name from narval.nars n where n.cache = $1 \
         and n.name in (select r.name from {rows}) order by n.name{lock_free}";
    HELD(Int, Int) { part: Text } = "select l.hash_part from narval.leases l where l.cache = $1 and l.until > $2 \
           and l.hash_part in (select r.part from {rows}) \
         union select i.hash_part from narval.pins i where i.cache = $1 and (i.until is null or i.until > $2) \
           and i.hash_part in (select r.part from {rows})";
    LOCK(Int) { part: Text } = "select p.hash_part, p.file from narval.paths p where p.cache = $1 and p.hash_part in (select r.part from {rows}) \
         order by p.hash_part{remove}";
    /// Every form of their NARs: what leaked is in each.
    LOCK_FORMS(Int) { part: Text } = "select n.name from narval.nars n where +n.cache = $1 and n.nar_hash in (select m.nar_hash from narval.nars m \
         where m.cache = $1 and m.name in (select p.file from narval.paths p where p.cache = $1 and p.hash_part in (select r.part from {rows}))) \
         order by n.name{lock}";
    REFERRERS(Int) { part: Text } = "select f.reference, p.hash_part from narval.refs f join narval.paths p on p.id = f.referrer \
         where f.reference in (select r.part from {rows}) and +p.cache = $1 and p.hash_part <> f.reference";
    UNPIN(Int) { part: Text } = "delete from narval.pins where cache = $1 and hash_part in (select r.part from {rows})";
    UNLEASE(Int) { part: Text } = "delete from narval.leases where cache = $1 and hash_part in (select r.part from {rows})";
    DELETE(Int) { part: Text } = "delete from narval.paths where cache = $1 and hash_part in (select r.part from {rows}) \
         returning hash_part, file";
    END_LEASES(Int, Int) = "delete from narval.leases where cache = $1 and until <= $2";
    END_PINS(Int, Int) = "delete from narval.pins where cache = $1 and until is not null and until <= $2";
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
            pending::add(tx, cache, parts.iter())?;
            let files: BTreeSet<&str> = hidden.iter().map(|(_, file)| file.as_str()).collect();
            orphan(tx, cache, files.into_iter(), now)?;
            tx.is_visible()?;
            Ok(parts)
        })
    }

    /// Removes paths, their pins and leases, and their NARs in every form that no other path has, unless another path refers to one of them. Returns the
    /// NARs with their sizes: their bytes are [garbage](Self::garbage).
    pub(crate) fn delete(
        &self,
        cache: CacheId,
        paths: &[HashPart],
        now: u64,
    ) -> Result<Option<Vec<(String, u64)>>, IndexError> {
        let paths = paths.to_vec();
        if paths.is_empty() {
            return Ok(Some(Vec::new()));
        }
        self.write(LARGE, move |tx| {
            let rows: BTreeSet<&HashPart> = paths.iter().collect();
            let rows: Vec<Arg<'_>> = rows.into_iter().map(Arg::from).collect();
            let path = |row: &dyn Row| Ok((row.parsed::<HashPart>(0)?, row.get::<String>(1)?));
            // One that somebody adds meanwhile stays.
            let locked: BTreeMap<HashPart, String> =
                tx.all_of(&LOCK, &args![cache], &rows, path)?.into_iter().collect();
            let rows: Vec<Arg<'_>> = locked.keys().map(Arg::from).collect();
            let forms = tx.all_of(&LOCK_FORMS, &args![cache], &rows, |row| row.get::<String>(0))?;
            // Nobody refers to them from now on, and none of their files gets another path.
            let referrers = tx.all_of(&REFERRERS, &args![cache], &rows, |row| row.parsed::<HashPart>(1))?;
            if referrers.iter().any(|referrer| !locked.contains_key(referrer)) {
                return Ok(None);
            }
            tx.execute_all(&UNPIN, &args![cache], &rows)?;
            tx.execute_all(&UNLEASE, &args![cache], &rows)?;
            let gone = tx.all_of(&DELETE, &args![cache], &rows, path)?;
            pending::add(tx, cache, gone.iter().map(|(part, _)| part))?;
            orphan(tx, cache, gone.iter().map(|(_, file)| file.as_str()), now)?;
            let forms: BTreeSet<&str> = forms.iter().map(String::as_str).collect();
            nars::discard(tx, cache, &forms.into_iter().collect::<Vec<_>>(), now).map(Some)
        })
    }

    /// Removes leases and pins that have ended.
    pub(crate) fn end_holds(&self, fence: Fence, cache: CacheId, now: u64) -> Result<(), IndexError> {
        self.write_fenced(NOTE_LATER, fence, move |tx| {
            tx.execute(&END_LEASES, &args![cache, now])?;
            tx.execute(&END_PINS, &args![cache, now]).map(drop)
        })
    }
}
