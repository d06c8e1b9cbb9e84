//! The statements that both databases run, in PostgreSQL.

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::failed::Failed;
use super::pool::{Connection, Sent};
use super::sql::{execute, get, p, query};
use crate::index::tx::{Arg, How, Kind, Reading, Row, Sql, Tx, TxError, Value};
use narval_client::clock;

/// How many rows of a whole table come at a time. Twice as many are in memory.
const FETCH: &str = "fetch forward 8192 from each";

/// Begins to read whole tables. Cursors are made to be read to their ends.
const BEGIN: &str = "begin isolation level repeatable read read only; set local cursor_tuple_fraction = 1";

/// As [`BEGIN`], for tables in the order of their indices. Without statistics, or before the first vacuum, PostgreSQL would sort
/// them, on disk, and nothing would come before that is done.
pub(super) const BEGIN_IN_ORDER: &str = "begin isolation level repeatable read read only; set local cursor_tuple_fraction = 1; \
     set local enable_sort = off";

/// How long a transaction waits at a time for others that have locked its rows. Between two attempts it has no locks, for which others would wait in turn, and no connection.
pub(super) const LOCK_SLICE: Duration = Duration::from_millis(250);

/// How long a transaction may do nothing: that of a node that was paused ends, with its locks, before others stop waiting for them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// What begins a transaction.
pub(super) fn begin(how: How) -> String {
    // The user may have another one set, for itself, the database or the server.
    let synchronous = if how.is_durable {
        "select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') <> 'remote_apply';"
    } else {
        "set local synchronous_commit = off;"
    };
    format!(
        "begin isolation level read committed; set local statement_timeout = {}; \
         set local idle_in_transaction_session_timeout = {}; {synchronous} set local lock_timeout = {};",
        how.deadline.as_millis(),
        IDLE_TIMEOUT.as_millis(),
        LOCK_SLICE.as_millis(),
    )
}

/// A transaction, or a statement of its own. After an error, nothing more is done.
pub(super) struct PostgresTx<'a> {
    connection: &'a mut Connection,
    until: Instant,
    deadline: Duration,
    node: &'a str,
    visible: &'a Cell<bool>,
    has_failed: bool,
    #[cfg(test)]
    is_ending: bool,
}

impl<'a> PostgresTx<'a> {
    pub(super) fn new(
        connection: &'a mut Connection,
        deadline: Duration,
        (node, visible): (&'a str, &'a Cell<bool>),
    ) -> Self {
        Self {
            connection,
            until: clock::instant() + deadline,
            deadline,
            node,
            visible,
            has_failed: false,
            #[cfg(test)]
            is_ending: false,
        }
    }

    /// Does something within the transaction's deadline.
    fn ask<T>(&mut self, work: impl AsyncFnOnce(&Client) -> Result<T, Failed>) -> Result<T, Failed> {
        if self.has_failed {
            return Err(Failed::Row("its transaction has failed".to_owned()));
        }
        #[cfg(test)]
        super::simulation::before(self.connection, self.is_ending).inspect_err(|_| self.has_failed = true)?;
        let done = match self.until.saturating_duration_since(clock::instant()) {
            Duration::ZERO => Err(Failed::Deadline(self.deadline)),
            left => self.connection.ask(left, work),
        };
        self.has_failed = done.is_err();
        done
    }

    pub(super) fn batch(&mut self, statements: &str) -> Result<(), Failed> {
        self.ask(async |client| Ok(client.batch_execute(statements).await?))
    }

    fn commit(&mut self) -> Result<(), Failed> {
        #[cfg(test)]
        {
            self.is_ending = true;
        }
        let done = self.batch("commit");
        #[cfg(test)]
        let done = super::simulation::after_commit(done);
        done
    }
}

impl Tx for PostgresTx<'_> {
    fn query(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        rows: &[Arg<'_>],
        take: &mut dyn FnMut(&dyn Row) -> Result<(), TxError>,
    ) -> Result<u64, TxError> {
        let has_one_row = rows.len() == sql.rows.len();
        let singles = args.iter().chain(if has_one_row { rows } else { &[] }).map(single);
        let columns = if has_one_row { 0 } else { sql.rows.len() };
        let values: Vec<(Box<dyn ToSql + Sync + '_>, Type)> =
            singles.chain((0..columns).map(|at| column(sql, rows, at))).collect();
        let params: Vec<(&(dyn ToSql + Sync), Type)> =
            values.iter().map(|(value, of)| (&**value, of.clone())).collect();
        let text = sql.postgres(has_one_row);
        // Of many rows, each number of them is planned for.
        let sent = if has_one_row { self.connection.sent(sql) } else { Sent::Whole };
        let is_whole = matches!(sent, Sent::Whole);
        let done = self.ask(async |client| {
            let statement = match sent {
                Sent::Whole if sql.is_query() => return Ok((query(client, text, &params).await?, 0, None)),
                Sent::Whole => return Ok((Vec::new(), execute(client, text, &params).await?, None)),
                Sent::Prepare => {
                    let types: Vec<Type> = params.iter().map(|(_, of)| of.clone()).collect();
                    client.prepare_typed(text, &types).await?
                }
                Sent::Prepared(statement) => statement,
            };
            let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
            Ok(match sql.is_query() {
                true => (client.query(&statement, &params).await?, 0, Some(statement)),
                false => (Vec::new(), client.execute(&statement, &params).await?, Some(statement)),
            })
        });
        let (found, changed, statement) = match done {
            Ok((found, changed, statement)) => (found, changed, Ok(statement)),
            Err(error) => (Vec::new(), 0, Err(error)),
        };
        if !is_whole {
            self.connection.is_prepared(sql, statement.as_ref().ok().cloned().flatten());
        }
        statement?;
        found.iter().try_for_each(|row| take(row))?;
        Ok(if sql.is_query() { found.len() as u64 } else { changed })
    }

    /// While some rows are taken, the database looks for the next.
    fn scan(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        take: &mut dyn FnMut(&dyn Row) -> Result<(), TxError>,
    ) -> Result<(), TxError> {
        let declare = format!("declare each no scroll cursor for {}", sql.postgres(false));
        let values: Vec<(Box<dyn ToSql + Sync + '_>, Type)> = args.iter().map(single).collect();
        let params: Vec<(&(dyn ToSql + Sync), Type)> =
            values.iter().map(|(value, of)| (&**value, of.clone())).collect();
        let mut refused = Ok(());
        self.ask(async |client| {
            execute(client, &declare, &params).await?;
            let mut rows = query(client, FETCH, &[]).await?;
            while !rows.is_empty() {
                let mut next = pin!(query(client, FETCH, &[]));
                // Hands the request to the connection, which sends it while this task yields.
                let early = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
                tokio::task::yield_now().await;
                refused = rows.iter().try_for_each(|row| take(row));
                rows = match early {
                    _ if refused.is_err() => return Ok(()),
                    Poll::Ready(rows) => rows?,
                    Poll::Pending => next.await?,
                };
            }
            Ok(client.batch_execute("close each").await?)
        })?;
        refused
    }

    fn is_visible(&mut self) -> Result<(), TxError> {
        if self.visible.replace(true) {
            return Ok(());
        }
        let node = self.node;
        let note = "insert into narval.changes (node) values ($1)";
        Ok(self.ask(async |client| execute(client, note, &[p(&node)]).await.map(drop))?)
    }
}

/// A parameter and its type.
fn single<'a>(arg: &Arg<'a>) -> (Box<dyn ToSql + Sync + 'a>, Type) {
    match *arg {
        Arg::Int(number) => (Box::new(number), Type::INT8),
        Arg::Text(text) => (Box::new(text), Type::TEXT),
        Arg::Bytes(bytes) => (Box::new(bytes), Type::BYTEA),
    }
}

/// A column of the given rows.
fn column<'a>(sql: &Sql, rows: &[Arg<'a>], at: usize) -> (Box<dyn ToSql + Sync + 'a>, Type) {
    let values = rows.iter().skip(at).step_by(sql.rows.len());
    match sql.rows.get(at).map(|(_, kind)| kind) {
        Some(Kind::Int) => {
            let number = |arg: &Arg<'_>| if let Arg::Int(number) = *arg { number } else { None };
            (Box::new(values.map(number).collect::<Vec<Option<i64>>>()), Type::INT8_ARRAY)
        }
        Some(Kind::Bytes) => {
            let bytes = |arg: &Arg<'a>| if let Arg::Bytes(bytes) = *arg { Some(bytes) } else { None };
            (Box::new(values.map(bytes).collect::<Vec<Option<&[u8]>>>()), Type::BYTEA_ARRAY)
        }
        Some(Kind::Text) | None => {
            let text = |arg: &Arg<'a>| if let Arg::Text(text) = *arg { text } else { None };
            (Box::new(values.map(text).collect::<Vec<Option<&str>>>()), Type::TEXT_ARRAY)
        }
    }
}

impl Row for tokio_postgres::Row {
    fn value(&self, column: usize) -> Result<Value<'_>, TxError> {
        let of = self.columns().get(column).map(|column| column.type_());
        let value = match of {
            Some(&Type::INT8) => get::<Option<i64>>(self, column)?.map(Value::Int),
            Some(&Type::INT4) => get::<Option<i32>>(self, column)?.map(|number| Value::Int(number.into())),
            Some(&Type::BOOL) => get::<Option<bool>>(self, column)?.map(|is_so| Value::Int(is_so.into())),
            Some(&Type::BYTEA) => get::<Option<&[u8]>>(self, column)?.map(Value::Bytes),
            _ => get::<Option<&str>>(self, column)?.map(Value::Text),
        };
        Ok(value.unwrap_or(Value::Null))
    }
}

/// Asks something, in one transaction if all statements are to see the same moment.
pub(super) fn ask(
    connection: &mut Connection,
    how: Reading,
    deadline: Duration,
    work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>,
) -> Result<(), Failed> {
    let visible = Cell::new(false);
    let mut tx = PostgresTx::new(connection, deadline, ("", &visible));
    let done = match how {
        Reading::Some | Reading::Many => work(&mut tx).map_err(Failed::of),
        Reading::Whole | Reading::Snapshot => {
            let begun = tx.batch(if how == Reading::Snapshot { BEGIN_IN_ORDER } else { BEGIN });
            begun.and_then(|()| work(&mut tx).map_err(Failed::of)).and_then(|()| tx.commit())
        }
    };
    done.inspect_err(|error| connection.undo(error))
}

/// Does a transaction. `has_begun` and `is_ending` are called when that is so.
pub(super) fn change(
    mut tx: PostgresTx<'_>,
    how: How,
    work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>,
    (has_begun, is_ending): (impl FnOnce(), impl FnOnce()),
) -> Result<(), Failed> {
    if how.is_single {
        #[cfg(test)]
        {
            tx.is_ending = true;
        }
        is_ending();
        let done = work(&mut tx).map_err(Failed::of);
        #[cfg(test)]
        let done = super::simulation::after_commit(done);
        return done.inspect_err(|error| tx.connection.undo(error));
    }
    let begun = tx.batch(&begin(how));
    let done = begun.and_then(|()| {
        has_begun();
        work(&mut tx).map_err(Failed::of)?;
        is_ending();
        tx.commit()
    });
    done.inspect_err(|error| tx.connection.undo(error))
}
