//! Noticing what other nodes change, and who they are.
//!
//! Each transaction that readers can see adds a row to `changes`, and no transaction waits for another's. A node remembers the
//! snapshot in which it last looked: a row that is visible now and was not in that snapshot is a change, whatever the order in which
//! transactions began and ended. Numbers of transactions are those of one server: a standby that takes over gives out again those that it has
//! lost. So what was seen counts only for the server that has said it, which is known by the time of its start.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::failed::Failed;
use super::node::Node;
use super::nodes::{self, Nodes};
use super::pool::{Connection, Pool};
use super::sql::{execute, get, p, query_opt};
use narval_client::clock;

/// How often is looked.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long the answer may take. The database counts as away after that. One that is only busy must not: all uploads would be refused.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often rows of `changes` are removed that are an hour old. The last of them is noted: a node that has not seen it may have missed others,
/// whatever its clock says.
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// A node that has not looked for this long takes it that there was a change: the row may be gone.
const TRUSTED_FOR: Duration = Duration::from_secs(1800);

/// What is known of the database's state.
pub(super) struct Seen {
    snapshot: String,
    at: Instant,
    server: Started,
}

/// When a server has started, in microseconds since 1970 by its clock. No two servers of a database have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Started(i64);

impl Started {
    /// Says that another server answers than before, or the same after a restart, and which of them it is: a standby was there when the former
    /// one was last asked.
    fn announce(self, last_asked: u64, name: &str) {
        if u64::try_from(self.0 / 1_000_000).is_ok_and(|started| started < last_asked) {
            tracing::warn!(
                "a standby has taken over the index '{name}'. If it was not synchronous, what was committed last is lost: run 'narval cache fsck', \
                 and revoke again what was revoked last (docs/scale-out.md, Failover)"
            );
        } else {
            tracing::info!("the server of the index '{name}' was started again");
        }
    }
}

/// The state now, and whether another node has made a change since `before`. The node learns what time it is.
pub(super) async fn look(client: &Client, node: &Node, before: Option<&Seen>) -> Result<(Seen, bool), Failed> {
    let (at, elapsed) = (clock::instant(), clock::elapsed());
    let since = before.filter(|before| clock::since(before.at) < TRUSTED_FOR).map(|before| before.snapshot.as_str());
    let query = "select pg_current_snapshot()::text, $1::text is null or exists (select from narval.changes \
         where xid >= pg_snapshot_xmin($1::text::pg_snapshot) and node <> $2 \
         and not pg_visible_in_snapshot(xid, $1::text::pg_snapshot)) or exists (select from narval.meta \
         where key = 'pruned' and not pg_visible_in_snapshot(value::xid8, $1::text::pg_snapshot)), \
         exists (select from narval.meta where key = 'rebuilding'), \
         (extract(epoch from clock_timestamp()) * 1000)::bigint, \
         (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint, pg_is_in_recovery()";
    let row = query_opt(client, query, &[p(&since), p(&node.name())]).await?;
    let row = row.ok_or_else(|| Failed::Row("no snapshot".to_owned()))?;
    node.set_time(get(&row, 3)?, elapsed);
    if get(&row, 2)? && !node.is_rebuild {
        return Err(Failed::Rebuilt);
    }
    // A pooler of connections may have been led to it meanwhile.
    if get(&row, 5)? {
        return Err(Failed::Standby);
    }
    let server = Started(get(&row, 4)?);
    let is_another = before.is_some_and(|before| before.server != server);
    Ok((Seen { snapshot: get(&row, 0)?, at, server }, is_another || get(&row, 1)?))
}

/// Removes old rows.
pub(super) async fn prune(client: &Client) -> Result<(), Failed> {
    let prune = "with gone as (delete from narval.changes where at < now() - interval '1 hour' returning xid), \
         last as (select xid from gone order by xid desc limit 1) \
         insert into narval.meta as m select 'pruned', xid::text from last on conflict (key) do update \
         set value = greatest(m.value::xid8, excluded.value::xid8)::text";
    execute(client, prune, &[]).await.map(drop)
}

/// The state from which a node begins.
pub(super) async fn begin(client: &Client, node: &Node) -> Result<Seen, Failed> {
    Ok(look(client, node, None).await?.0)
}

/// Looks until it is told to stop, or the index is closed.
pub(super) fn run(
    pool: &Weak<Pool>,
    stamp: &Arc<AtomicU64>,
    (node, nodes): (&Node, &Nodes),
    connection: Connection,
    seen: Seen,
    stopped: &Receiver<()>,
) {
    let (mut server, mut asked_at) = (seen.server, node.now());
    let (mut connection, mut seen) = (Some(connection), Some(seen));
    let mut pruned = Instant::now();
    while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        let Some(pool) = pool.upgrade() else { return };
        let look_with = |mut open: Connection, seen: Option<&Seen>| {
            let found = open.run(LOOK_TIMEOUT, async |client| look(client, node, seen).await)?;
            Ok((open, found))
        };
        let looked = match connection.take() {
            None => pool.open().and_then(|open| look_with(open, seen.as_ref())),
            Some(open) => match look_with(open, seen.as_ref()) {
                // The database may have restarted and be back already: it is away only if a new connection fails, too.
                Err(error @ (Failed::Sql(_) | Failed::Standby)) if error.breaks_connection() => {
                    pool.open().and_then(|open| look_with(open, None))
                }
                looked => looked,
            },
        };
        match looked {
            Ok((open, (now, changed))) => {
                connection = Some(open);
                if now.server != server {
                    now.server.announce(asked_at, pool.name());
                    pool.has_another_server();
                }
                (server, asked_at) = (now.server, node.now());
                if changed {
                    stamp.fetch_add(1, Ordering::AcqRel);
                }
                seen = Some(now);
                // Only after the stamp: who waited for the database reads nothing older.
                pool.is_back();
                if let Some(open) = &mut connection
                    && let Err(error) = open.run(LOOK_TIMEOUT, async |client| nodes.keep(client).await)
                {
                    tracing::debug!("{}", error.at(pool.name()));
                    connection = None;
                }
            }
            Err(error) => {
                // The database that comes back may be another, with transactions lost: nothing that was seen counts.
                seen = None;
                pool.set_unavailable(&error);
            }
        }
        if pruned.elapsed() >= PRUNE_EVERY
            && let Some(open) = &mut connection
        {
            pruned = Instant::now();
            let pruned = open.run(LOOK_TIMEOUT, async |client| {
                prune(client).await?;
                nodes::prune(client).await
            });
            if let Err(error) = pruned {
                tracing::warn!("{}", error.at(pool.name()));
                connection = None;
            }
        }
    }
}
