//! Tables in SQLite.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::failed::sql_error;
use crate::index::IndexError;
use crate::index::schema::{TABLES, VERSION, tables};

/// What only SQLite has.
const OWN: &str = "
create table meta (key text primary key not null, value integer not null) without rowid;
insert into meta values ('stamp', 1);
-- Bytes of NARs are counted by whichever statement adds or removes some.
create trigger nars_added after insert on nars begin
  update caches set bytes = bytes + new.file_size + coalesce(new.listing_size, 0) where id = new.cache; end;
create trigger nars_removed after delete on nars begin
  update caches set bytes = max(0, bytes - old.file_size - coalesce(old.listing_size, 0)) where id = old.cache; end;
";

/// Creates missing tables.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), IndexError> {
    let create = |connection: &mut Connection| {
        // The version is 0 until there are tables. Another process may be creating them.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let found: u32 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if found > 0 {
            return Ok(found);
        }
        let id = "id integer primary key autoincrement not null";
        let words = [("{id}", id), ("{text}", "text"), ("{bytes}", "blob"), ("{rowless}", " without rowid")];
        let tables = tables(TABLES, words);
        transaction.execute_batch(&tables.replace("narval.", ""))?;
        transaction.execute_batch(OWN)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit().map(|()| VERSION)
    };
    match create(connection).map_err(|error| sql_error(path, &error))? {
        VERSION => Ok(()),
        found => Err(IndexError::Version { index: path.display().to_string(), found, with: "" }),
    }
}

pub(super) fn stamp(connection: &Connection) -> rusqlite::Result<u64> {
    connection.prepare_cached("select value from meta where key = 'stamp'")?.query_row([], |row| row.get(0))
}

/// Must be called in every transaction that changes what a reader can see.
pub(super) fn is_visible(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("update meta set value = value + 1 where key = 'stamp'")?.execute([]).map(drop)
}
