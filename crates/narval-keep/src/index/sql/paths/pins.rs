//! Pins.

use std::collections::BTreeSet;

use narval_nix::HashPart;

use super::commit::hold;
use crate::index::tx::{NOTE, Reading, Row, Tx, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::paths::CacheId;
use crate::records::pins::{Pin, PinFor};
use crate::rule::holds;

statements! {
    /// Pins are few: whoever adds one has the row of its cache.
    LOCK(Int) = "select 1 from narval.caches where id = $1{lock}";
    ADD(Int, Text, Text, Text, Int, Int, Int) = "insert into narval.pins (cache, name, hash_part, path, created, until, keep) \
         values ($1, $2, $3, $4, $5, $6, $7)";
    SURPLUS(Int, Text, Int) = "delete from narval.pins where cache = $1 and name = $2 and id not in \
         (select id from narval.pins where cache = $1 and name = $2 order by id desc limit $3)";
    UNPIN(Int, Text, Text) = "delete from narval.pins where cache = $1 and name = $2 and hash_part = coalesce($3, hash_part)";
    ALL(Int) = "select name, path, created, until, keep from narval.pins where cache = $1 order by name, id desc";
}

fn record(row: &dyn Row) -> Result<Pin, TxError> {
    let holds = PinFor { until: row.get(3)?, keep: row.get(4)? };
    Ok(Pin { name: row.get(0)?, path: row.get(1)?, created: row.get(2)?, holds })
}

fn unpin(tx: &mut dyn Tx, cache: CacheId, name: &str, part: Option<&HashPart>) -> Result<u64, TxError> {
    tx.execute(&UNPIN, &args![cache, name, part.map(HashPart::as_str)])
}

/// All pins, sorted by name, the newest first.
pub(in crate::index) fn all(tx: &mut dyn Tx, cache: CacheId) -> Result<Vec<Pin>, TxError> {
    tx.all(&ALL, &args![cache], record)
}

impl dyn Index + '_ {
    /// Pins a path, and removes surplus pins of this name. With `only_present`, nothing is changed if the path is not in the cache, and
    /// the result is `false`: a collection may have hidden it since the caller looked.
    pub(crate) fn pin(&self, cache: CacheId, pin: Pin, only_present: bool) -> Result<bool, IndexError> {
        self.write(NOTE, move |tx| {
            let Pin { name, path, created, holds: PinFor { keep, until } } = &pin;
            let hash_part = &pin.hash_part().ok_or("a pin has no hash part")?;
            // A collection leaves it alone meanwhile, and finds the pin later.
            let is_present =
                |tx: &mut dyn Tx| hold(tx, cache, &BTreeSet::from([*hash_part])).map(|held| !held.is_empty());
            if only_present && holds!(PinPresent) && !is_present(tx)? {
                return Ok(false);
            }
            // Two of one name at once would leave too many.
            tx.first(&LOCK, &args![cache], |_| Ok(()))?;
            unpin(tx, cache, name, Some(hash_part))?;
            tx.execute(&ADD, &args![cache, name, hash_part, path, *created, *until, *keep])?;
            if keep.is_some() {
                tx.execute(&SURPLUS, &args![cache, name, *keep])?;
            }
            Ok(true)
        })
    }

    /// Removes the pins of a name, of all paths or of one. Returns how many.
    pub(crate) fn unpin(&self, cache: CacheId, name: &str, hash_part: Option<HashPart>) -> Result<usize, IndexError> {
        let name = name.to_owned();
        let removed = self.write(NOTE, move |tx| unpin(tx, cache, &name, hash_part.as_ref()))?;
        Ok(usize::try_from(removed).unwrap_or(usize::MAX))
    }

    /// All pins, sorted by name, the newest first.
    pub(crate) fn pins(&self, cache: CacheId) -> Result<Vec<Pin>, IndexError> {
        self.read(Reading::Some, |tx| all(tx, cache))
    }
}
