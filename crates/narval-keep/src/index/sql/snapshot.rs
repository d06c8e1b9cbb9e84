//! All of a cache, as a collection sees it.

use narval_nix::HashPart;

use super::paths::pins;
use crate::index::snapshot::SnapshotBuilder;
use crate::index::tx::{Reading, args, statements};
use crate::index::{CacheId, Index, IndexError, Snapshot};

statements! {
    PATHS(Int) = "select id, hash_part, used from narval.paths where cache = $1 order by id";
    /// One row for each referrer takes less time than one for each reference.
    REFERENCES() = "select referrer, string_agg(reference, '') from narval.refs group by referrer order by referrer";
    LEASES(Int) = "select hash_part, until from narval.leases where cache = $1";
    SIZES(Int) = "select p.id, n.id, n.file_size + coalesce(n.listing_size, 0) from narval.paths p \
         join narval.files f on f.cache = p.cache and f.name = p.file join narval.nars n on n.id = f.nar \
         where p.cache = $1 order by p.id";
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
}
