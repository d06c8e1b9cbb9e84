//! What files may not show yet.

use std::collections::{BTreeSet, HashMap, HashSet};

use narval_nix::HashPart;

use crate::index::tx::{Arg, NOTE, NOTE_LATER, Reading, Row, Tx, TxError, args, statements};
use crate::index::{CacheId, Index, IndexError, Pending, Placed};
use crate::rule::holds;

macro_rules! if_alone {
    () => {
        "($1 = 1 or p.kind <> 'path' or not exists (select 1 from narval.pending o where o.cache = p.cache and o.kind = 'path' \
           and o.name = p.name and o.id <> p.id))"
    };
}

statements! {
    ADD() { cache: Int, kind: Text, name: Text } = "insert into narval.pending (cache, kind, name) select r.cache, r.kind, r.name from {rows} \
         returning name, id";
    ADD_PATHS(Int) { part: Text } = "insert into narval.pending (cache, kind, name) select $1, 'path', r.part from {rows}";
    AFTER(Int, Int) = "select id, cache, kind, name from narval.pending where id > $1 order by id limit $2";
    SETTLE() { id: Int } = "delete from narval.pending where id in (select r.id from {rows})";
    SETTLE_THESE(Int) { id: Int } = concat!(
        "delete from narval.pending as p where p.id in (select r.id from {rows}) and ", if_alone!()
    );
    SETTLE_ALONE(Int, Int, Int) { name: Text } = concat!(
        "delete from narval.pending as p where p.cache = $2 and p.kind = 'path' and p.id <= $3 and p.name in (select r.name from {rows}) and ",
        if_alone!()
    );
    /// Otherwise the entries of others stay: their files may not be stored yet.
    SETTLE_FILE(Int, Text, Int) = "delete from narval.pending where cache = $1 and kind = 'file' and name = $2 \
         and exists (select 1 from narval.pending where id = $3)";
    /// What somebody else has recorded since may be on its way. Commits beside each other settle the same: nobody waits for that.
    SETTLE_FILES(Int) { name: Text, id: Int } = "delete from narval.pending where id in (select p.id from {rows} \
         join narval.pending p on p.cache = $1 and p.kind = 'file' and p.name = r.name and p.id <= r.id{remove_free})";
    FORGET_FILES(Int) { name: Text } = "delete from narval.pending where cache = $1 and kind = 'file' and name in (select r.name from {rows})";
    /// Who waits for the row of an entry finds it gone.
    TAKE() { id: Int } = "delete from narval.pending where id in (select r.id from {rows}) and kind = 'path' returning cache, name";
    THERE() { id: Int } = "select p.id from {rows} join narval.pending p on p.id = r.id";
    OF_FILE(Int, Text) = "select min(id), max(id) from narval.pending where cache = $1 and kind = 'file' and name = $2";
    OLDEST(Int) { name: Text } = "select r.name, min(p.id) from {rows} \
         join narval.pending p on p.cache = $1 and p.kind = 'file' and p.name = r.name group by r.name";
    IS_ORPHAN(Int, Text) = "select 1 from narval.files where cache = $1 and name = $2 and orphaned is not null";
    LAST() = "select max(id) from narval.pending";
}

/// Notes that files may not be as the index says from now on. Returns the names with the numbers of their entries.
pub(super) fn add(tx: &mut dyn Tx, cache: CacheId, kind: &str, names: &[&str]) -> Result<Vec<(String, i64)>, TxError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<Arg<'_>> = names.iter().flat_map(|name| args![cache, kind, *name]).collect();
    tx.all_of(&ADD, &[], &rows, |row| Ok((row.get(0)?, row.get(1)?)))
}

/// As [`add`], of narinfos, and without the numbers.
pub(super) fn add_paths<'a>(
    tx: &mut dyn Tx,
    cache: CacheId,
    parts: impl Iterator<Item = &'a HashPart>,
) -> Result<(), TxError> {
    tx.execute_all(&ADD_PATHS, &args![cache], &parts.map(Arg::from).collect::<Vec<_>>()).map(drop)
}

fn entry(row: &dyn Row) -> Result<(i64, CacheId, Pending), TxError> {
    let pending = match row.get(2)? {
        "path" => Pending::Path(row.parsed(3)?),
        _ => Pending::File(row.get(3)?),
    };
    Ok((row.get(0)?, CacheId(row.get(1)?), pending))
}

/// Removes the pending entries of names below `nar/`.
pub(super) fn forget_files(tx: &mut dyn Tx, cache: CacheId, names: &[&str]) -> Result<(), TxError> {
    let rows: Vec<Arg<'_>> = names.iter().map(|name| Arg::from(*name)).collect();
    tx.execute_all(&FORGET_FILES, &args![cache], &rows).map(drop)
}

/// As [`Index::settle_file`], for files whose upload is complete, with the numbers under which they are pending.
pub(super) fn settle_files(tx: &mut dyn Tx, cache: CacheId, files: &[(String, i64)]) -> Result<(), TxError> {
    let rows: Vec<Arg<'_>> = files.iter().flat_map(|(name, number)| args![name, *number]).collect();
    tx.execute_all(&SETTLE_FILES, &args![cache], &rows).map(drop)
}

/// Of these entries, those that are there.
pub(super) fn there(tx: &mut dyn Tx, numbers: &[i64]) -> Result<HashSet<i64>, TxError> {
    if numbers.is_empty() {
        return Ok(HashSet::new());
    }
    let rows: Vec<Arg<'_>> = numbers.iter().copied().map(Arg::from).collect();
    Ok(tx.all_of(&THERE, &[], &rows, |row| row.get(0))?.into_iter().collect())
}

/// The number of the oldest pending entry of each of these names below `nar/` that has one.
pub(super) fn oldest(tx: &mut dyn Tx, cache: CacheId, names: &[&str]) -> Result<HashMap<String, i64>, TxError> {
    if names.is_empty() {
        return Ok(HashMap::new());
    }
    let rows: Vec<Arg<'_>> = names.iter().map(|name| Arg::from(*name)).collect();
    Ok(tx.all_of(&OLDEST, &args![cache], &rows, |row| Ok((row.get(0)?, row.get(1)?)))?.into_iter().collect())
}

/// Whether one of these files was removed and recorded again since it was looked for. Nobody removes any until the transaction ends.
pub(super) fn is_any_replaced(tx: &mut dyn Tx, cache: CacheId, placed: &[Placed]) -> Result<bool, TxError> {
    let names: BTreeSet<&str> = placed.iter().map(|file| file.name.as_str()).collect();
    let oldest = oldest(tx, cache, &Vec::from_iter(names))?;
    Ok(placed.iter().any(|file| oldest.get(&file.name).is_some_and(|oldest| *oldest > file.entry)))
}

/// Whether this is the only pending entry of a name below `nar/`; if no narinfo may name it, whether it is the last one and none does.
pub(super) fn is_still_lost(
    tx: &mut dyn Tx,
    cache: CacheId,
    name: &str,
    (entry, is_named): (i64, bool),
) -> Result<bool, TxError> {
    let range = |row: &dyn Row| Ok((row.get::<Option<i64>>(0)?, row.get::<Option<i64>>(1)?));
    let (first, last) = tx.one(&OF_FILE, &args![cache, name], range)?;
    if last != Some(entry) {
        return Ok(false);
    }
    if is_named { Ok(first == last) } else { tx.is_there(&IS_ORPHAN, &args![cache, name]) }
}

/// The greatest number of a pending entry that this transaction sees. What others add for paths that it has changed comes later.
pub(super) fn last(tx: &mut dyn Tx) -> Result<Option<i64>, TxError> {
    tx.one(&LAST, &[], |row| row.get(0))
}

impl dyn Index + '_ {
    /// All pending entries, the oldest first.
    pub(crate) fn pending(&self) -> Result<Vec<(i64, CacheId, Pending)>, IndexError> {
        self.pending_after(0, usize::MAX)
    }

    /// At most this many pending entries with a greater number than this, the oldest first.
    pub(crate) fn pending_after(&self, after: i64, max: usize) -> Result<Vec<(i64, CacheId, Pending)>, IndexError> {
        self.read(Reading::Many, |tx| tx.all(&AFTER, &args![after, max], entry))
    }

    /// Adds a pending entry for a file that may not be as the index says: of a narinfo, or of a name below `nar/`. Returns its number.
    pub(crate) fn note_pending(&self, cache: CacheId, pending: &Pending) -> Result<i64, IndexError> {
        let (kind, name) = pending.row();
        self.write(NOTE, move |tx| {
            let number = add(tx, cache, kind, &[&name])?.pop();
            Ok(number.ok_or("an entry has no number")?.1)
        })
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
                let number = add(tx, cache, "path", &[part.as_str()])?.pop();
                taken.push((number.ok_or("an entry has no number")?.1, cache, part));
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

    /// Removes the pending entries of a name below `nar/`, whose file is stored. Returns `false` and removes none if the one with this number is
    /// gone: then the name may have been condemned since, and its file removed.
    pub(crate) fn settle_file(&self, cache: CacheId, name: &str, number: i64) -> Result<bool, IndexError> {
        let name = name.to_owned();
        self.write(NOTE_LATER, move |tx| Ok(tx.execute(&SETTLE_FILE, &args![cache, &name, number])? > 0))
    }
}
