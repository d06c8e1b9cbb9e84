//! Paths whose NARs were not there: remembered for a while.

use narval_nix::HashPart;

use crate::index::sql::nars;
use crate::index::tx::{Arg, NOTE_LATER, Reading, Row, Tx, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::paths::{CacheId, LOST_FOR, LOST_MAX, LostPath};

statements! {
    REMEMBER(Int, Text) = concat!(
        "insert into narval.lost (cache, hash_part, narinfo, file, nar_hash, nar_size, compression, file_hash, file_size, listing_size, found, at) \
         select p.cache, p.hash_part, p.narinfo, p.file, ", nars::columns!(), ", {now} from narval.paths p \
         join narval.nars n on n.cache = p.cache and n.name = p.file \
         where p.cache = $1 and p.file = $2 on conflict (cache, hash_part) do update set narinfo = excluded.narinfo, \
         file = excluded.file, nar_hash = excluded.nar_hash, nar_size = excluded.nar_size, compression = excluded.compression, \
         file_hash = excluded.file_hash, file_size = excluded.file_size, listing_size = excluded.listing_size, \
         found = excluded.found, at = excluded.at"
    );
    ALL(Int, Int, Int) = concat!(
        "select ", nars::columns!(), ", n.hash_part, n.narinfo, n.file from narval.lost n where n.cache = $1 and n.at > {now} - $2 \
         order by n.at limit $3"
    );
    FORGET_OLD(Int) = "delete from narval.lost where at <= {now} - $1";
    FORGET(Int) { part: Text } = "delete from narval.lost where cache = $1 and hash_part in (select r.part from {rows})";
}

/// Remembers the paths that are served from a file, which are about to be removed. The row of its name is locked.
pub(in crate::index::sql) fn remember(tx: &mut dyn Tx, cache: CacheId, name: &str) -> Result<(), TxError> {
    tx.execute(&REMEMBER, &args![cache, name]).map(drop)
}

impl dyn Index + '_ {
    /// Paths that [`remove_file`](Self::remove_file) has removed within the last day because their NARs were not there, the oldest first, and at
    /// most a limited number of them.
    pub(crate) fn lost(&self, cache: CacheId) -> Result<Vec<LostPath>, IndexError> {
        let path = |row: &dyn Row| {
            Ok(LostPath { hash_part: row.parsed(7)?, narinfo: row.get(8)?, file: row.get(9)?, nar: nars::record(row)? })
        };
        self.read(Reading::Some, |tx| tx.all(&ALL, &args![cache, LOST_FOR, u64::from(LOST_MAX)], path))
    }

    /// Forgets such paths, and all that are too old.
    pub(crate) fn forget_lost(&self, cache: CacheId, parts: &[HashPart]) -> Result<(), IndexError> {
        let parts = parts.to_vec();
        self.write(NOTE_LATER, move |tx| {
            tx.execute(&FORGET_OLD, &args![LOST_FOR])?;
            let rows: Vec<Arg<'_>> = parts.iter().map(Arg::from).collect();
            tx.execute_all(&FORGET, &args![cache], &rows).map(drop)
        })
    }
}
