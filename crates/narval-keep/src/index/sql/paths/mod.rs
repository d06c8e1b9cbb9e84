//! What is asked of paths.

pub(in crate::index) mod commit;
pub(in crate::index) mod pins;
pub(in crate::index) mod releases;

use std::collections::HashMap;

use narval_nix::HashPart;

use crate::index::tx::{Arg, Reading, Row, Sql, Tx, TxError, args, split, statements};
use crate::index::{Index, IndexError};
use crate::records::paths::{CacheId, Listed, PathRecord};

/// Paths in one statement: its result is in memory as a whole, here and in the database.
pub(super) const STEP: usize = 4096;

macro_rules! listed {
    () => {
        "select p.hash_part, p.path, p.added, p.used, coalesce(n.file_size, 0)"
    };
}

macro_rules! with_files {
    () => {
        "left join narval.nars n on n.cache = p.cache and n.name = p.file"
    };
}

statements! {
    NARINFO(Int, Text) = "select narinfo, used from narval.paths where cache = $1 and hash_part = $2";
    NARINFOS(Int) { part: Text } = "select p.hash_part, p.narinfo from {rows} \
         join narval.paths p on p.cache = $1 and p.hash_part = r.part";
    PATHS(Int) { part: Text } = "select p.hash_part, p.path, p.nar_hash, p.file, p.narinfo, p.listing_size, p.version, \
         (select string_agg(reference, '' order by reference) from narval.refs where referrer = p.id) \
         from {rows} join narval.paths p on p.cache = $1 and p.hash_part = r.part";
    PRESENT(Int) { part: Text } = "select p.hash_part, 1 from {rows} join narval.paths p on p.cache = $1 and p.hash_part = r.part";
    LOCATED(Int) { part: Text } = "select p.hash_part, p.file, n.file_size from {rows} \
         join narval.paths p on p.cache = $1 and p.hash_part = r.part \
         join narval.nars n on n.cache = p.cache and n.name = p.file";
    OF_FILE(Int, Text) = "select hash_part from narval.paths where cache = $1 and file = $2 order by path";
    NAMES(Int) { id: Int } = concat!(
        listed!(), ", p.id from {rows} join narval.paths p on p.id = r.id ", with_files!(), " where p.cache = $1"
    );
    LIST(Int, Text, Int) = concat!(
        listed!(), " from narval.paths p ", with_files!(), " where p.cache = $1 and p.hash_part > $2 order by p.hash_part limit $3"
    );
    PARTS(Int, Text, Int) = "select hash_part from narval.paths where cache = $1 and hash_part > $2 order by hash_part limit $3";
    LAST() = "select coalesce(max(id), 0) from narval.paths";
    SINCE(Int, Int, Int, Int) = "select hash_part from narval.paths where id > $2 and id <= $3 and +cache = $1 order by id limit $4";
    REFERRERS(Int, Text) = "select p.hash_part from narval.refs r join narval.paths p on p.id = r.referrer \
         where r.reference = $2 and p.cache = $1 and p.hash_part <> $2 order by p.path";
}

fn record(row: &dyn Row) -> Result<PathRecord, TxError> {
    Ok(PathRecord {
        hash_part: row.parsed(0)?,
        path: row.get(1)?,
        nar_hash: row.get(2)?,
        file: row.get(3)?,
        narinfo: row.get(4)?,
        references: row.get::<Option<&str>>(7)?.map(split).unwrap_or_default(),
        listing_size: row.get(5)?,
        version: row.get(6)?,
    })
}

fn listed(row: &dyn Row) -> Result<Listed, TxError> {
    let (hash_part, path, added) = (row.parsed(0)?, row.get(1)?, row.get(2)?);
    Ok(Listed { hash_part, path, added, used: row.get(3)?, file_size: row.get(4)? })
}

/// What a statement finds for each of these paths.
fn of_each<T: Clone>(
    tx: &mut dyn Tx,
    sql: &'static Sql,
    cache: CacheId,
    parts: &[HashPart],
    row: impl Fn(&dyn Row) -> Result<T, TxError>,
) -> Result<Vec<Option<T>>, TxError> {
    let mut found = HashMap::new();
    for step in parts.chunks(STEP) {
        let rows: Vec<Arg<'_>> = step.iter().map(Arg::from).collect();
        let pair = |found: &dyn Row| Ok((found.parsed::<HashPart>(0)?, row(found)?));
        found.extend(tx.all_of(sql, &args![cache], &rows, pair)?);
    }
    Ok(parts.iter().map(|part| found.get(part).cloned()).collect())
}

/// Which of these paths exist.
pub(super) fn are_present(tx: &mut dyn Tx, cache: CacheId, parts: &[HashPart]) -> Result<Vec<bool>, TxError> {
    Ok(of_each(tx, &PRESENT, cache, parts, |_| Ok(()))?.iter().map(Option::is_some).collect())
}

impl dyn Index + '_ {
    /// The narinfo of a path, and when it was last used as far as the index knows.
    pub(crate) fn narinfo(&self, cache: CacheId, part: &HashPart) -> Result<Option<(Vec<u8>, u64)>, IndexError> {
        self.read(Reading::Some, |tx| tx.first(&NARINFO, &args![cache, part], |row| Ok((row.get(0)?, row.get(1)?))))
    }

    /// The narinfos of paths, in the given order.
    pub(crate) fn narinfos(&self, cache: CacheId, parts: &[HashPart]) -> Result<Vec<Option<Vec<u8>>>, IndexError> {
        self.read(Reading::Some, |tx| of_each(tx, &NARINFOS, cache, parts, |row| row.get(1)))
    }

    /// The record of a path.
    pub(crate) fn path(&self, cache: CacheId, part: &HashPart) -> Result<Option<PathRecord>, IndexError> {
        Ok(self.paths(cache, &[*part])?.pop().flatten())
    }

    /// The records of paths, in the given order.
    pub(crate) fn paths(&self, cache: CacheId, parts: &[HashPart]) -> Result<Vec<Option<PathRecord>>, IndexError> {
        self.read(Reading::Some, |tx| of_each(tx, &PATHS, cache, parts, record))
    }

    /// Which of these paths exist.
    pub(crate) fn present(&self, cache: CacheId, parts: &[HashPart]) -> Result<Vec<bool>, IndexError> {
        self.read(Reading::Some, |tx| are_present(tx, cache, parts))
    }

    /// For each path that exists, the name of its NAR's file and the expected length of that file.
    pub(crate) fn located(&self, cache: CacheId, parts: &[HashPart]) -> Result<Vec<Option<(String, u64)>>, IndexError> {
        self.read(Reading::Some, |tx| of_each(tx, &LOCATED, cache, parts, |row| Ok((row.get(1)?, row.get(2)?))))
    }

    /// The paths whose narinfo names this file.
    pub(crate) fn paths_of_file(&self, cache: CacheId, name: &str) -> Result<Vec<HashPart>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&OF_FILE, &args![cache, name], |row| row.parsed(0)))
    }

    /// The paths with these ids, in any order. Those that are gone since are left out.
    pub(crate) fn names(&self, cache: CacheId, ids: &[i64]) -> Result<Vec<(i64, Listed)>, IndexError> {
        let rows: Vec<Arg<'_>> = ids.iter().copied().map(Arg::from).collect();
        let pair = |row: &dyn Row| Ok((row.get(5)?, listed(row)?));
        self.read(Reading::Some, |tx| tx.all_of(&NAMES, &args![cache], &rows, pair))
    }

    /// At most this many paths, sorted by hash part, after the given one.
    pub(crate) fn list(&self, cache: CacheId, after: &str, max: usize) -> Result<Vec<Listed>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&LIST, &args![cache, after, max], listed))
    }

    /// At most this many hash parts, sorted, after the given one.
    pub(crate) fn parts(&self, cache: CacheId, after: &str, max: usize) -> Result<Vec<HashPart>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&PARTS, &args![cache, after, max], |row| row.parsed(0)))
    }

    /// The last id of a path, of whichever cache. Ids only grow; where several servers write, not in the order in which paths become visible.
    pub(crate) fn last_id(&self) -> Result<i64, IndexError> {
        self.read(Reading::Some, |tx| Ok(tx.first(&LAST, &[], |row| row.get(0))?.unwrap_or(0)))
    }

    /// At most this many paths whose ids are after one and up to another.
    pub(crate) fn parts_between(
        &self,
        cache: CacheId,
        ids: (i64, i64),
        max: usize,
    ) -> Result<Vec<HashPart>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&SINCE, &args![cache, ids.0, ids.1, max], |row| row.parsed(0)))
    }

    /// The referrers of a path, without itself.
    pub(crate) fn referrers(&self, cache: CacheId, part: &HashPart) -> Result<Vec<HashPart>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&REFERRERS, &args![cache, part], |row| row.parsed(0)))
    }
}
