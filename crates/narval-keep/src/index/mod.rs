//! The index of a data folder: caches, NARs, paths, pins and tokens.
//!
//! It is a trait because one machine keeps it in SQLite, while many machines share one in PostgreSQL. Each method is one transaction:
//! it has taken effect completely when it returns, or not at all. Durable changes also survive a power failure.
//!
//! What both databases do by the same statements is in [`sql`].

mod error;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
mod schema;
mod snapshot;
mod sql;
mod sqlite;
#[cfg(test)]
mod tests;
mod transaction;
mod tx;

use std::sync::Arc;
use std::time::Duration;

use self::memory::Memory;
use self::tx::{How, Reading, Tx, TxError, Work};
use crate::nodes::{Members, PeerSecret};
#[cfg(test)]
use crate::records::leases::Fence;
use crate::records::paths::{CacheId, PathTotals};
use narval_client::clock;

pub use error::IndexError;
#[cfg(all(test, feature = "postgres"))]
pub(crate) use postgres::SimulatedPostgres;
#[cfg(feature = "postgres")]
pub(crate) use postgres::{Postgres, check_address};
pub(crate) use snapshot::Snapshot;
#[cfg(test)]
pub(crate) use snapshot::SnapshotBuilder;
#[cfg(test)]
pub(crate) use sqlite::Simulated;
pub(crate) use sqlite::Sqlite;

/// The index. Times are seconds since 1970. What can be asked and changed is in [`sql`].
pub(crate) trait Index: Send + Sync {
    /// Asks something that changes nothing, by statements that both databases run.
    fn ask(&self, how: Reading, work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>) -> Result<(), IndexError>;
    /// Does a transaction of such statements.
    fn change(&self, how: How, work: Work) -> Result<(), IndexError>;
    /// The next transaction of this task is one of a collection.
    #[cfg(test)]
    fn is_fenced(&self, _: Fence) {}

    /// Its file, or its address without the password.
    fn name(&self) -> String;
    /// What is remembered of names below `nar/`, if transactions are dear.
    fn memory(&self) -> Option<&Memory> {
        None
    }

    /// Makes this process one of the nodes that share disk caches, at this address: from now on, `members` is kept up to date. Returns the
    /// secret of the nodes; `None` if no other process can use this index.
    fn join(&self, _members: &Arc<Members>, _url: &str) -> Result<Option<PeerSecret>, IndexError> {
        Ok(None)
    }
    /// Ends what [`join`](Self::join) has begun.
    fn leave(&self) {}

    /// Empties the index, which nobody else can use until [`end_rebuild`](Self::end_rebuild). Returns `false` if it has contents, and they are
    /// not those of a rebuild that was interrupted.
    fn begin_rebuild(&self) -> Result<bool, IndexError> {
        Ok(false)
    }
    /// Lets others use it.
    fn end_rebuild(&self) -> Result<(), IndexError> {
        Ok(())
    }

    /// Whether the audit log is kept here; otherwise it is a file.
    fn keeps_audit(&self) -> bool {
        false
    }

    /// A number that changes with every change that a reader can see: at once for changes by this process, within
    /// [`Index::noticed_after`] for others. It does not change while the index cannot be reached.
    fn stamp(&self) -> u64;
    /// A number that changes when the index was away, or when another server answers for it: what was committed last may be lost.
    fn server(&self) -> u64 {
        0
    }
    /// How long it takes until other processes notice a change by this one.
    fn noticed_after(&self) -> Duration;
    /// The time by which paths are kept and collected, and tokens expire, in seconds since 1970: that of the index, so that no node's clock decides.
    fn now(&self) -> u64 {
        clock::now()
    }
    /// What the index is set up to lose in a crash, for operators.
    fn doubts(&self) -> Result<Vec<String>, IndexError> {
        Ok(Vec::new())
    }
    /// Whether other processes may add paths at any time, so that an absence must be looked up again.
    fn is_shared(&self) -> bool;
    /// Which history the ids of paths are of, and up to which id all of them are visible, if transactions become visible in any order. `None`:
    /// they do so in the order of ids.
    fn history(&self) -> Result<Option<(u64, i64)>, IndexError> {
        Ok(None)
    }

    /// Counts at most this many paths, sorted by hash part, after the given one, and returns the last of them. A path counts as unsigned if its
    /// narinfo lacks one of these lines.
    fn count(
        &self,
        cache: CacheId,
        lines: &[Vec<u8>],
        after: &str,
        max: usize,
    ) -> Result<Option<(PathTotals, String)>, IndexError>;
}
