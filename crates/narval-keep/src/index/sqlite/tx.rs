//! The statements that both databases run, in SQLite.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql};

use super::schema;
use crate::index::tx::{Arg, Row, Sql, Tx, TxError, Value};

/// A transaction, or a statement of its own.
pub(super) struct SqliteTx<'a>(pub(super) &'a Connection);

impl Tx for SqliteTx<'_> {
    fn query(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        rows: &[Arg<'_>],
        take: &mut dyn FnMut(&dyn Row) -> Result<(), TxError>,
    ) -> Result<u64, TxError> {
        let mut statement = self.0.prepare_cached(sql.sqlite())?;
        for (number, arg) in (1..).zip(args) {
            statement.raw_bind_parameter(number, arg)?;
        }
        // The statement is done for each given row.
        let rows: Vec<&[Arg<'_>]> = if sql.rows.is_empty() { vec![&[]] } else { rows.chunks(sql.rows.len()).collect() };
        let mut count = 0;
        for row in rows {
            for (number, arg) in (args.len() + 1..).zip(row) {
                statement.raw_bind_parameter(number, arg)?;
            }
            if !sql.is_query() {
                count += statement.raw_execute()? as u64;
                continue;
            }
            let mut found = statement.raw_query();
            while let Some(row) = found.next()? {
                take(row)?;
                count += 1;
            }
        }
        Ok(count)
    }

    fn scan(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        take: &mut dyn FnMut(&dyn Row) -> Result<(), TxError>,
    ) -> Result<(), TxError> {
        self.query(sql, args, &[], take).map(drop)
    }

    fn is_visible(&mut self) -> Result<(), TxError> {
        Ok(schema::is_visible(self.0)?)
    }
}

impl ToSql for Arg<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Self::Int(number) => number.map_or(ValueRef::Null, ValueRef::Integer),
            Self::Text(text) => text.map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes())),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl Row for rusqlite::Row<'_> {
    fn value(&self, column: usize) -> Result<Value<'_>, TxError> {
        Ok(match self.get_ref(column)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => Value::Int(number),
            ValueRef::Text(text) => Value::Text(std::str::from_utf8(text)?),
            ValueRef::Blob(bytes) => Value::Bytes(bytes),
            ValueRef::Real(number) => return Err(format!("column {column} of a row cannot be {number}").into()),
        })
    }
}
