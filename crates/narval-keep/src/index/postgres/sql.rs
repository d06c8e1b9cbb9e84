//! Statements: parameters with their types, so that a statement needs one round trip and nothing prepared, and values of rows.

use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row};

use super::failed::Failed;

/// A parameter and its type.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A value that has one type in PostgreSQL.
pub(super) trait Typed: ToSql + Sync {
    const TYPE: Type;
}

macro_rules! typed {
    ($($value:ty => $type:ident),* $(,)?) => { $(impl Typed for $value { const TYPE: Type = Type::$type; })* };
}

typed! {
    i64 => INT8, Option<i64> => INT8, Vec<i64> => INT8_ARRAY, Vec<Option<i64>> => INT8_ARRAY,
    &str => TEXT, String => TEXT, Option<&str> => TEXT, Vec<&str> => TEXT_ARRAY, Vec<String> => TEXT_ARRAY, Vec<Option<String>> => TEXT_ARRAY,
    &[u8] => BYTEA, Vec<&[u8]> => BYTEA_ARRAY, Vec<Vec<u8>> => BYTEA_ARRAY,
}

/// A parameter.
pub(super) fn p<T: Typed>(value: &T) -> Param<'_> {
    (value, T::TYPE)
}

pub(super) async fn query(client: &Client, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Failed> {
    Ok(client.query_typed(sql, params).await?)
}

/// The first row, if there is one.
pub(super) async fn query_opt(client: &Client, sql: &str, params: &[Param<'_>]) -> Result<Option<Row>, Failed> {
    Ok(query(client, sql, params).await?.into_iter().next())
}

/// How many rows were changed.
pub(super) async fn execute(client: &Client, sql: &str, params: &[Param<'_>]) -> Result<u64, Failed> {
    Ok(client.execute_typed(sql, params).await?)
}

/// A number as the database has it: they all have eight bytes with a sign.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, Failed> {
    Ok(row.try_get(column)?)
}

pub(super) fn number(row: &Row, column: usize) -> Result<u64, Failed> {
    Ok(u64::try_from(get::<i64>(row, column)?).unwrap_or(0))
}

pub(super) fn maybe_number(row: &Row, column: usize) -> Result<Option<u64>, Failed> {
    Ok(get::<Option<i64>>(row, column)?.map(|number| u64::try_from(number).unwrap_or(0)))
}

/// A column that holds the text of something.
pub(super) fn parsed<T>(row: &Row, column: usize) -> Result<T, Failed>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let text: &str = get(row, column)?;
    text.parse().map_err(|error| Failed::Row(format!("'{text}' in a table cannot be read: {error}")))
}
