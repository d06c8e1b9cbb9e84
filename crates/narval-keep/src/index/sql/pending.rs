//! What files may not show yet.

use std::collections::BTreeSet;

use narval_nix::HashPart;

use crate::index::tx::{Arg, NOTE, NOTE_LATER, Reading, Row, Tx, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::paths::CacheId;
use crate::rule::holds;

macro_rules! if_alone {
    () => {
        "($1 = 1 or not exists (select 1 from narval.pending o where o.cache = p.cache and o.name = p.name and o.id <> p.id))"
    };
}

statements! {
    ADD(Int) { part: Text } = "insert into narval.pending (cache, name) select $1, r.part from {rows} returning id";
    AFTER(Int, Int) = "select id, cache, name from narval.pending where id > $1 order by id limit $2";
    SETTLE() { id: Int } = "delete from narval.pending where id in (select r.id from {rows})";
    SETTLE_THESE(Int) { id: Int } = concat!(
        "delete from narval.pending as p where p.id in (select r.id from {rows}) and ", if_alone!()
    );
    SETTLE_ALONE(Int, Int, Int) { name: Text } = concat!(
        "delete from narval.pending as p where p.cache = $2 and p.id <= $3 and p.name in (select r.name from {rows}) and ", if_alone!()
    );
    /// Who waits for the row of an entry finds it gone.
    TAKE() { id: Int } = "delete from narval.pending where id in (select r.id from {rows}) returning cache, name";
}

/// Notes that the narinfos of paths may not be as the index says from now on. Returns the greatest number of the entries. What others add for paths
/// that this transaction has changed comes later.
pub(super) fn add<'a>(
    tx: &mut dyn Tx,
    cache: CacheId,
    parts: impl Iterator<Item = &'a HashPart>,
) -> Result<i64, TxError> {
    let parts: Vec<Arg<'_>> = parts.map(Arg::from).collect();
    if parts.is_empty() {
        return Ok(0);
    }
    Ok(tx.all_of(&ADD, &args![cache], &parts, |row| row.get(0))?.into_iter().max().unwrap_or(0))
}

impl dyn Index + '_ {
    /// All pending entries, the oldest first.
    pub(crate) fn pending(&self) -> Result<Vec<(i64, CacheId, HashPart)>, IndexError> {
        self.pending_after(0, usize::MAX)
    }

    /// At most this many pending entries with a greater number than this, the oldest first.
    pub(crate) fn pending_after(&self, after: i64, max: usize) -> Result<Vec<(i64, CacheId, HashPart)>, IndexError> {
        let entry = |row: &dyn Row| Ok((row.get(0)?, CacheId(row.get(1)?), row.parsed(2)?));
        self.read(Reading::Many, |tx| tx.all(&AFTER, &args![after, max], entry))
    }

    /// Adds a pending entry for a narinfo that may not be as the index says. Returns its number.
    pub(crate) fn note_pending(&self, cache: CacheId, part: HashPart) -> Result<i64, IndexError> {
        self.write(NOTE, move |tx| add(tx, cache, std::iter::once(&part)))
    }

    /// Gives pending entries of narinfos new numbers, durably, and one for all of the same narinfo. Returns them. Those that are gone, or that
    /// another process has taken over meanwhile, are left out.
    pub(crate) fn take_over(&self, numbers: &[i64]) -> Result<Vec<(i64, CacheId, HashPart)>, IndexError> {
        let numbers = numbers.to_vec();
        self.write(NOTE, move |tx| {
            let rows: Vec<Arg<'_>> = numbers.iter().copied().map(Arg::from).collect();
            let gone = |row: &dyn Row| Ok((CacheId(row.get(0)?), row.parsed::<HashPart>(1)?));
            let gone: BTreeSet<(CacheId, HashPart)> = match rows.is_empty() {
                true => BTreeSet::new(),
                false => tx.all_of(&TAKE, &[], &rows, gone)?.into_iter().collect(),
            };
            let mut taken = Vec::with_capacity(gone.len());
            for (cache, part) in gone {
                taken.push((add(tx, cache, std::iter::once(&part))?, cache, part));
            }
            Ok(taken)
        })
    }

    /// Removes pending entries, whose files are durable.
    pub(crate) fn settle(&self, numbers: Vec<i64>) -> Result<(), IndexError> {
        self.write(NOTE_LATER, move |tx| {
            let rows: Vec<Arg<'_>> = numbers.iter().copied().map(Arg::from).collect();
            tx.execute_all(&SETTLE, &[], &rows).map(drop)
        })
    }

    /// Removes these pending entries, unless there is another one for the same narinfo: others are changing the same path.
    pub(crate) fn settle_these(&self, numbers: &[i64]) -> Result<(), IndexError> {
        let numbers = numbers.to_vec();
        self.write(NOTE_LATER, move |tx| {
            let rows: Vec<Arg<'_>> = numbers.iter().copied().map(Arg::from).collect();
            let whatever = if holds!(SettleAlone) { i64::from(!holds!(Renumbered)) } else { 1 };
            tx.execute_all(&SETTLE_THESE, &args![whatever], &rows).map(drop)
        })
    }

    /// Removes the pending entries of these narinfos, which are published, up to this number. Keeps those of paths that have more than one:
    /// others are changing the same path.
    pub(crate) fn settle_alone(&self, cache: CacheId, parts: &[HashPart], up_to: i64) -> Result<(), IndexError> {
        let parts = parts.to_vec();
        self.write(NOTE_LATER, move |tx| {
            let rows: Vec<Arg<'_>> = parts.iter().map(Arg::from).collect();
            let whatever = i64::from(!holds!(SettleAlone));
            let up_to = if holds!(SettleOwn) { up_to } else { i64::MAX };
            tx.execute_all(&SETTLE_ALONE, &args![whatever, cache, up_to], &rows).map(drop)
        })
    }
}
