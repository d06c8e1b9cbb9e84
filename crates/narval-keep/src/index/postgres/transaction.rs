//! Reads and transactions: how long they may take, and what is done when a connection breaks or others get in
//! the way.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_postgres::Client;

use super::failed::Failed;
use super::node::Node;
use super::pool::{Connection, Pool};
use super::sql::{execute, p};
use super::tx::{self, LOCK_SLICE, PostgresTx, begin};
use crate::index::IndexError;
use crate::index::tx::{DEADLINE, DEADLINE_LARGE, How, Reading, Tx, TxError};
use narval_client::clock;

/// How long a transaction is tried while others have locked its rows.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);

/// How often a transaction is tried that others get in the way of.
const ATTEMPTS_MAX: u32 = 8;

/// A transaction that is under way.
pub(super) struct Change<'a> {
    pub(super) client: &'a Client,
    node: &'a str,
    visible: &'a Cell<bool>,
}

impl Change<'_> {
    /// To be done in every transaction that changes what a reader can see, or what names mean.
    pub(super) async fn is_visible(&self) -> Result<(), Failed> {
        if self.visible.replace(true) {
            return Ok(());
        }
        execute(self.client, "insert into narval.changes (node) values ($1)", &[p(&self.node)]).await.map(drop)
    }
}

/// How far a transaction got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    Work,
    Commit,
}

/// The database, as far as it can be asked and changed.
pub(super) struct Database {
    pub(super) pool: Arc<Pool>,
    /// Changes of others are counted by the thread that watches.
    pub(super) stamp: Arc<AtomicU64>,
    pub(super) node: Arc<Node>,
}

impl Database {
    /// Asks something that changes nothing. A connection that the server has closed meanwhile is replaced.
    pub(super) fn read<T>(
        &self,
        deadline: Duration,
        ask: impl AsyncFn(&Client) -> Result<T, Failed>,
    ) -> Result<T, IndexError> {
        self.read_on(|connection| connection.run(deadline, &ask))
    }

    /// As [`read`](Self::read), by the statements that both databases run.
    pub(super) fn ask(
        &self,
        how: Reading,
        work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>,
    ) -> Result<(), IndexError> {
        let deadline = if how == Reading::Some { DEADLINE } else { DEADLINE_LARGE };
        self.read_on(|connection| tx::ask(connection, how, deadline, work))
    }

    fn read_on<T>(&self, mut ask: impl FnMut(&mut Connection) -> Result<T, Failed>) -> Result<T, IndexError> {
        loop {
            let (mut connection, was_used) = self.pool.take()?;
            match ask(&mut connection) {
                Ok(answer) => {
                    self.pool.give_back(connection);
                    return Ok(answer);
                }
                // The server has closed it meanwhile; a new one is opened next.
                Err(error) if error.breaks_connection() && was_used && !matches!(error, Failed::Deadline(_)) => {
                    self.pool.outdated();
                }
                Err(error) if error.breaks_connection() => {
                    self.pool.lost(&error);
                    return Err(error.at(self.pool.name()));
                }
                Err(error) => {
                    self.pool.give_back(connection);
                    return Err(error.at(self.pool.name()));
                }
            }
        }
    }

    /// Does a transaction that others cannot make impossible.
    pub(super) fn write<T>(
        &self,
        how: How,
        work: impl AsyncFn(&Change<'_>) -> Result<T, Failed>,
    ) -> Result<T, IndexError> {
        match self.try_write(how, work)? {
            Some(done) => Ok(done),
            None => Err(Failed::Changed.at(self.pool.name())),
        }
    }

    /// Does a transaction. `None`: others have changed what it is about, and nothing was done.
    pub(super) fn try_write<T>(
        &self,
        how: How,
        work: impl AsyncFn(&Change<'_>) -> Result<T, Failed>,
    ) -> Result<Option<T>, IndexError> {
        self.write_on(how, |connection, how, (visible, stage), node| {
            connection.run(how.deadline, async |client| {
                client.batch_execute(&begin(how)).await?;
                stage.set(Stage::Work);
                let change = Change { client, node, visible };
                let done = work(&change).await?;
                stage.set(Stage::Commit);
                client.batch_execute("commit").await?;
                Ok(done)
            })
        })
    }

    /// Does a transaction of the statements that both databases run, which others cannot make impossible.
    pub(super) fn change(
        &self,
        how: How,
        work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>,
    ) -> Result<(), IndexError> {
        let done = self.write_on(how, |connection, how, (visible, stage), node| {
            let tx = PostgresTx::new(connection, how.deadline, (node, visible));
            tx::change(tx, how, work, (|| stage.set(Stage::Work), || stage.set(Stage::Commit)))
        })?;
        done.ok_or_else(|| Failed::Changed.at(self.pool.name()))
    }

    fn write_on<T>(
        &self,
        how: How,
        mut attempt: impl FnMut(&mut Connection, How, (&Cell<bool>, &Cell<Stage>), &str) -> Result<T, Failed>,
    ) -> Result<Option<T>, IndexError> {
        let (mut attempts, until) = (0, clock::instant() + LOCK_TIMEOUT);
        loop {
            attempts += 1;
            let (mut connection, was_used) = self.pool.take()?;
            let (visible, stage, node) = (Cell::new(false), Cell::new(Stage::Begin), self.node.name());
            let done = attempt(&mut connection, how, (&visible, &stage), &node);
            if stage.get() == Stage::Commit && visible.get() {
                self.stamp.fetch_add(1, Ordering::AcqRel);
            }
            let error = match done {
                Ok(done) => {
                    self.pool.give_back(connection);
                    return Ok(Some(done));
                }
                Err(error) => error,
            };
            if error.breaks_connection() {
                if stage.get() == Stage::Commit {
                    // Nobody knows whether it took effect, or will: others' changes are looked for.
                    self.node.generation.fetch_add(1, Ordering::AcqRel);
                } else if was_used && !matches!(error, Failed::Deadline(_)) {
                    self.pool.outdated();
                    continue;
                }
                self.pool.lost(&error);
                return Err(error.at(self.pool.name()));
            }
            self.pool.give_back(connection);
            match error {
                Failed::Changed => return Ok(None),
                error if error.is_locked() && clock::instant() < until => {
                    attempts -= 1;
                    clock::sleep(LOCK_SLICE);
                }
                error if error.is_collision() && attempts < ATTEMPTS_MAX => {}
                error => return Err(error.at(self.pool.name())),
            }
        }
    }
}
