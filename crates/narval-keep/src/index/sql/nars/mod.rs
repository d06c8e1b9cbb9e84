//! Stored NARs.
//!
//! A row follows its bytes, and goes before them. A name is never used again, so nobody has to know whose bytes are at a name: those of its row, or
//! those that nobody needs.

pub(in crate::index) mod lost;
pub(in crate::index) mod uploads;
pub(in crate::index) mod writers;

use std::collections::HashMap;

use narval_nix::{Compression, HashPart, NarHash, Sha256};

use super::pending;
use crate::index::tx::{Arg, LARGE, NOTE_LATER, Reading, Row, Tx, TxError, args, split, statements};
use crate::index::{Index, IndexError};
use crate::name::NarFileName;
use crate::records::leases::Fence;
use crate::records::paths::{CacheId, Cutoff, NamedNar, NarRecord, Usage};
use crate::rule::holds;

/// The most files of a NAR, beside the latest, that are remembered though they were not stored: whoever may push can send any number.
pub(in crate::index) const FORMER_MAX: u32 = 64;

macro_rules! columns {
    () => {
        "n.nar_hash, n.nar_size, n.compression, n.file_hash, n.file_size, n.listing_size, n.found"
    };
}

/// Somebody who is told that such a NAR is here relies on it for ten minutes, so that is recorded; once in a minute is enough.
macro_rules! due {
    () => {
        "n.orphaned is not null and n.orphaned <= {now} - 60 and n.used <= {now} - 60"
    };
}

pub(super) use columns;

statements! {
    FILES(Int) = concat!("select ", columns!(), ", n.name from narval.nars n where n.cache = $1 order by n.name");
    /// The latest first: others may be lost.
    FILES_OF(Int, Bytes) = concat!(
        "select ", columns!(), ", n.name from narval.nars n where n.cache = $1 and n.nar_hash = $2 order by n.id desc"
    );
    NOT_ZSTD(Int, Text, Text, Int) = "select n.name from narval.nars n where n.cache = $1 \
         and n.name > $2 and n.orphaned is null and n.compression <> $3 order by n.name limit $4";
    USAGE(Int) = "select (select count(*) from narval.paths where cache = $1), \
         (select count(*) from narval.nars where cache = $1), coalesce((select bytes from narval.caches where id = $1), 0)";
    ORPHANS(Int, Int, Int) = "select n.name, n.file_size from narval.nars n where n.cache = $1 \
         and n.orphaned is not null and n.orphaned <= $2 and n.used <= $3 order by n.name";
    NAMED(Int) { name: Text } = concat!(
        "select ", columns!(), ", n.name, n.orphaned is not null, ", due!(), ", r.name from {rows} \
         join narval.nars n on n.cache = $1 and n.name = r.name"
    );
    /// As clients remember them: by a name that a cache of former days gave, or by the hash of their file, or of the NAR, or of another file of that.
    BY_HASH(Int) { name: Text, hash: Bytes } = concat!(
        "select ", columns!(), ", n.name, n.orphaned is not null, ", due!(), ", r.name, n.id, 0 from {rows} \
           join narval.nars n on n.cache = $1 and n.name = r.name \
         union all select ", columns!(), ", n.name, n.orphaned is not null, ", due!(), ", r.name, n.id, 1 from {rows} \
           join narval.nars n on n.cache = $1 and n.file_hash = r.hash \
         union all select ", columns!(), ", n.name, n.orphaned is not null, ", due!(), ", r.name, n.id, 2 from {rows} \
           join narval.nars n on n.cache = $1 and n.nar_hash = r.hash \
         union all select ", columns!(), ", n.name, n.orphaned is not null, ", due!(), ", r.name, n.id, 3 from {rows} \
           join narval.former o on o.cache = $1 and o.file_hash = r.hash join narval.nars n on n.cache = $1 and n.nar_hash = o.nar_hash"
    );
    KEEP(Int) { name: Text } = "update narval.nars as n set used = greatest(n.used, {now}) where n.cache = $1 \
         and n.name in (select r.name from {rows}) returning name";
    /// After days, what has no row is removed. Of one that is recorded again, because nobody knew whether it was, nothing is changed.
    INSERT(Int, Int, Int) { name: Text, nar_hash: Bytes, compression: Text, nar_size: Int, file_hash: Bytes, file_size: Int, listing_size: Int, found: Text } =
        "insert into narval.nars (cache, name, nar_hash, compression, nar_size, file_hash, file_size, listing_size, found, added, used, orphaned) \
         select $1, r.name, r.nar_hash, r.compression, r.nar_size, r.file_hash, r.file_size, r.listing_size, r.found, $2, $2, $2 from {limited}{rows} \
         where {clock} < $3 order by r.name on conflict (cache, name) do nothing";
    REMEMBER(Int, Bytes, Bytes) = "insert into narval.former (cache, file_hash, nar_hash, at) values ($1, $2, $3, {now}) \
         on conflict (cache, file_hash) do update set nar_hash = excluded.nar_hash, at = excluded.at";
    FORMER_OF(Int, Bytes) = "select file_hash from narval.former where cache = $1 and nar_hash = $2 order by file_hash";
    /// The latest one stays: its narinfo may follow soon.
    LIMIT_FORMER(Int, Bytes, Bytes, Int) = "delete from narval.former where +cache = $1 and nar_hash = $2 and file_hash <> $3 \
         and file_hash not in (select o.file_hash from narval.former o where +o.cache = $1 and o.nar_hash = $2 \
         order by o.at desc, o.file_hash limit $4)";
    FORGET_FORMER(Int, Int) = "delete from narval.former where cache = $1 and at < $2";
    LOCK_NAME(Int, Text) = "select 1 from narval.nars n where n.cache = $1 and n.name = $2{lock}";
    REMOVE_PATHS(Int, Text) = "delete from narval.paths where cache = $1 and file = $2 returning hash_part";
    /// Those that somebody is about to name are left alone.
    LOCK_DUE(Int, Int, Int, Int) = "select n.name from narval.nars n where n.cache = $1 and n.orphaned is not null and n.orphaned <= $2 \
         and n.used <= $3 order by n.orphaned limit $4{lock_free}";
    REMOVE(Int) { name: Text } = "delete from narval.nars as n where n.cache = $1 and n.name in (select r.name from {rows}) \
         and not exists (select 1 from narval.paths p where p.cache = $1 and p.file = n.name) \
         returning name, file_size";
    DISCARD(Int, Int) { name: Text } = "insert into narval.garbage (cache, name, since) select $1, r.name, $2 from {rows} \
         where true on conflict (cache, name) do nothing";
    GARBAGE(Int, Int, Int) = "select name from narval.garbage where cache = $1 and since <= $2 order by name limit $3";
    FORGET(Int) { name: Text } = "delete from narval.garbage where cache = $1 and name in (select r.name from {rows})";
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

fn named(row: &dyn Row) -> Result<NamedNar, TxError> {
    Ok((row.get(7)?, record(row)?))
}

fn texts<'a>(names: &[&'a str]) -> Vec<Arg<'a>> {
    names.iter().map(|name| Arg::from(*name)).collect()
}

/// Adds the rows of NARs whose bytes are stored. Returns how many had none.
pub(super) fn add(
    tx: &mut dyn Tx,
    cache: CacheId,
    nars: &[NamedNar],
    (now, until): (u64, u64),
) -> Result<u64, TxError> {
    let found: Vec<String> = nars.iter().map(|(_, nar)| nar.found.iter().map(HashPart::as_str).collect()).collect();
    let rows: Vec<Arg<'_>> = nars
        .iter()
        .zip(&found)
        .flat_map(|((name, nar), found)| {
            let form = nar.compression.name();
            args![name, &nar.nar_hash, form, nar.nar_size, &nar.file_hash, nar.file_size, nar.listing_size, found]
        })
        .collect();
    tx.execute_all(&INSERT, &args![cache, now, until], &rows)
}

/// Removes the rows of NARs that no path has, and notes that their bytes are to go. The rows are locked. Returns their names and sizes.
pub(super) fn discard(
    tx: &mut dyn Tx,
    cache: CacheId,
    names: &[&str],
    now: u64,
) -> Result<Vec<(String, u64)>, TxError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let row = |row: &dyn Row| Ok((row.get::<String>(0)?, row.get::<u64>(1)?));
    let mut gone = tx.all_of(&REMOVE, &args![cache], &texts(names), row)?;
    gone.sort_unstable();
    tx.execute_all(&DISCARD, &args![cache, now], &gone.iter().map(|(name, _)| Arg::from(name)).collect::<Vec<_>>())?;
    // Nodes remember what names mean.
    tx.is_visible()?;
    Ok(gone)
}

/// What is known of a name that was asked for.
pub(super) struct LookedUp {
    pub(super) nar: NamedNar,
    /// Whether a path has it, so that it stays for a while.
    pub(super) is_in_use: bool,
}

impl dyn Index + '_ {
    /// The stored NAR that each of these names below `nar/` means in a cache: the one of this name, or, since clients remember names, one by the hash
    /// in it. What a collection could remove stays for ten minutes from now: whoever asks may rely on the answer.
    pub(super) fn look_up(&self, cache: CacheId, names: &[&str]) -> Result<HashMap<String, LookedUp>, IndexError> {
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        /// Whether it is in use, whether it could be removed, and which name was asked for.
        type Found = (NamedNar, (bool, bool), String);
        let row =
            |row: &dyn Row| Ok((named(row)?, (!row.get::<bool>(8)?, row.get::<bool>(9)?), row.get::<String>(10)?));
        // What no cache has chosen is looked for by its hash, too.
        let is_chosen = |name: &&str| NarFileName::parse(name).map_or(true, |name| name.is_unique());
        let chosen: Vec<&str> = names.iter().copied().filter(is_chosen).collect();
        let mut found: Vec<Found> = match chosen.is_empty() {
            true => Vec::new(),
            false => self.read(Reading::Some, |tx| tx.all_of(&NAMED, &args![cache], &texts(&chosen), row))?,
        };
        let absent = |name: &&&str| !found.iter().any(|(.., asked)| asked == **name);
        let absent: Vec<NarFileName> =
            names.iter().filter(absent).filter_map(|name| NarFileName::parse(name).ok()).collect();
        if !absent.is_empty() {
            let texts: Vec<String> = absent.iter().map(ToString::to_string).collect();
            let rows: Vec<Arg<'_>> =
                texts.iter().zip(&absent).flat_map(|(text, name)| args![text, name.hash()]).collect();
            let ranked = |found: &dyn Row| Ok((row(found)?, found.get::<i64>(11)?, found.get::<i64>(12)?));
            let mut ranked: Vec<(Found, i64, i64)> =
                self.read(Reading::Some, |tx| tx.all_of(&BY_HASH, &args![cache], &rows, ranked))?;
            // The latest of the best: others may be lost.
            ranked.sort_unstable_by_key(|(_, id, rank)| (*rank, -*id));
            for (text, name) in texts.iter().zip(&absent) {
                let of_it = |((nar, _, asked), ..): &&(Found, i64, i64)| asked == text && name.fits(&nar.1.compression);
                found.extend(ranked.iter().find(of_it).map(|(found, ..)| found.clone()));
            }
        }
        let due: Vec<String> =
            found.iter().filter(|(_, (_, is_due), _)| *is_due).map(|((name, _), ..)| name.clone()).collect();
        if !due.is_empty() && holds!(Promised) {
            let names = due.clone();
            let kept = self.write(NOTE_LATER, move |tx| {
                let names: Vec<Arg<'_>> = names.iter().map(Arg::from).collect();
                tx.all_of(&KEEP, &args![cache], &names, |row| row.get::<String>(0))
            })?;
            // The others are gone meanwhile.
            found.retain(|((name, _), ..)| !due.contains(name) || kept.contains(name));
        }
        let looked_up = |(nar, (is_in_use, _), asked): Found| (asked, LookedUp { nar, is_in_use });
        Ok(found.into_iter().map(looked_up).collect())
    }

    /// All stored NARs of a cache.
    pub(crate) fn files(&self, cache: CacheId) -> Result<Vec<NamedNar>, IndexError> {
        self.read(Reading::Many, |tx| tx.all(&FILES, &args![cache], named))
    }

    /// The stored files of a NAR in a cache, in any compression, the latest first.
    pub(crate) fn files_of(&self, cache: CacheId, nar_hash: &NarHash) -> Result<Vec<NamedNar>, IndexError> {
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

    /// The names of NARs that are to be removed, with their bytes.
    pub(crate) fn orphans(&self, cache: CacheId, cutoff: Cutoff) -> Result<Vec<(String, u64)>, IndexError> {
        let args = args![cache, cutoff.orphaned, cutoff.used];
        self.read(Reading::Many, |tx| tx.all(&ORPHANS, &args, |row| Ok((row.get(0)?, row.get(1)?))))
    }

    /// Notes that a file was uploaded and not stored, because this NAR is there. The oldest of very many such files are forgotten.
    pub(crate) fn remember_former(&self, cache: CacheId, file: Sha256, nar: NarHash) -> Result<(), IndexError> {
        self.write(NOTE_LATER, move |tx| {
            tx.execute(&REMEMBER, &args![cache, &file, &nar])?;
            tx.execute(&LIMIT_FORMER, &args![cache, &nar, &file, Some(FORMER_MAX)]).map(drop)
        })
    }

    /// What was uploaded in place of which a NAR was there.
    pub(crate) fn former_of(&self, cache: CacheId, nar: &NarHash) -> Result<Vec<Sha256>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&FORMER_OF, &args![cache, nar], |row| row.get(0)))
    }

    /// Removes the row of a NAR whose bytes are lost, and the paths that are served from it. With `is_doubted`, the paths are remembered
    /// ([`lost`](Self::lost)), in case the storage was wrong; otherwise, what is left of the bytes is removed.
    pub(crate) fn remove_file(&self, cache: CacheId, name: &str, is_doubted: bool, now: u64) -> Result<(), IndexError> {
        let name = name.to_owned();
        self.write(LARGE, move |tx| {
            // Whoever commits a path with this name waits until this transaction ends. A commit has the rows of its paths first: if the two wait for
            // each other, one of them is done again.
            tx.first(&LOCK_NAME, &args![cache, &name], |_| Ok(()))?;
            if is_doubted {
                lost::remember(tx, cache, &name)?;
            }
            let paths = tx.all(&REMOVE_PATHS, &args![cache, &name], |row| row.parsed::<HashPart>(0))?;
            pending::add(tx, cache, paths.iter())?;
            discard(tx, cache, &[&name], now)?;
            if is_doubted {
                tx.execute_all(&FORGET, &args![cache], &texts(&[&name]))?;
            }
            Ok(())
        })
    }

    /// Removes the rows of a limited number of NARs that no path has and for which the cutoff holds. From then on their bytes are
    /// [garbage](Self::garbage). Returns their names and sizes.
    pub(crate) fn discard(
        &self,
        fence: Fence,
        cache: CacheId,
        cutoff: Cutoff,
        (max, now): (usize, u64),
    ) -> Result<Vec<(String, u64)>, IndexError> {
        self.write_fenced(LARGE, fence, move |tx| {
            let due =
                tx.all(&LOCK_DUE, &args![cache, cutoff.orphaned, cutoff.used, max], |row| row.get::<String>(0))?;
            discard(tx, cache, &due.iter().map(String::as_str).collect::<Vec<_>>(), now)
        })
    }

    /// Files whose rows were removed at this time or before: a limited number of them.
    pub(crate) fn garbage(&self, cache: CacheId, before: u64, max: usize) -> Result<Vec<String>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&GARBAGE, &args![cache, before, max], |row| row.get(0)))
    }

    /// The bytes of these are removed.
    pub(crate) fn forget(&self, cache: CacheId, names: Vec<String>) -> Result<(), IndexError> {
        self.write(NOTE_LATER, move |tx| {
            tx.execute_all(&FORGET, &args![cache], &names.iter().map(Arg::from).collect::<Vec<_>>()).map(drop)
        })
    }

    /// Forgets what clients have named before this time.
    pub(crate) fn forget_former(&self, cache: CacheId, before: u64) -> Result<(), IndexError> {
        self.write(NOTE_LATER, move |tx| tx.execute(&FORGET_FORMER, &args![cache, before]).map(drop))
    }
}
