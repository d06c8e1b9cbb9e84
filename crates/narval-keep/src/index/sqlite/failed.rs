//! Errors of SQLite.

use std::path::Path;

use rusqlite::ErrorCode;
use rusqlite::types::Type;

use crate::index::IndexError;
use crate::index::tx::TxError;

pub(super) fn sql_error(path: &Path, error: &rusqlite::Error) -> IndexError {
    let full = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
    IndexError::Database { index: path.display().to_string(), reason: error.to_string(), full }
}

/// An error of a transaction, as SQLite's own.
pub(super) fn of_transaction(error: TxError) -> rusqlite::Error {
    match error.downcast() {
        Ok(error) => *error,
        Err(error) => rusqlite::Error::FromSqlConversionFailure(0, Type::Null, error),
    }
}
