//! What is asked of stored NARs and their names.

use narval_nix::{Compression, NarHash};

use crate::index::tx::{Reading, Row, TxError, args, split, statements};
use crate::index::{CacheId, Cutoff, Index, IndexError, NarRecord, Usage};

macro_rules! columns {
    () => {
        "n.nar_hash, n.nar_size, n.compression, n.file_hash, n.file_size, n.listing_size, n.found"
    };
}

/// A name whose NAR's bytes are not being removed.
macro_rules! not_condemned {
    () => {
        "(f.fence is null or f.orphaned is null)"
    };
}

statements! {
    NAR(Bytes, Text) = concat!(
        "select ", columns!(), " from narval.nars n where nar_hash = $1 and compression = $2 and fence is null"
    );
    FILES(Int) = concat!(
        "select ", columns!(), ", f.name from narval.files f join narval.nars n on n.id = f.nar where f.cache = $1 and ",
        not_condemned!(), " order by f.name"
    );
    FILES_OF(Int, Bytes) = concat!(
        "select ", columns!(), ", f.name from narval.nars n join narval.files f on f.nar = n.id and f.cache = $1 \
         where n.nar_hash = $2 and f.doomed is null and ", not_condemned!(), " order by f.name"
    );
    NOT_ZSTD(Int, Text, Text, Int) = "select f.name from narval.files f join narval.nars n on n.id = f.nar where f.cache = $1 \
         and f.name > $2 and f.orphaned is null and n.compression <> $3 order by f.name limit $4";
    USAGE(Int) = "select (select count(*) from narval.paths where cache = $1), \
         (select count(*) from narval.files where cache = $1), coalesce((select bytes from narval.caches where id = $1), 0)";
    ORPHANS(Int, Int, Int) = "select f.name, n.file_size from narval.files f join narval.nars n on n.id = f.nar where f.cache = $1 \
         and f.orphaned is not null and (f.fence is not null or f.doomed = 0 or (f.orphaned <= $2 and f.used <= $3)) \
         order by f.name";
}

fn record(row: &dyn Row) -> Result<NarRecord, TxError> {
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

impl dyn Index + '_ {
    /// A stored NAR, from any cache.
    pub(crate) fn nar(&self, nar_hash: &NarHash, compression: Compression) -> Result<Option<NarRecord>, IndexError> {
        self.read(Reading::Some, |tx| tx.first(&NAR, &args![nar_hash, compression.name()], record))
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
}
