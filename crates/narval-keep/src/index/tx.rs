//! Transactions as the statements of [`sql`](super::sql) see them. Both databases run the same ones.
//!
//! Statements are written for PostgreSQL. What is different in SQLite is translated ([`Sql::sqlite`]) or stands in its driver.

use std::error::Error;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use narval_nix::{HashPart, Sha256};
use thiserror::Error as ThisError;

use crate::records::paths::CacheId;

/// Why a transaction failed: an error of a driver, which recognizes it, or a row that cannot be read.
pub(crate) type TxError = Box<dyn Error + Send + Sync>;

/// Why a transaction does nothing, whatever the database is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ThisError)]
pub(crate) enum Refused {
    /// Another process changed the same rows.
    #[error("others change the same paths")]
    Changed,
    /// The lease of its collection has ended, or another process has it.
    #[error("another process has taken over")]
    Superseded,
}

/// What is done within a transaction. It is done again if others get in the way.
pub(crate) type Work = Box<dyn FnMut(&mut dyn Tx) -> Result<(), TxError> + Send>;

/// How long a statement or a transaction may take on PostgreSQL.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// The same for those that read or write a whole cache.
pub(crate) const DEADLINE_LARGE: Duration = Duration::from_secs(600);

/// How a transaction is done.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "SQLite waits for nobody"))]
pub(crate) struct How {
    /// Otherwise a crash may undo it, as long as no durable transaction came after it.
    pub(crate) is_durable: bool,
    pub(crate) deadline: Duration,
    /// Whether it is one statement, which PostgreSQL need not be told where it begins and ends.
    pub(crate) is_single: bool,
}

pub(crate) const NOTE: How = How { is_durable: true, deadline: DEADLINE, is_single: false };
pub(crate) const NOTE_LATER: How = How { is_durable: false, ..NOTE };
pub(crate) const NOTE_ALONE: How = How { is_single: true, ..NOTE_LATER };
/// Of many rows.
pub(crate) const LARGE: How = How { deadline: DEADLINE_LARGE, ..NOTE };

/// How something is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// A few rows.
    Some,
    /// All rows of a cache.
    Many,
    /// The same, by [`Tx::scan`].
    Whole,
    /// All rows of a cache, by several statements that see the same moment, in the order of their indices.
    Snapshot,
}

/// A type that values have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    Text,
    Bytes,
}

/// A parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arg<'a> {
    Int(Option<i64>),
    Text(Option<&'a str>),
    Bytes(&'a [u8]),
}

/// A value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Null,
    Int(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// How rows are locked until a transaction ends, at the end of a statement that finds them in their order. SQLite has one writer at a time. A
/// statement that has waited for a row sees that row as it is then, but nothing else: what depends on other rows is asked by the next statement.
const LOCKS: [(&str, &str); 5] = [
    // Nobody removes them.
    ("{hold}", " for key share"),
    // Nobody changes or removes them.
    ("{lock}", " for no key update"),
    ("{lock_free}", " for no key update skip locked"),
    // Nobody holds, changes or removes them.
    ("{remove}", " for update"),
    ("{remove_free}", " for update skip locked"),
];

/// A statement. Where a column stands as `+column`, no index is to be used for it: SQLite, which knows nothing of what tables hold, would take one by
/// the cache alone, and read all of that.
pub(crate) struct Sql {
    text: &'static str,
    pub(crate) args: &'static [Kind],
    /// The columns of `{rows}`, which stands for a table `r` of rows that are given with the parameters.
    pub(crate) rows: &'static [(&'static str, Kind)],
    postgres: [OnceLock<String>; 2],
    sqlite: OnceLock<String>,
}

impl Sql {
    pub(crate) const fn new(text: &'static str, args: &'static [Kind], rows: &'static [(&'static str, Kind)]) -> Self {
        Self { text, args, rows, postgres: [const { OnceLock::new() }; 2], sqlite: OnceLock::new() }
    }

    /// Whether it has rows as its result.
    pub(crate) fn is_query(&self) -> bool {
        self.text.starts_with("select") || self.text.contains(" returning ")
    }

    /// As PostgreSQL reads it. The given rows are one array for each column; of a single row they are its values, so that PostgreSQL plans for one
    /// row, which takes it half as long.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "for PostgreSQL"))]
    pub(crate) fn postgres(&self, has_one_row: bool) -> &str {
        self.postgres[usize::from(has_one_row)].get_or_init(|| {
            let rows = if has_one_row { self.one_row() } else { self.all_rows() };
            let text = self.text.replace("{rows}", &rows).replace("{now}", "extract(epoch from now())::bigint");
            let text = text.replace("{clock}", "extract(epoch from clock_timestamp())::bigint");
            // Of a statement that is no transaction: how long it waits for rows at a time.
            let text = text.replace("{limited}", "(select set_config('lock_timeout', '250', true)) as limited, ");
            LOCKS.iter().fold(text, |text, (mark, lock)| text.replace(mark, lock))
        })
    }

    fn all_rows(&self) -> String {
        let numbers = (1..).skip(self.args.len()).take(self.rows.len());
        let arrays: Vec<String> = numbers.map(|number| format!("${number}")).collect();
        let names: Vec<&str> = self.rows.iter().map(|(name, _)| *name).collect();
        format!("unnest({}) as r ({})", arrays.join(", "), names.join(", "))
    }

    fn one_row(&self) -> String {
        let column = |(number, (name, _)): (usize, &(&str, Kind))| format!("${number} as {name}");
        let columns: Vec<String> = (self.args.len() + 1..).zip(self.rows).map(column).collect();
        format!("(select {}) as r", columns.join(", "))
    }

    /// As SQLite reads it: once for each given row.
    pub(crate) fn sqlite(&self) -> &str {
        self.sqlite.get_or_init(|| {
            let text = self.text.replace("{rows}", &self.one_row()).replace("{now}", "unixepoch()");
            let text =
                LOCKS.iter().fold(text.replace("{clock}", "unixepoch()"), |text, (mark, _)| text.replace(mark, ""));
            text.replace("narval.", "").replace("{limited}", "").replace("greatest(", "max(").replace('$', "?")
        })
    }
}

/// Declares statements: their names, the types of their parameters, the columns of `{rows}`, and their texts.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) $({ $($column:ident: $kind:ident),* })? = $text:expr;)*) => {
        $($(#[$doc])* static $name: $crate::index::tx::Sql = $crate::index::tx::Sql::new(
            $text,
            &[$($crate::index::tx::Kind::$arg),*],
            &[$($((stringify!($column), $crate::index::tx::Kind::$kind)),*)?],
        );)*
        /// All of them, for the test of their plans.
        #[cfg(test)]
        pub(in crate::index) static STATEMENTS: &[(&str, &$crate::index::tx::Sql)] = &[$((stringify!($name), &$name)),*];
    };
}

/// Parameters of a statement.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$($crate::index::tx::Arg::from($arg)),*] };
}

pub(crate) use {args, statements};

/// Hash parts that stand one after another.
pub(crate) fn split(text: &str) -> Vec<HashPart> {
    let parts = text.as_bytes().chunks(narval_nix::store_path::HASH_PART_LEN);
    parts.filter_map(|part| HashPart::parse(part).ok()).collect()
}

/// A row of a result.
pub(crate) trait Row {
    fn value(&self, column: usize) -> Result<Value<'_>, TxError>;
}

/// A transaction, or a single statement.
pub(crate) trait Tx {
    /// Does a statement with these parameters and the values of `{rows}`, one row after another. Each row of the result is handed over. Returns
    /// how many there were, or how many rows were changed.
    fn query(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        rows: &[Arg<'_>],
        take: &mut dyn FnMut(&dyn Row) -> Result<(), TxError>,
    ) -> Result<u64, TxError>;

    /// As [`query`](Self::query), of a whole table, for [`Reading::Whole`] or [`Reading::Snapshot`]: a part of the result is in memory at a time.
    fn scan(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        take: &mut dyn FnMut(&dyn Row) -> Result<(), TxError>,
    ) -> Result<(), TxError>;

    /// Must be done in every transaction that changes what a reader can see, or what names mean.
    fn is_visible(&mut self) -> Result<(), TxError>;
}

impl dyn Tx + '_ {
    /// All rows of a result.
    pub(crate) fn all<T>(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        row: impl Fn(&dyn Row) -> Result<T, TxError>,
    ) -> Result<Vec<T>, TxError> {
        self.all_of(sql, args, &[], row)
    }

    /// As [`all`](Self::all), with given rows.
    pub(crate) fn all_of<T>(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        rows: &[Arg<'_>],
        row: impl Fn(&dyn Row) -> Result<T, TxError>,
    ) -> Result<Vec<T>, TxError> {
        let mut all = Vec::new();
        let mut take = |found: &dyn Row| row(found).map(|value| all.push(value));
        self.query(sql, args, rows, &mut take)?;
        Ok(all)
    }

    /// The row of a result that has one at most.
    pub(crate) fn first<T>(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        row: impl Fn(&dyn Row) -> Result<T, TxError>,
    ) -> Result<Option<T>, TxError> {
        Ok(self.all(sql, args, row)?.pop())
    }

    /// The row of a result that has one.
    pub(crate) fn one<T>(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        row: impl Fn(&dyn Row) -> Result<T, TxError>,
    ) -> Result<T, TxError> {
        self.first(sql, args, row)?.ok_or_else(|| "a statement has no result".into())
    }

    /// Whether a result has rows.
    pub(crate) fn exists(&mut self, sql: &'static Sql, args: &[Arg<'_>]) -> Result<bool, TxError> {
        Ok(self.first(sql, args, |_| Ok(()))?.is_some())
    }

    /// With given rows. How many were changed.
    pub(crate) fn execute_all(
        &mut self,
        sql: &'static Sql,
        args: &[Arg<'_>],
        rows: &[Arg<'_>],
    ) -> Result<u64, TxError> {
        if rows.is_empty() {
            return Ok(0);
        }
        self.query(sql, args, rows, &mut |_| Ok(()))
    }

    /// How many rows were changed.
    pub(crate) fn execute(&mut self, sql: &'static Sql, args: &[Arg<'_>]) -> Result<u64, TxError> {
        self.query(sql, args, &[], &mut |_| Ok(()))
    }
}

/// A number as the databases have it: they all have eight bytes with a sign.
fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

macro_rules! args_from {
    ($($value:ident: $type:ty => $arg:expr,)*) => {
        $(impl<'a> From<$type> for Arg<'a> {
            fn from($value: $type) -> Self {
                $arg
            }
        })*
    };
}

args_from! {
    value: i64 => Self::Int(Some(value)),
    value: u64 => Self::Int(Some(int(value))),
    value: usize => Self::Int(Some(int(value as u64))),
    value: Option<u64> => Self::Int(value.map(int)),
    value: Option<u32> => Self::Int(value.map(i64::from)),
    value: CacheId => Self::Int(Some(value.0)),
    value: &'a str => Self::Text(Some(value)),
    value: &'a String => Self::Text(Some(value)),
    value: Option<&'a str> => Self::Text(value),
    value: &'a [u8] => Self::Bytes(value),
    value: &'a HashPart => Self::Text(Some(value.as_str())),
    value: &'a Sha256 => Self::Bytes(value.as_bytes()),
    value: &'a [u8; 32] => Self::Bytes(value),
}

/// What a value of a row can be.
pub(crate) trait FromValue<'a>: Sized {
    /// `None` if it is of another type.
    fn from_value(value: Value<'a>) -> Option<Self>;
}

macro_rules! from_value {
    ($($type:ty { $($pattern:pat => $result:expr),* })*) => {
        $(impl<'a> FromValue<'a> for $type {
            fn from_value(value: Value<'a>) -> Option<Self> {
                match value {
                    $($pattern => $result,)*
                    _ => None,
                }
            }
        })*
    };
}

from_value! {
    i64 { Value::Int(number) => Some(number) }
    u64 { Value::Int(number) => Some(u64::try_from(number).unwrap_or(0)) }
    u32 { Value::Int(number) => Some(u32::try_from(number).unwrap_or(u32::MAX)) }
    bool { Value::Int(number) => Some(number != 0) }
    &'a str { Value::Text(text) => Some(text) }
    String { Value::Text(text) => Some(text.to_owned()) }
    Vec<u8> { Value::Bytes(bytes) => Some(bytes.to_vec()) }
    [u8; 32] { Value::Bytes(bytes) => bytes.try_into().ok() }
    Sha256 { Value::Bytes(bytes) => bytes.try_into().ok().map(Sha256::from_bytes) }
}

impl<'a, T: FromValue<'a>> FromValue<'a> for Option<T> {
    fn from_value(value: Value<'a>) -> Option<Self> {
        if value == Value::Null { Some(None) } else { T::from_value(value).map(Some) }
    }
}

impl dyn Row + '_ {
    pub(crate) fn get<'a, T: FromValue<'a>>(&'a self, column: usize) -> Result<T, TxError> {
        let value = self.value(column)?;
        T::from_value(value).ok_or_else(|| format!("column {column} of a row cannot be {value:?}").into())
    }

    /// A column that holds the text of something.
    pub(crate) fn parsed<T: FromStr<Err: std::fmt::Display>>(&self, column: usize) -> Result<T, TxError> {
        let text: &str = self.get(column)?;
        text.parse().map_err(|error| format!("'{text}' in a table cannot be read: {error}").into())
    }
}
