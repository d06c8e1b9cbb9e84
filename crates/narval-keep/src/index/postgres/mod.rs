//! The index in PostgreSQL, which many servers share.
//!
//! The tables are those of SQLite, in the schema `narval`. Where SQLite has one writer, transactions run side by side here, and lock the rows that
//! they are about, in one order: paths, NARs, names of NARs, caches. Locks end with their transactions, so poolers of connections do no harm. What others change is noticed within [`watch::LOOK_EVERY`].

mod address;
mod failed;
mod history;
mod node;
mod nodes;
mod pool;
mod schema;
#[cfg(test)]
mod simulation;
mod sql;
mod transaction;
mod tx;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use narval_nix::nix32;
use tokio_postgres::Client;
use tokio_postgres_rustls::MakeRustlsConnect;
use zeroize::Zeroizing;

use self::address::Address;
use self::failed::Failed;
use self::history::History;
use self::node::Node;
use self::nodes::Nodes;
use self::pool::Pool;
use self::sql::{get, int, maybe_number, number, p, query_opt};
use self::transaction::Database;
use super::memory::Memory;
use super::tx::{DEADLINE, DEADLINE_LARGE, How, LARGE, NOTE, NOTE_LATER, Reading, Tx, TxError, Work};
use super::{Index, IndexError};
use crate::nodes::{Members, PeerSecret};
use crate::records::paths::{CacheId, PathTotals};

#[cfg(test)]
pub(crate) use self::simulation::SimulatedPostgres;

/// The number of random bytes of the secret of nodes.
const PEER_SECRET_LEN: usize = 32;

/// How a node that ends says so: its end does not wait long.
const LEAVE: How = How { deadline: Duration::from_secs(2), ..NOTE_LATER };

/// The index in PostgreSQL.
pub(crate) struct Postgres {
    database: Database,
    memory: Memory,
    history: History,
    /// The nodes that share disk caches.
    nodes: Arc<Nodes>,
    /// Ends the thread that watches.
    _stop: Sender<()>,
}

/// Whether this is the address of a database, as far as can be told without asking it.
pub(crate) fn check_address(address: &str) -> Result<(), IndexError> {
    Address::parse(address).map(drop)
}

impl Postgres {
    /// Opens the index at an address, and makes its tables when they are missing.
    #[cfg(test)]
    pub(crate) fn open(address: &str) -> Result<Self, IndexError> {
        Self::open_for(address, false)
    }

    /// As [`open`](Self::open). One that is being rebuilt can be opened for that only.
    pub(crate) fn open_for(address: &str, is_rebuild: bool) -> Result<Self, IndexError> {
        let address = Address::parse(address)?;
        let name = address.name.clone();
        let unusable = |reason: String| IndexError::Unusable { database: name.clone(), reason };
        let tls = narval_client::tls_config(&[b"postgresql"], None).map_err(|error| unusable(error.to_string()))?;
        let node = Arc::new(Node::new(is_rebuild).map_err(|error| unusable(format!("no random numbers: {error}")))?);
        let pool = Arc::new(Pool::new(address, MakeRustlsConnect::new(tls)));
        let mut connection = pool.open().map_err(|error| error.at(&name))?;
        schema::prepare(&mut connection, &name)?;
        let seen = connection.run(DEADLINE, async |client| watch::begin(client, &node).await);
        let seen = seen.map_err(|error| error.at(&name))?;
        let stamp = Arc::new(AtomicU64::new(1));
        let (stop, stopped) = channel();
        let nodes = Arc::new(Nodes::default());
        let watch = {
            let (pool, stamp, node) = (Arc::downgrade(&pool), Arc::clone(&stamp), Arc::clone(&node));
            let nodes = Arc::clone(&nodes);
            move || watch::run(&pool, &stamp, (&node, &nodes), connection, seen, &stopped)
        };
        let thread = std::thread::Builder::new().name("index-watch".into()).spawn(watch);
        thread.map_err(|error| unusable(format!("no thread for it: {error}")))?;
        let database = Database { pool, stamp, node };
        Ok(Self { database, memory: Memory::default(), history: History::default(), nodes, _stop: stop })
    }

    /// The id of the folder that this is the index of: `mine` from now on, if it is of none yet.
    pub(crate) fn folder(&self, mine: &str) -> Result<String, IndexError> {
        self.database.write(NOTE, async |change| schema::folder(change.client, mine).await)
    }
}

impl Index for Postgres {
    fn join(&self, members: &Arc<Members>, url: &str) -> Result<Option<PeerSecret>, IndexError> {
        let mut mine = [0; PEER_SECRET_LEN];
        getrandom::fill(&mut mine).map_err(|error| {
            let reason = format!("no random numbers: {error}");
            IndexError::Unusable { database: self.database.pool.name().to_owned(), reason }
        })?;
        let mine = Zeroizing::new(nix32::encode(&mine));
        let (others, secret) = self.database.write(NOTE, async |change| {
            nodes::beat(change.client, members, url).await?;
            let others = nodes::look(change.client, members.own_id()).await?;
            Ok((others, nodes::secret(change.client, &mine).await?))
        })?;
        members.set_others(&others);
        self.nodes.joined(Arc::clone(members), url.to_owned());
        Ok(Some(PeerSecret::new(secret)))
    }

    fn ask(&self, how: Reading, work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>) -> Result<(), IndexError> {
        self.database.ask(how, work)
    }

    fn change(&self, how: How, mut work: Work) -> Result<(), IndexError> {
        self.database.change(how, &mut *work)
    }

    fn name(&self) -> String {
        self.database.pool.name().to_owned()
    }

    fn memory(&self) -> Option<&Memory> {
        Some(&self.memory)
    }

    fn begin_rebuild(&self) -> Result<bool, IndexError> {
        self.database.write(LARGE, schema::begin_rebuild)
    }

    fn end_rebuild(&self) -> Result<(), IndexError> {
        self.database.write(NOTE, schema::end_rebuild)
    }

    fn leave(&self) {
        let Some(id) = self.nodes.left() else { return };
        let left = self.database.write(LEAVE, async |change| nodes::leave(change.client, &id).await);
        if let Err(error) = left {
            // The others find out by themselves.
            tracing::debug!("{error}");
        }
    }

    fn stamp(&self) -> u64 {
        self.database.stamp.load(Ordering::Acquire)
    }

    fn server(&self) -> u64 {
        self.database.pool.server()
    }

    fn noticed_after(&self) -> Duration {
        2 * watch::LOOK_EVERY
    }

    fn now(&self) -> u64 {
        self.database.node.now()
    }

    fn doubts(&self) -> Result<Vec<String>, IndexError> {
        self.database.read(DEADLINE, schema::doubts)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn history(&self) -> Result<Option<(u64, i64)>, IndexError> {
        self.history.point(&self.database).map(Some)
    }

    fn keeps_audit(&self) -> bool {
        true
    }

    fn count(
        &self,
        cache: CacheId,
        lines: &[Vec<u8>],
        after: &str,
        max: usize,
    ) -> Result<Option<(PathTotals, String)>, IndexError> {
        self.database.read(DEADLINE_LARGE, async |client| count(client, cache, lines, after, max).await)
    }
}

async fn count(
    client: &Client,
    cache: CacheId,
    lines: &[Vec<u8>],
    after: &str,
    max: usize,
) -> Result<Option<(PathTotals, String)>, Failed> {
    let some = "select count(*), count(*) filter (where exists (select from unnest($4) as wanted (line) where position(wanted.line in narinfo) = 0)), \
         coalesce(sum(listing_size), 0)::bigint, min(used), max(hash_part) from \
         (select hash_part, narinfo, listing_size, used from narval.paths where cache = $1 and hash_part > $2 \
           order by hash_part limit $3) step";
    let (lines, max) = (lines.to_vec(), int(max as u64));
    let Some(row) = query_opt(client, some, &[p(&cache.0), p(&after), p(&max), p(&lines)]).await? else {
        return Ok(None);
    };
    let Some(last) = get::<Option<String>>(&row, 4)? else { return Ok(None) };
    let counted = PathTotals {
        paths: number(&row, 0)?,
        unsigned: number(&row, 1)?,
        listing_bytes: number(&row, 2)?,
        oldest_use: maybe_number(&row, 3)?,
    };
    Ok(Some((counted, last)))
}

#[cfg(test)]
impl std::ops::Deref for Postgres {
    type Target = dyn Index;

    fn deref(&self) -> &Self::Target {
        self
    }
}

#[cfg(test)]
mod tests;
