//! Machines that follow releases.

use crate::index::tx::{NOTE_LATER, Reading, Row, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::machines::{MACHINES_MAX, Machine, MachineCursor, Noted, SILENT_FOR};
use crate::records::paths::CacheId;

statements! {
    /// Whoever adds one has the row of its cache: they are counted.
    LOCK(Int) = "select 1 from narval.caches where id = $1{lock}";
    AGAIN(Int, Text, Text, Int, Text, Text) = "update narval.machines set seen = $4, token = $5, report = $6 \
         where cache = $1 and name = $2 and release = $3";
    ADD(Int, Text, Text, Int, Text, Text) = "insert into narval.machines (cache, name, release, seen, token, report) \
         values ($1, $2, $3, $4, $5, $6) on conflict (cache, name, release) do update set seen = excluded.seen, token = excluded.token, \
         report = excluded.report";
    COUNT(Int) = "select count(*) from narval.machines where cache = $1";
    /// The one that was silent for the longest time.
    REPLACE(Int, Int) = "delete from narval.machines where cache = $1 and seen < $2 and (name, release) in \
         (select name, release from narval.machines where cache = $1 order by seen limit 1)";
    LIST(Int, Text, Text, Int) = "select name, seen, token, report from narval.machines where cache = $1 and (name, release) > ($2, $3) \
         order by name, release limit $4";
    FORGET(Int, Text) = "delete from narval.machines where cache = $1 and name = $2";
    FORGET_OLD(Int, Int) = "delete from narval.machines where cache = $1 and seen < $2";
}

fn machine(row: &dyn Row) -> Result<Machine, TxError> {
    let report: String = row.get(3)?;
    Ok(Machine { name: row.get(0)?, seen: row.get(1)?, token: row.get(2)?, report: serde_json::from_str(&report)? })
}

impl dyn Index + '_ {
    /// Notes the report of a machine. A crash may forget it: the machine reports again.
    pub(crate) fn note_machine(
        &self,
        cache: CacheId,
        key: MachineCursor,
        (token, report): (String, String),
        now: u64,
    ) -> Result<Noted, IndexError> {
        self.write(NOTE_LATER, move |tx| {
            let row = args![cache, &key.name, &key.release, now, &token, &report];
            if tx.execute(&AGAIN, &row)? > 0 {
                return Ok(Noted::Again);
            }
            tx.first(&LOCK, &args![cache], |_| Ok(()))?;
            if tx.one(&COUNT, &args![cache], |row| row.get::<u64>(0))? >= MACHINES_MAX
                && tx.execute(&REPLACE, &args![cache, now.saturating_sub(SILENT_FOR)])? == 0
            {
                return Ok(Noted::Full);
            }
            tx.execute(&ADD, &row)?;
            Ok(Noted::New)
        })
    }

    /// At most so many machines after one, by name and release.
    pub(crate) fn machines(
        &self,
        cache: CacheId,
        after: Option<&MachineCursor>,
        max: u32,
    ) -> Result<Vec<Machine>, IndexError> {
        let (name, release) = after.map_or(("", ""), |after| (&*after.name, &*after.release));
        self.read(Reading::Some, |tx| tx.all(&LIST, &args![cache, name, release, Some(max)], machine))
    }

    /// Forgets a machine. Returns whether it was known.
    pub(crate) fn forget_machine(&self, cache: CacheId, name: String) -> Result<bool, IndexError> {
        self.write(NOTE_LATER, move |tx| Ok(tx.execute(&FORGET, &args![cache, &name])? > 0))
    }

    /// Forgets machines that have not reported since this time.
    pub(crate) fn forget_machines(&self, cache: CacheId, before: u64) -> Result<(), IndexError> {
        self.write(NOTE_LATER, move |tx| tx.execute(&FORGET_OLD, &args![cache, before]).map(drop))
    }
}
