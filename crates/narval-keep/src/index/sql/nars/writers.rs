//! Processes that may have stored NARs without a row.

use std::collections::HashSet;
use std::time::Duration;

use crate::index::tx::{Arg, NOTE, NOTE_LATER, Reading, args, statements};
use crate::index::{Index, IndexError};
use crate::records::paths::{CacheId, LOST_FOR};

statements! {
    BEGIN(Int) = "insert into narval.writers (cache, seen) values ($1, {now}) returning id";
    RENEW(Int) = "update narval.writers set seen = {now} where id = $1";
    END(Int) = "delete from narval.writers where id = $1";
    ALL(Int) = "select id, greatest(0, {now} - seen) from narval.writers where cache = $1";
    /// Those that were not there for a while may come back. What is garbage is removed by others.
    HAVE_ROWS(Int, Int) { name: Text } = "select name from narval.nars where cache = $1 and name in (select r.name from {rows}) \
         union select name from narval.garbage where cache = $1 and name in (select r.name from {rows}) \
         union select file from narval.lost where cache = $1 and at > {now} - $2 and file in (select r.name from {rows})";
}

impl dyn Index + '_ {
    /// Which of these names below `nar/` have a row, or may get one again.
    pub(crate) fn have_rows(&self, cache: CacheId, names: &[&str]) -> Result<HashSet<String>, IndexError> {
        if names.is_empty() {
            return Ok(HashSet::new());
        }
        let rows: Vec<Arg<'_>> = names.iter().map(|name| Arg::from(*name)).collect();
        let found = self.read(Reading::Some, |tx| {
            tx.all_of(&HAVE_ROWS, &args![cache, LOST_FOR], &rows, |row| row.get::<String>(0))
        })?;
        Ok(found.into_iter().collect())
    }

    /// Notes, durably, that this process may store NARs of a cache. Returns its number.
    pub(crate) fn begin_writer(&self, cache: CacheId) -> Result<i64, IndexError> {
        self.write(NOTE, move |tx| tx.one(&BEGIN, &args![cache], |row| row.get(0)))
    }

    /// Notes that it is alive. Returns `false` if it is not known any more.
    pub(crate) fn renew_writer(&self, number: i64) -> Result<bool, IndexError> {
        self.write(NOTE, move |tx| Ok(tx.execute(&RENEW, &args![number])? > 0))
    }

    /// Forgets it: nothing that it has stored is without a row.
    pub(crate) fn end_writer(&self, number: i64) -> Result<(), IndexError> {
        // Its end does not wait long.
        let how = crate::index::tx::How { deadline: Duration::from_secs(2), ..NOTE_LATER };
        self.write(how, move |tx| tx.execute(&END, &args![number]).map(drop))
    }

    /// Those of a cache, and how long ago each has said that it is alive.
    pub(crate) fn writers(&self, cache: CacheId) -> Result<Vec<(i64, Duration)>, IndexError> {
        let writer = |row: &dyn crate::index::tx::Row| Ok((row.get(0)?, Duration::from_secs(row.get(1)?)));
        self.read(Reading::Some, |tx| tx.all(&ALL, &args![cache], writer))
    }
}
