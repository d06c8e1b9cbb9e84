//! What goes wrong with a statement, and what it means.

use std::io;
use std::time::Duration;

use tokio_postgres::Error as SqlError;
use tokio_postgres::error::SqlState;

use crate::index::IndexError;
use crate::index::tx::{Refused, TxError};

/// Why a statement or a transaction failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// The database says so, or the connection broke.
    Sql(SqlError),
    /// There is no connection.
    Unreached(io::Error),
    /// There was no answer for so long.
    Deadline(Duration),
    /// A row that cannot be read.
    Row(String),
    /// Another process changed the same paths: nothing is done.
    Changed,
    /// The lease has ended, and another node has it.
    Superseded,
    /// A rebuild of the index has not ended.
    Rebuilt,
    /// The server is a standby, or has become one.
    Standby,
}

impl From<SqlError> for Failed {
    fn from(error: SqlError) -> Self {
        Self::Sql(error)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Unreached(error)
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason())
    }
}

impl std::error::Error for Failed {}

impl Failed {
    /// That of a transaction.
    pub(super) fn of(error: TxError) -> Self {
        match error.downcast() {
            Ok(failed) => *failed,
            Err(error) => match error.downcast_ref() {
                Some(Refused::Changed) => Self::Changed,
                Some(Refused::Superseded) => Self::Superseded,
                None => Self::Row(error.to_string()),
            },
        }
    }

    /// After a rollback, the connection is as before: the server says that it has done nothing, or it was not asked.
    pub(super) fn leaves_usable(&self) -> bool {
        match self {
            Self::Sql(_) => self.is_collision() || self.is_locked() || self.state() == Some(&SqlState::QUERY_CANCELED),
            Self::Unreached(_) | Self::Deadline(_) | Self::Standby => false,
            _ => true,
        }
    }

    fn state(&self) -> Option<&SqlState> {
        match self {
            Self::Sql(error) => error.code(),
            _ => None,
        }
    }

    /// The connection is of no use any more.
    pub(super) fn breaks_connection(&self) -> bool {
        match self {
            Self::Unreached(_) | Self::Deadline(_) | Self::Standby => true,
            Self::Sql(error) => match error.code() {
                // The server ends it: 57P01 to 57P05, class 08, and 25P03 for a transaction in which nothing happened for too long. Or it is not
                // in the transaction that it should be in: 25P01 and 25P02. Or it is another session than the one that a statement was prepared
                // in. Or the server is a standby.
                Some(state) => {
                    let code = state.code();
                    code.starts_with("57P")
                        || code.starts_with("08")
                        || code.starts_with("25P")
                        || [
                            SqlState::INVALID_SQL_STATEMENT_NAME,
                            SqlState::DUPLICATE_PSTATEMENT,
                            SqlState::READ_ONLY_SQL_TRANSACTION,
                        ]
                        .contains(state)
                }
                // Closed, or broken. What the client finds wrong with values has a cause of another kind.
                None => error.is_closed() || is_io(error),
            },
            _ => false,
        }
    }

    /// Two transactions were in each other's way, and PostgreSQL undid this one: it is done again.
    pub(super) fn is_collision(&self) -> bool {
        [
            &SqlState::T_R_SERIALIZATION_FAILURE,
            &SqlState::T_R_DEADLOCK_DETECTED,
            &SqlState::FOREIGN_KEY_VIOLATION,
            &SqlState::UNIQUE_VIOLATION,
        ]
        .into_iter()
        .any(|state| self.state() == Some(state))
    }

    /// Others have a lock that it waited for.
    pub(super) fn is_locked(&self) -> bool {
        self.state() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Nothing is wrong with the database; it does not do this at the moment.
    fn is_temporary(&self) -> bool {
        let states = [
            &SqlState::LOCK_NOT_AVAILABLE,
            &SqlState::QUERY_CANCELED,
            &SqlState::TOO_MANY_CONNECTIONS,
            &SqlState::OUT_OF_MEMORY,
            &SqlState::INSUFFICIENT_RESOURCES,
        ];
        self.breaks_connection() || self.is_collision() || states.into_iter().any(|state| self.state() == Some(state))
    }

    pub(super) fn reason(&self) -> String {
        match self {
            Self::Sql(error) => describe(error),
            Self::Unreached(error) => format!("error connecting to server: {error}"),
            Self::Deadline(after) => format!("no answer within {} s", after.as_secs()),
            Self::Row(reason) => reason.clone(),
            Self::Superseded => "another node has taken over".to_owned(),
            Self::Rebuilt => {
                "a rebuild of its index was interrupted: run 'narval cache fsck --rebuild' again, or wait if it is under way".to_owned()
            }
            Self::Standby => "it is a standby, which takes no writes".to_owned(),
            Self::Changed => "others change the same paths".to_owned(),
        }
    }

    pub(super) fn at(&self, index: &str) -> IndexError {
        let (index, reason) = (index.to_owned(), self.reason());
        if matches!(self, Self::Rebuilt) {
            return IndexError::Unusable { database: index, reason };
        }
        if matches!(self, Self::Superseded) {
            return IndexError::Superseded { index };
        }
        if self.is_locked() {
            return IndexError::Busy { index };
        }
        if self.is_temporary() {
            return IndexError::Unavailable { index, reason };
        }
        IndexError::Database { index, reason, full: self.state() == Some(&SqlState::DISK_FULL) }
    }
}

fn is_io(error: &SqlError) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    causes.into_iter().any(|cause| cause.is::<io::Error>())
}

/// An error with its causes, in one line.
pub(super) fn describe(error: &SqlError) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} ({})", error.message(), error.code().code());
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = error.source();
    }
    text.replace('\n', " ")
}
