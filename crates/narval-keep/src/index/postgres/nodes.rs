//! The nodes that share their disk caches: each has a row, which says where it is reached and that it is alive.
//!
//! Only the database's clock decides who is alive, so it does not matter whether those of the nodes agree.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::failed::Failed;
use super::sql::{execute, get, int, number, p, query, query_opt};
use crate::nodes::{MEMBERS_MAX, Members, NodeRow};

/// How often a node says that it is alive.
const BEAT_EVERY: Duration = Duration::from_secs(10);

/// A node that has said nothing for this long is gone.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// How often a node reads who the others are.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// This process as a node.
struct Node {
    members: Arc<Members>,
    url: String,
    beaten: Instant,
    looked: Instant,
}

/// What this process is among the nodes: nothing, until it has joined them.
#[derive(Default)]
pub(super) struct Nodes(Mutex<Option<Node>>);

impl Nodes {
    /// This process has joined the nodes: [`beat`] and [`look`] have just been done.
    pub(super) fn joined(&self, members: Arc<Members>, url: String) {
        let now = Instant::now();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Node { members, url, beaten: now, looked: now });
    }

    /// It leaves them: returns its id.
    pub(super) fn left(&self) -> Option<String> {
        let node = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        node.map(|node| node.members.own_id().to_owned())
    }

    /// Does what is due. Only the thread that watches calls this, and it takes the time that the database takes.
    pub(super) async fn keep(&self, client: &Client) -> Result<(), Failed> {
        let (members, url, is_beat_due, is_look_due) = match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Node { members, url, beaten, looked }) => {
                let (beat, look) = (beaten.elapsed() >= BEAT_EVERY, looked.elapsed() >= LOOK_EVERY);
                (Arc::clone(members), url.clone(), beat, look)
            }
            None => return Ok(()),
        };
        if is_beat_due {
            beat(client, &members, &url).await?;
        }
        if is_look_due {
            members.set_others(&look(client, members.own_id()).await?);
        }
        if let Some(node) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let now = Instant::now();
            node.beaten = if is_beat_due { now } else { node.beaten };
            node.looked = if is_look_due { now } else { node.looked };
        }
        Ok(())
    }
}

/// Says that this node is alive.
pub(super) async fn beat(client: &Client, members: &Members, url: &str) -> Result<(), Failed> {
    let beat = "insert into narval.nodes (id, url, seen, weight) values ($1, $2, now(), $3) \
         on conflict (id) do update set url = excluded.url, seen = excluded.seen, weight = excluded.weight";
    execute(client, beat, &[p(&members.own_id()), p(&url), p(&int(members.own_weight()))]).await.map(drop)
}

/// The other nodes that are alive.
pub(super) async fn look(client: &Client, own: &str) -> Result<Vec<NodeRow>, Failed> {
    let look = "select id, url, weight from narval.nodes where id <> $1 and seen > now() - $2 * interval '1 second' \
         order by id limit $3";
    let (alive, max) = (int(GONE_AFTER.as_secs()), int(MEMBERS_MAX as u64));
    let rows = query(client, look, &[p(&own), p(&alive), p(&max)]).await?;
    rows.iter().map(|row| Ok(NodeRow { id: get(row, 0)?, url: get(row, 1)?, weight: number(row, 2)? })).collect()
}

/// Removes a node that ends.
pub(super) async fn leave(client: &Client, id: &str) -> Result<(), Failed> {
    execute(client, "delete from narval.nodes where id = $1", &[p(&id)]).await.map(drop)
}

/// Removes nodes that have ended long ago without saying so.
pub(super) async fn prune(client: &Client) -> Result<(), Failed> {
    execute(client, "delete from narval.nodes where seen < now() - interval '1 day'", &[]).await.map(drop)
}

/// The secret of all nodes: `mine`, if there is none yet.
pub(super) async fn secret(client: &Client, mine: &str) -> Result<String, Failed> {
    let add = "insert into narval.meta values ('peer secret', $1) on conflict (key) do nothing";
    execute(client, add, &[p(&mine)]).await?;
    let row = query_opt(client, "select value from narval.meta where key = 'peer secret'", &[]).await?;
    row.map_or_else(|| Err(Failed::Changed), |row| get(&row, 0))
}
