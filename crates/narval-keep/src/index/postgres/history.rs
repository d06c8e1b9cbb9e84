//! Up to which id all paths are visible. Ids are given out in one order, and transactions end in another: a path may become visible after one
//! with a greater id. A transaction gets its number before the ids of its paths (it has locked the rows of their files by then). So once all
//! transactions have ended whose numbers are less than one that was given out after an id was seen, nothing up to this id is still to come.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use narval_nix::Sha256;
use tokio_postgres::Client;

use super::failed::Failed;
use super::sql::{get, p, query_opt};
use super::transaction::Database;
use crate::index::IndexError;
use crate::index::tx::DEADLINE;

/// How often, and after which pauses, is looked again while nothing is known.
const LOOKS_MAX: u32 = 10;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What a node knows.
#[derive(Default)]
pub(super) struct History(Mutex<Known>);

#[derive(Clone, Copy, Default)]
struct Known {
    /// Which history: ids of another server, or from before a rebuild, say nothing. A standby that takes over may have lost some, and give
    /// them out again.
    of: u64,
    settled: Option<i64>,
    /// The last id that was seen, and a number of a transaction from after that.
    pending: Option<(i64, i64)>,
}

impl History {
    /// Which history it is, and up to which id all paths are visible. It changes nothing but the number of the next transaction.
    pub(super) fn point(&self, database: &Database) -> Result<(u64, i64), IndexError> {
        for look in 0..LOOKS_MAX {
            let before = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let now = database.read(DEADLINE, async |client| before.look(client).await)?;
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
            match now.settled {
                // What came meanwhile has usually ended when it is looked for again.
                Some(settled) if now.pending.is_none() || look > 0 => return Ok((now.of, settled)),
                _ if look > 0 => thread::sleep(LOOK_AGAIN_AFTER),
                _ => {}
            }
        }
        let reason = "transactions do not end, so it is not known up to which path the index is complete".to_owned();
        Err(IndexError::Unusable { database: database.pool.name().to_owned(), reason })
    }
}

impl Known {
    async fn look(self, client: &Client) -> Result<Self, Failed> {
        // The number is given out after the snapshot was taken, and only if there is something new.
        let query = "select concat_ws(' ', pg_postmaster_start_time(), current_database(), pg_relation_filenode('narval.paths')), \
             pg_snapshot_xmin(pg_current_snapshot())::text::bigint, last, \
             case when last > $1 then pg_current_xact_id()::text::bigint end \
             from (select coalesce(max(id), 0) as last from narval.paths) as paths";
        let wanted = self.pending.map_or(self.settled.unwrap_or(-1), |_| i64::MAX);
        let row = query_opt(client, query, &[p(&wanted)]).await?.ok_or(Failed::Changed)?;
        let of = Sha256::of(get::<String>(&row, 0)?.as_bytes());
        let of = of.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mut known = if of == self.of { self } else { Self { of, ..Self::default() } };
        let (all_ended_before, last): (i64, i64) = (get(&row, 1)?, get(&row, 2)?);
        match known.pending {
            Some((id, number)) if number <= all_ended_before => (known.settled, known.pending) = (Some(id), None),
            Some(_) => {}
            None => known.pending = get::<Option<i64>>(&row, 3)?.map(|number| (last, number)),
        }
        Ok(known)
    }
}
