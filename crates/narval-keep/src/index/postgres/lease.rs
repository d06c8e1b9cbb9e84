//! Work that one node does at a time: a row with an end and a number that grows, which survives any pooler of connections.
//!
//! A node that was paused may go on after its lease has ended. It finds out before it changes anything: within its transaction it
//! locks the row, and looks whether the number is still its own ([`Lease::check`]).

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
        Self::insert(client, name, owner, lasts, "where l.until < now()").await
    }

    /// Takes a lease from whoever has it.
    pub(super) async fn take_over(
        client: &Client,
        name: &'static str,
        owner: &str,
        lasts: Duration,
    ) -> Result<Option<Self>, Failed> {
        Self::insert(client, name, owner, lasts, "").await
    }

    async fn insert(
        client: &Client,
        name: &'static str,
        owner: &str,
        lasts: Duration,
        condition: &str,
    ) -> Result<Option<Self>, Failed> {
        // A count and 31 random bits. The count alone would be given out twice if the database has lost its last transactions, when a standby has
        // taken over.
        let take = format!(
            "insert into narval.leases_of_work as l (name, owner, fence, until) \
             values ($1, $2, floor(random() * 2147483648)::bigint, now() + $3 * interval '1 second') \
             on conflict (name) do update set owner = excluded.owner, \
             fence = (((l.fence >> 31) + 1) << 31) + excluded.fence, until = excluded.until {condition} returning fence"
        );
        let row = query_opt(client, &take, &[p(&name), p(&owner), p(&int(lasts.as_secs()))]).await?;
        row.map(|row| Ok(Self { name, fence: get(&row, 0)? })).transpose()
    }

    /// Who has a lease now.
    pub(super) async fn owner(client: &Client, name: &'static str) -> Result<Option<String>, Failed> {
        let find = "select owner from narval.leases_of_work where name = $1 and until > now()";
        query_opt(client, find, &[p(&name)]).await?.map(|row| get(&row, 0)).transpose()
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

    /// A lease that was taken before.
    pub(super) const fn of(name: &'static str, fence: i64) -> Self {
        Self { name, fence }
    }

    pub(super) const fn fence(&self) -> i64 {
        self.fence
    }

    /// To be called within a transaction: as [`Lease::check`], and from now on it lasts for so long. One that has run out cannot be renewed: even
    /// if nobody has taken it, others count what it stood for as interrupted.
    pub(super) async fn renew(&self, client: &Client, lasts: Duration) -> Result<(), Failed> {
        let renew = "update narval.leases_of_work set until = now() + $3 * interval '1 second' where name = $1 and fence = $2 \
             and until > clock_timestamp()";
        match execute(client, renew, &[p(&self.name), p(&self.fence), p(&int(lasts.as_secs()))]).await? {
            0 => Err(Failed::Superseded),
            _ => Ok(()),
        }
    }

    /// Lets another node take it.
    pub(super) async fn end(&self, client: &Client) -> Result<(), Failed> {
        let end = "update narval.leases_of_work set until = '-infinity' where name = $1 and fence = $2";
        execute(client, end, &[p(&self.name), p(&self.fence)]).await.map(drop)
    }
}
