//! All of a cache, as a collection sees it.

use narval_nix::HashPart;

use super::nars::{columns, record};
use super::paths::pins;
use crate::index::snapshot::SnapshotBuilder;
use crate::index::tx::{Reading, Row, TxError, args, statements};
use crate::index::{Index, IndexError, Snapshot};
use crate::records::paths::{CacheId, SavedPath};

statements! {
    PATHS(Int) = "select id, hash_part, used from narval.paths where cache = $1 order by id";
    /// One row for each referrer takes less time than one for each reference.
    REFERENCES() = "select referrer, string_agg(reference, '') from narval.refs group by referrer order by referrer";
    LEASES(Int) = "select hash_part, until from narval.leases where cache = $1";
    SIZES(Int) = "select p.id, n.id, n.file_size + coalesce(n.listing_size, 0) from narval.paths p \
         join narval.nars n on n.cache = p.cache and n.name = p.file \
         where p.cache = $1 order by p.id";
    SAVED(Int) = concat!(
        "select ", columns!(), ", p.id, p.path, p.file, p.narinfo from narval.paths p \
         join narval.nars n on n.cache = p.cache and n.name = p.file where p.cache = $1 order by p.id"
    );
}

fn saved(row: &dyn Row) -> Result<(i64, SavedPath), TxError> {
    Ok((row.get(7)?, SavedPath { nar: record(row)?, path: row.get(8)?, file: row.get(9)?, narinfo: row.get(10)? }))
}

/// Those that are read in the order of an index.
#[cfg(test)]
pub(in crate::index) const IN_ORDER: [&crate::index::tx::Sql; 2] = [&PATHS, &REFERENCES];

impl dyn Index + '_ {
    /// All paths, pins and leases of a cache, as one snapshot; with the number of a path, if one is wanted.
    pub(crate) fn snapshot(&self, cache: CacheId, wanted: Option<&HashPart>) -> Result<Snapshot, IndexError> {
        let check =
            |fits: bool| fits.then_some(()).ok_or_else(|| "there are more than 4 billion paths or references".into());
        self.read(Reading::Snapshot, |tx| {
            let mut builder = SnapshotBuilder::new();
            tx.scan(&PATHS, &args![cache], &mut |row| check(builder.path(row.get(0)?, &row.parsed(1)?, row.get(2)?)))?;
            builder.end_paths();
            tx.scan(&REFERENCES, &[], &mut |row| {
                check(builder.references(row.get(0)?, row.get::<&str>(1)?.as_bytes()))
            })?;
            tx.scan(&LEASES, &args![cache], &mut |row| {
                builder.lease(&row.parsed(0)?, row.get(1)?);
                Ok(())
            })?;
            pins::all(tx, cache)?.into_iter().for_each(|pin| builder.pin(pin));
            Ok(builder.finish(wanted))
        })
    }

    /// For each path, in the order of their ids: its id, its stored NAR, and the bytes of that and of its listing.
    pub(crate) fn sizes(&self, cache: CacheId) -> Result<Vec<(i64, i64, u64)>, IndexError> {
        self.read(Reading::Whole, |tx| {
            let mut sizes = Vec::new();
            tx.scan(&SIZES, &args![cache], &mut |row| {
                sizes.push((row.get(0)?, row.get(1)?, row.get(2)?));
                Ok(())
            })?;
            Ok(sizes)
        })
    }

    /// Passes on all paths of caches as they are at one moment, those of each in the order of their numbers. What `begin` has made is returned;
    /// if the database has to be asked again, it is made again.
    pub(crate) fn each_saved<T>(
        &self,
        caches: &[CacheId],
        begin: impl Fn() -> T,
        take: impl Fn(&mut T, CacheId, i64, SavedPath) -> Result<(), TxError>,
    ) -> Result<T, IndexError> {
        self.read(Reading::Snapshot, |tx| {
            let mut taken = begin();
            for cache in caches {
                tx.scan(&SAVED, &args![*cache], &mut |row| {
                    let (number, path) = saved(row)?;
                    take(&mut taken, *cache, number, path)
                })?;
            }
            Ok(taken)
        })
    }
}
