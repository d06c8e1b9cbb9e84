//! Releases. What a release keeps is pinned, under a name that no other pin has: its *hold*.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use narval_nix::release::ReleaseSystem;
use narval_nix::{HashPart, NarHash};

use super::commit::hold;
use crate::index::tx::{Arg, LARGE, NOTE, Reading, Row, Tx, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::paths::CacheId;
use crate::records::releases::{
    ListMax, Listed, RELEASE_NAMES_MAX, RELEASE_SYSTEMS_MAX, Recorded, ReleaseCursor, ReleaseRecord, ReleaseRefused,
    ReleaseRequest, ReleaseToRecord,
};
use crate::rule::holds;

/// How many releases of a name and a system are remembered, with or without their paths.
const REMEMBERED_MAX: u32 = 1000;
/// How many forgotten names are dropped at once.
const FORGOTTEN_AT_ONCE: u64 = 1000;

/// The columns of a record, of a row `r`.
macro_rules! record {
    () => {
        "select r.name, r.revision, r.system, r.version, r.created, r.pinned, r.hold, r.record, (select count(*) from narval.pins i \
         where i.cache = r.cache and i.name = r.hold), r.percent from narval.releases r where r.cache = $1 and r.record <> ''"
    };
}

/// The newest release of a system that is for all machines.
macro_rules! newest_for_all {
    ($column:literal) => {
        concat!(
            "(select q.",
            $column,
            " from narval.releases q where q.cache = $1 and q.name = $2 and q.system = $3 and q.percent is null and q.record <> '' \
             order by q.revision desc limit 1)"
        )
    };
}

/// Which rows a page of a list has, by name and from the newest revision on, and how large their records are.
macro_rules! keys_from {
    () => {
        "select r.name, r.revision, r.system, octet_length(r.record) from narval.releases r where r.cache = $1 and r.record <> '' \
         and r.name >= $2 and (r.name > $2 or r.revision < $3 or (r.revision = $3 and r.system > $4))"
    };
}

/// Their order, and how many.
macro_rules! keys_order {
    () => {
        " order by r.name, r.revision desc, r.system limit $5"
    };
}

statements! {
    /// Who records a release of a cache has its row, so that revisions have one order.
    LOCK(Int) = "select uid from narval.caches where id = $1{lock}";
    IDENTIFY(Text, Int) = "update narval.caches set uid = $1 where id = $2";
    UID(Int) = "select uid from narval.caches where id = $1";
    CONTENTS(Int) { part: Text } = "select p.hash_part, p.path, p.nar_hash from narval.paths p where p.cache = $1 \
         and p.hash_part in (select r.part from {rows})";
    /// Rows of forgotten releases count, too.
    NEWEST(Int, Text) = "select revision from narval.releases where cache = $1 and name = $2 order by revision desc limit 1";
    ADD(Int, Text, Int, Text, Int, Int, Text, Int, Text) { system: Text, hold: Text } = "insert into narval.releases \
         (cache, name, revision, version, created, pinned, record, percent, request, system, hold) \
         select $1, $2, $3, $4, $5, $6, $7, $8, $9, r.system, r.hold \
         from {rows} where true on conflict do nothing";
    HOLD(Int, Int) { hold: Text, part: Text, path: Text } = "insert into narval.pins (cache, created, name, hash_part, path) \
         select $1, $2, r.hold, r.part, r.path from {rows}";
    /// What a request has recorded before.
    REQUESTED(Int, Text, Text) = "select record from narval.releases where cache = $1 and name = $2 and request = $3 and record <> '' limit 1";
    /// Those before the newest ones do not keep their paths any more, but for the newest one that is for all machines.
    SURPLUS(Int, Text, Text, Int) = concat!("delete from narval.pins where cache = $1 and name in (select hold from narval.releases \
         where cache = $1 and name = $2 and system = $3 and pinned = 0 order by revision desc limit 10000 offset $4) \
         and name <> coalesce(", newest_for_all!("hold"), ", '')");
    FORGET_OLD(Int, Text, Text, Int) = concat!("delete from narval.releases where cache = $1 and name = $2 and system = $3 and pinned = 0 \
         and revision in (select revision from narval.releases where cache = $1 and name = $2 and system = $3 and pinned = 0 \
         order by revision desc limit 10000 offset $4) and revision <> coalesce(", newest_for_all!("revision"), ", 0)");
    FIND(Int, Text, Text, Int, Text, Int) = concat!(record!(), " and r.name = $2 and r.system = coalesce($3, r.system) \
         and r.revision = coalesce($4, r.revision) and coalesce(r.version, '') = coalesce($5, r.version, '') \
         and coalesce(r.percent, 100) > $6 order by r.revision desc limit 1");
    /// Which rows a page of a list has, and how large their records are. They are immutable: what is read by these keys is no larger.
    KEYS_OF_NAME(Int, Text, Int, Text, Int) = "select r.name, r.revision, r.system, octet_length(r.record) from narval.releases r \
         where r.cache = $1 and r.record <> '' and r.name = $2 and (r.revision < $3 or (r.revision = $3 and r.system > $4)) \
         order by r.revision desc, r.system limit $5";
    /// The newest of each name and system, and those that other machines have meanwhile.
    KEYS_OF_CACHE(Int, Text, Int, Text, Int) = concat!(keys_from!(), " and not exists (select 1 from narval.releases q \
         where q.cache = r.cache and q.name = r.name and q.system = r.system and q.revision > r.revision and q.record <> '' \
         and coalesce(q.percent, 100) >= coalesce(r.percent, 100))", keys_order!());
    ALL_KEYS(Int, Text, Int, Text, Int) = concat!(keys_from!(), keys_order!());
    RECORDS(Int) { name: Text, revision: Int, system: Text } = "select q.name, q.revision, q.system, q.version, q.created, q.pinned, q.hold, \
         q.record, (select count(*) from narval.pins i where i.cache = q.cache and i.name = q.hold), q.percent from {rows} join narval.releases q \
         on q.name = r.name and q.revision = r.revision and q.system = r.system where q.cache = $1 and q.record <> ''";
    /// From one name to the next: however many revisions they have.
    NAMES(Int) = "select count(q.name) from (with recursive n (name) as (select min(r.name) from narval.releases r where r.cache = $1 union all \
         select (select min(r.name) from narval.releases r where r.cache = $1 and r.name > n.name) from n where n.name is not null) \
         select n.name from n) q";
    FORGET_FORGOTTEN(Int, Int) = "delete from narval.releases where cache = $1 and record = '' and name in (select name \
         from narval.releases where cache = $1 and record = '' order by created limit $2)";
    SYSTEMS(Int, Text) = "select distinct system from narval.releases where cache = $1 and name = $2 and record <> ''";
    IS_NEWEST(Int, Text, Int) = "select 1 from narval.releases r where r.cache = $1 and r.name = $2 and r.revision = $3 and not exists \
         (select 1 from narval.releases q where q.cache = $1 and q.name = $2 and q.system = r.system and q.revision > $3 and q.record <> '' \
         and coalesce(q.percent, 100) >= coalesce(r.percent, 100))";
    RELEASE(Int, Text, Int) = "delete from narval.pins where cache = $1 and name in (select hold from narval.releases \
         where cache = $1 and name = $2 and revision = coalesce($3, revision))";
    FORGET(Int, Text, Int) = "delete from narval.releases where cache = $1 and name = $2 and revision = $3";
    FORGET_BEFORE(Int, Text) = "delete from narval.releases where cache = $1 and name = $2 \
         and revision < (select max(revision) from narval.releases where cache = $1 and name = $2)";
    /// Its revision is not used again.
    EMPTY(Int, Text) = "update narval.releases set record = '', version = null, pinned = 0 where cache = $1 and name = $2";
    PIN(Int, Int, Text, Int) = "update narval.releases set pinned = $1 where cache = $2 and name = $3 and revision = $4";
    IS_HOLD(Int, Text) = "select 1 from narval.releases where cache = $1 and hold = $2";
}

fn record(row: &dyn Row) -> Result<ReleaseRecord, TxError> {
    Ok(ReleaseRecord {
        name: row.get(0)?,
        revision: row.get(1)?,
        system: row.get(2)?,
        version: row.get(3)?,
        created: row.get(4)?,
        is_pinned: row.get(5)?,
        hold: row.get(6)?,
        json: row.get(7)?,
        is_kept: row.get(8)?,
        percent: row.get(9)?,
    })
}

/// The name of the pins of a release's paths for a system.
fn name_of_hold(name: &str, revision: u64, system: &str) -> String {
    format!("@{name}@{revision} {system}")
}

/// The paths of a release, by system.
type Held = [(ReleaseSystem, HashPart, String)];

/// Pins the paths of a release, which are there.
fn pin_paths(
    tx: &mut dyn Tx,
    cache: CacheId,
    (name, revision): (&str, u64),
    paths: &Held,
    now: u64,
) -> Result<(), TxError> {
    let holds: Vec<String> = paths.iter().map(|(system, ..)| name_of_hold(name, revision, system.as_str())).collect();
    let rows = holds.iter().zip(paths).flat_map(|(hold, (_, part, path))| args![hold, part, path]);
    tx.execute_all(&HOLD, &args![cache, now], &rows.collect::<Vec<_>>()).map(drop)
}

/// Releases paths of those before the newest `keep` of a name and a system, and forgets the oldest ones.
fn prune(tx: &mut dyn Tx, cache: CacheId, name: &str, system: &str, keep: u32) -> Result<(), TxError> {
    tx.execute(&SURPLUS, &args![cache, name, system, Some(keep)])?;
    tx.execute(&FORGET_OLD, &args![cache, name, system, Some(REMEMBERED_MAX.max(keep))]).map(drop)
}

/// Whether a cache has room for one more name. If not, the names that were forgotten first are dropped: their revisions may be used again.
fn has_room(tx: &mut dyn Tx, cache: CacheId) -> Result<bool, TxError> {
    let names = |tx: &mut dyn Tx| tx.one(&NAMES, &args![cache], |row| row.get::<u64>(0));
    if names(tx)? < RELEASE_NAMES_MAX {
        return Ok(true);
    }
    tx.execute(&FORGET_FORGOTTEN, &args![cache, FORGOTTEN_AT_ONCE])?;
    Ok(names(tx)? < RELEASE_NAMES_MAX)
}

impl dyn Index + '_ {
    /// Records a release, if all its paths are there. `make` is given the id of the cache, the revision, and the base name and hash of each path, and
    /// returns the record as it is signed. The result is what it has returned.
    ///
    /// A revision is one more than that of the release of this name before, also if that one was forgotten.
    pub(crate) fn add_release<T: Clone + Send + 'static>(
        &self,
        cache: CacheId,
        request: ReleaseRequest,
        (parts, keep, now): (BTreeSet<HashPart>, u32, u64),
        make: impl Fn(&str, u64, &[(HashPart, String, NarHash)]) -> Option<(T, ReleaseToRecord)> + Send + 'static,
    ) -> Result<Result<Recorded<T>, ReleaseRefused>, IndexError> {
        let ReleaseRequest { name, key, new_uid } = request;
        let name = name.to_string();
        self.write(NOTE, move |tx| {
            // A collection leaves them alone meanwhile, and finds the pins later.
            let held: BTreeSet<HashPart> = hold(tx, cache, &parts)?.into_iter().collect();
            if let Some(absent) = parts.difference(&held).next() {
                return Ok(Err(ReleaseRefused::Absent(Some(*absent))));
            }
            let uid = tx.one(&LOCK, &args![cache], |row| row.get::<Option<String>>(0))?;
            let uid = match uid {
                Some(uid) => uid,
                None => {
                    tx.execute(&IDENTIFY, &args![&new_uid, cache])?;
                    new_uid.clone()
                }
            };
            if let Some(key) = &key
                && holds!(Requested)
                && let Some(record) = tx.first(&REQUESTED, &args![cache, &name, key], |row| row.get(0))?
            {
                return Ok(Ok(Recorded::Again(record)));
            }
            let rows: Vec<Arg<'_>> = parts.iter().map(Arg::from).collect();
            let contents = |row: &dyn Row| Ok((row.parsed(0)?, row.get(1)?, row.get(2)?));
            let contents = tx.all_of(&CONTENTS, &args![cache], &rows, contents)?;
            let newest = tx.first(&NEWEST, &args![cache, &name], |row| row.get::<u64>(0))?;
            if newest.is_none() && !has_room(tx, cache)? {
                return Ok(Err(ReleaseRefused::Names));
            }
            let newest = newest.unwrap_or(0);
            let Some((made, record)) = make(&uid, newest + 1, &contents) else {
                return Ok(Err(ReleaseRefused::Absent(None)));
            };
            let ReleaseToRecord { version, percent, json, paths } = record;
            let revision = newest + 1;
            let systems: BTreeSet<&str> = paths.iter().map(|(system, ..)| system.as_str()).collect();
            let known: BTreeSet<String> =
                tx.all(&SYSTEMS, &args![cache, &name], |row| row.get(0))?.into_iter().collect();
            let more = systems.iter().filter(|system| !known.contains(**system)).count();
            if more > 0 && known.len() + more > RELEASE_SYSTEMS_MAX {
                return Ok(Err(ReleaseRefused::Systems));
            }
            let holds: Vec<(&str, String)> =
                systems.iter().map(|system| (*system, name_of_hold(&name, revision, system))).collect();
            let rows: Vec<Arg<'_>> = holds.iter().flat_map(|(system, hold)| args![*system, hold]).collect();
            let (percent, version) = (percent.map(u32::from), version.as_deref());
            let values = args![cache, &name, revision, version, now, 0_u64, &json, percent, key.as_deref()];
            tx.execute_all(&ADD, &values, &rows)?;
            if holds!(Held) {
                pin_paths(tx, cache, (&name, revision), &paths, now)?;
            }
            systems.iter().try_for_each(|system| prune(tx, cache, &name, system, keep))?;
            Ok(Ok(Recorded::New(made)))
        })
    }

    /// The newest release of a name for machines of this share; with a system, a revision or a version, the newest that has these.
    pub(crate) fn find_release(
        &self,
        cache: CacheId,
        name: &str,
        system: Option<&str>,
        (revision, version): (Option<u64>, Option<&str>),
        share: u8,
    ) -> Result<Option<ReleaseRecord>, IndexError> {
        let values = args![cache, name, system, revision, version, u64::from(share)];
        self.read(Reading::Some, |tx| tx.first(&FIND, &values, record))
    }

    /// A page of releases, by name, the newest first. One has a row for each system. And whether there are more.
    pub(crate) fn releases(
        &self,
        cache: CacheId,
        listed: Listed<'_>,
        after: Option<&ReleaseCursor>,
        max: ListMax,
    ) -> Result<(Vec<ReleaseRecord>, bool), IndexError> {
        let (sql, first) = match listed {
            Listed::Of(name) => (&KEYS_OF_NAME, name),
            Listed::Newest => (&KEYS_OF_CACHE, ""),
            Listed::All => (&ALL_KEYS, ""),
        };
        let (from, revision, system) = after.map_or((first, i64::MAX.unsigned_abs(), ""), ReleaseCursor::key);
        self.read(Reading::Some, |tx| {
            let key = |row: &dyn Row| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?));
            let limit = Some(max.rows.saturating_add(1));
            let mut keys: Vec<((String, u64, String), u64)> =
                tx.all(sql, &args![cache, from, revision, system, limit], key)?;
            let (rows, mut bytes) = (max.rows as usize, 0_u64);
            let mut fits = |(at, (_, len)): (usize, &(_, u64))| {
                bytes += len;
                at < rows && (at == 0 || bytes <= max.bytes)
            };
            let count = keys.iter().enumerate().map_while(|one| fits(one).then_some(())).count();
            let is_more = count < keys.len();
            keys.truncate(count);
            let rows: Vec<Arg<'_>> =
                keys.iter().flat_map(|((name, revision, system), _)| args![name, *revision, system]).collect();
            let mut found =
                if rows.is_empty() { Vec::new() } else { tx.all_of(&RECORDS, &args![cache], &rows, record)? };
            found.sort_by(|a, b| {
                (&a.name, Reverse(a.revision), &a.system).cmp(&(&b.name, Reverse(b.revision), &b.system))
            });
            Ok((found, is_more))
        })
    }

    /// The id that the releases of a cache name.
    pub(crate) fn id_of_releases(&self, cache: CacheId) -> Result<Option<String>, IndexError> {
        self.read(Reading::Some, |tx| tx.one(&UID, &args![cache], |row| row.get::<Option<String>>(0)))
    }

    /// Takes back what [`releases`](Self::releases) has returned. What is there stays.
    pub(crate) fn restore_releases(
        &self,
        cache: CacheId,
        uid: String,
        releases: Vec<ReleaseRecord>,
    ) -> Result<(), IndexError> {
        self.write(LARGE, move |tx| {
            if tx.one(&LOCK, &args![cache], |row| row.get::<Option<String>>(0))?.is_none() {
                tx.execute(&IDENTIFY, &args![&uid, cache])?;
            }
            for ReleaseRecord { name, revision, system, version, created, is_pinned, hold, json, percent, .. } in
                &releases
            {
                let (pinned, version) = (u64::from(*is_pinned), version.as_deref());
                let values = args![cache, name, *revision, version, *created, pinned, json, *percent, None::<&str>];
                tx.execute_all(&ADD, &values, &args![system, hold])?;
            }
            Ok(())
        })
    }

    /// Forgets a release, or all of a name. Their paths are not kept any more. `None`: it is the newest one of a system, and nothing was done.
    pub(crate) fn forget_release(
        &self,
        cache: CacheId,
        name: &str,
        revision: Option<u64>,
    ) -> Result<Option<bool>, IndexError> {
        let name = name.to_owned();
        self.write(NOTE, move |tx| {
            tx.first(&LOCK, &args![cache], |_| Ok(()))?;
            if let Some(revision) = revision
                && tx.exists(&IS_NEWEST, &args![cache, &name, revision])?
            {
                return Ok(None);
            }
            let exists = tx.exists(&FIND, &args![cache, &name, None::<&str>, revision, None::<&str>, 0_u64])?;
            tx.execute(&RELEASE, &args![cache, &name, revision])?;
            match revision {
                Some(revision) => drop(tx.execute(&FORGET, &args![cache, &name, revision])?),
                None => {
                    tx.execute(&FORGET_BEFORE, &args![cache, &name])?;
                    tx.execute(&EMPTY, &args![cache, &name])?;
                }
            }
            Ok(Some(exists))
        })
    }

    /// Pins a release, so that its paths are kept whatever comes after it; or unpins it. The first path that is not there any more is the error.
    pub(crate) fn pin_release(
        &self,
        cache: CacheId,
        (name, revision): (&str, u64),
        paths: Vec<(ReleaseSystem, HashPart, String)>,
        (is_pinned, keep, now): (bool, u32, u64),
    ) -> Result<Result<(), HashPart>, IndexError> {
        let name = name.to_owned();
        self.write(NOTE, move |tx| {
            let parts: BTreeSet<HashPart> = paths.iter().map(|(_, part, _)| *part).collect();
            let held: BTreeSet<HashPart> = hold(tx, cache, &parts)?.into_iter().collect();
            if let Some(absent) = parts.difference(&held).next().filter(|_| is_pinned) {
                return Ok(Err(*absent));
            }
            tx.first(&LOCK, &args![cache], |_| Ok(()))?;
            tx.execute(&PIN, &args![u64::from(is_pinned), cache, &name, revision])?;
            if is_pinned {
                tx.execute(&RELEASE, &args![cache, &name, Some(revision)])?;
                pin_paths(tx, cache, (&name, revision), &paths, now)?;
            } else {
                let systems: BTreeSet<&str> = paths.iter().map(|(system, ..)| system.as_str()).collect();
                systems.iter().try_for_each(|system| prune(tx, cache, &name, system, keep))?;
            }
            Ok(Ok(()))
        })
    }

    /// Whether a pin of this name keeps a release.
    pub(crate) fn is_hold(&self, cache: CacheId, pin: &str) -> Result<bool, IndexError> {
        self.read(Reading::Some, |tx| tx.exists(&IS_HOLD, &args![cache, pin]))
    }
}
