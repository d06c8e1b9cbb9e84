//! The right to change the tables, which one node has at a time: a row with an end and a number that grows, which survives any pooler of
//! connections.

use std::time::Duration;

use tokio_postgres::Client;

use super::failed::Failed;
use super::sql::{execute, get, int, p, query_opt};

/// A lease that was taken.
pub(super) struct Lease {
    name: &'static str,
    fence: i64,
}

impl Lease {
    /// Takes a lease for so long; `None` while another node has it.
    pub(super) async fn take(
        client: &Client,
        name: &'static str,
        owner: &str,
        lasts: Duration,
    ) -> Result<Option<Self>, Failed> {
        let take = "insert into narval.leases_of_work as l (name, owner, fence, until) \
             values ($1, $2, 1, now() + $3 * interval '1 second') on conflict (name) do update set owner = excluded.owner, \
             fence = l.fence + 1, until = excluded.until where l.until < now() returning fence";
        let row = query_opt(client, take, &[p(&name), p(&owner), p(&int(lasts.as_secs()))]).await?;
        row.map(|row| Ok(Self { name, fence: get(&row, 0)? })).transpose()
    }

    /// Who has taken a lease, and when it ends, in words.
    pub(super) async fn holder(client: &Client, name: &'static str) -> Result<Option<(String, String)>, Failed> {
        let find = "select owner, date_trunc('second', until)::text from narval.leases_of_work where name = $1";
        let row = query_opt(client, find, &[p(&name)]).await?;
        row.map(|row| Ok((get(&row, 0)?, get(&row, 1)?))).transpose()
    }

    /// To be called within a transaction: until its end, nobody else can take the lease.
    pub(super) async fn check(&self, client: &Client) -> Result<(), Failed> {
        let check = "select 1 from narval.leases_of_work where name = $1 and fence = $2 for update";
        match query_opt(client, check, &[p(&self.name), p(&self.fence)]).await? {
            Some(_) => Ok(()),
            None => Err(Failed::Changed),
        }
    }

    /// Lets another node take it.
    pub(super) async fn end(&self, client: &Client) -> Result<(), Failed> {
        let end = "update narval.leases_of_work set until = '-infinity' where name = $1 and fence = $2";
        execute(client, end, &[p(&self.name), p(&self.fence)]).await.map(drop)
    }
}
