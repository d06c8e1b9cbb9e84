//! Uses, leases, and what a collection removes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use narval_nix::{HashPart, Sha256};

use super::nars::condemned;
use super::paths::commit::orphan;
use super::pending;
use crate::index::tx::{ADD_LATER, Arg, NOTE_LATER, REMOVE, Row, Sql, args, statements};
use crate::index::{CacheId, Commit, Condemned, Cutoff, Fence, Index, IndexError, Used};

/// Which names are due. The conditions stand twice in a statement: another transaction may change a row between the two.
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
    LEASE(Int, Int) { part: Text } = "insert into narval.leases as l (cache, hash_part, until) select p.cache, p.hash_part, $2 from {rows} \
         join narval.paths p on p.cache = $1 and p.hash_part = r.part where true order by p.hash_part \
         on conflict (cache, hash_part) do update set until = greatest(l.until, excluded.until) returning hash_part";
    HIDE(Int, Text, Int, Int) = "delete from narval.paths as p where p.cache = $1 and p.hash_part = $2 and p.used <= $3 \
         and not exists (select 1 from narval.leases l where l.cache = $1 and l.hash_part = $2 and l.until > $4) \
         and not exists (select 1 from narval.pins i where i.cache = $1 and i.hash_part = $2 and (i.until is null or i.until > $4)) \
         and not exists (select 1 from narval.refs r join narval.paths o on o.id = r.referrer \
           where r.reference = $2 and o.cache = $1 and o.hash_part <> $2) returning file";
    REFERRERS(Int) { part: Text } = "select p.hash_part from {rows} join narval.refs f on f.reference = r.part \
         join narval.paths p on p.id = f.referrer where p.cache = $1";
    UNPIN(Int) { part: Text } = "delete from narval.pins where cache = $1 and hash_part in (select r.part from {rows})";
    UNLEASE(Int) { part: Text } = "delete from narval.leases where cache = $1 and hash_part in (select r.part from {rows})";
    DELETE(Int) { part: Text } = "delete from narval.paths where cache = $1 and hash_part in (select r.part from {rows}) \
         returning hash_part, file, nar_hash";
    /// Every name and form of the NAR: what leaked is in each.
    DOOM_ALL(Int) { nar_hash: Bytes } = "update narval.files as f set doomed = 0 where f.cache = $1 and f.orphaned is not null \
         and f.nar in (select n.id from {rows} join narval.nars n on n.nar_hash = r.nar_hash)";
    END_LEASES(Int, Int) = "delete from narval.leases where cache = $1 and until <= $2";
    END_PINS(Int, Int) = "delete from narval.pins where cache = $1 and until is not null and until <= $2";
    DOOM(Int, Int, Int, Int, Int) = "update narval.files set doomed = $4 where cache = $1 and orphaned <= $2 and used <= $3 \
         and doomed is null and fence is null and name in (select name from narval.files \
           where cache = $1 and orphaned <= $2 and used <= $3 and doomed is null and fence is null limit $5)";
    CONDEMN(Int, Int, Int, Int, Int, Int) = concat!(
        "update narval.files as f set fence = $6 where f.cache = $1 and f.orphaned is not null and ", due!(), " and f.name in (\
           select f.name from narval.files f where f.cache = $1 and f.orphaned is not null and ", due!(), " order by f.name limit $5) \
         returning name, nar"
    );
    SIZES() { nar: Int } = "select n.id, n.file_size from {rows} join narval.nars n on n.id = r.nar";
    CONDEMN_NARS(Int) { nar: Int } = concat!(
        "update narval.nars as n set fence = $1 where n.id in (select r.nar from {rows}) \
         and not exists (select 1 from narval.files f where f.nar = n.id and not ", condemned!(), ") returning nar_hash, compression"
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
        let parts: Vec<HashPart> = parts.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        self.write(ADD_LATER, move |tx| tx.all_of(&LEASE, &args![cache, until], &texts(&parts), |row| row.parsed(0)))
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
        self.write_fenced(REMOVE, fence, move |tx| {
            let (mut hidden, mut files) = (Vec::new(), BTreeSet::new());
            // One by one: a path may be held by one that is before it.
            for (part, used) in &paths {
                if let Some(file) = tx.first(&HIDE, &args![cache, part, *used, now], |row| row.get::<String>(0))? {
                    files.insert(file);
                    hidden.push(*part);
                }
            }
            pending::add_paths(tx, cache, hidden.iter())?;
            orphan(tx, cache, files.iter().map(String::as_str), now)?;
            if !hidden.is_empty() {
                tx.is_visible()?;
            }
            Ok(hidden)
        })
    }

    /// Removes paths, their pins and leases, unless another path refers to one of them. The names of their NARs that no other path has
    /// are gone, too, and can be condemned at once.
    pub(crate) fn delete(&self, cache: CacheId, paths: &[HashPart], now: u64) -> Result<Commit, IndexError> {
        let paths = paths.to_vec();
        if paths.is_empty() {
            return Ok(Commit::Done);
        }
        self.write(REMOVE, move |tx| {
            let listed: HashSet<&HashPart> = paths.iter().collect();
            let referrers = tx.all_of(&REFERRERS, &args![cache], &texts(&paths), |row| row.parsed::<HashPart>(0))?;
            if referrers.iter().any(|referrer| !listed.contains(referrer)) {
                return Ok(Commit::Changed);
            }
            tx.execute_all(&UNPIN, &args![cache], &texts(&paths))?;
            tx.execute_all(&UNLEASE, &args![cache], &texts(&paths))?;
            let path = |row: &dyn Row| Ok((row.parsed::<HashPart>(0)?, row.get::<String>(1)?, row.get::<Sha256>(2)?));
            let gone = tx.all_of(&DELETE, &args![cache], &texts(&paths), path)?;
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
        self.write_fenced(REMOVE, fence, move |tx| {
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
    /// left, and those for which the cutoff holds. From now on they are absent for everybody. Their pending entries are removed.
    pub(crate) fn condemn(
        &self,
        fence: Fence,
        cache: CacheId,
        cutoff: Option<Cutoff>,
        max: usize,
    ) -> Result<Condemned, IndexError> {
        self.write_fenced(REMOVE, fence, move |tx| {
            // An impossible time, if only what is left is to go; -1 for doom that does not matter.
            let [cache_id, last] = args![cache, max];
            let times = match cutoff {
                Some(Cutoff { orphaned, used, doomed: Some(doomed) }) => args![orphaned, used, doomed],
                Some(Cutoff { orphaned, used, doomed: None }) => args![orphaned, used, -1_i64],
                None => args![-1_i64, -1_i64, -1_i64],
            };
            let [orphaned, used, doomed] = times;
            let due = |row: &dyn Row| Ok((row.get::<String>(0)?, row.get::<i64>(1)?));
            let due = tx.all(&CONDEMN, &[cache_id, orphaned, used, doomed, last, Arg::from(fence.0)], due)?;
            if due.is_empty() {
                return Ok(Condemned::default());
            }
            pending::forget_files(tx, cache, &due.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>())?;
            let nars: BTreeSet<i64> = due.iter().map(|(_, nar)| *nar).collect();
            let nars: Vec<Arg<'_>> = nars.into_iter().map(Arg::from).collect();
            let size = |row: &dyn Row| Ok((row.get::<i64>(0)?, row.get::<u64>(1)?));
            let sizes: BTreeMap<i64, u64> = tx.all_of(&SIZES, &[], &nars, size)?.into_iter().collect();
            let blob = |row: &dyn Row| Ok((row.get(0)?, row.parsed(1)?));
            let blobs = tx.all_of(&CONDEMN_NARS, &args![fence.0], &nars, blob)?;
            let mut names: Vec<(String, u64)> =
                due.into_iter().map(|(name, nar)| (name, sizes.get(&nar).copied().unwrap_or_default())).collect();
            names.sort_unstable();
            tx.is_visible()?;
            Ok(Condemned { names, blobs })
        })
    }
}
