//! Work that one process does at a time: a row with an end, and a number that grows.
//!
//! A process that was paused may go on after its lease has ended. It finds out before it changes anything: within its transaction it renews the
//! row of its number ([`renew`]), and until the end of that nobody else can take it.

use std::time::Duration;

use crate::index::tx::{NOTE, Reading, Refused, Tx, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::leases::{COLLECTION, Fence, Held, collection_lease};
use crate::records::paths::CacheId;
use crate::rule::holds;

statements! {
    /// The number is a count and 31 random bits. The count alone would be given out twice if the database has lost its last transactions, when a
    /// standby has taken over.
    TAKE(Text, Text, Int, Int) = "insert into narval.work as l (name, owner, fence, until) values ($1, $2, $3, {now} + $4) \
         on conflict (name) do update set owner = excluded.owner, fence = (((l.fence >> 31) + 1) << 31) + excluded.fence, \
         until = excluded.until where l.until < {now} returning fence";
    OWNER(Text) = "select owner from narval.work where name = $1 and until > {now}";
    /// One that has run out cannot be renewed: even if nobody has taken it, others count what it stood for as interrupted.
    RENEW(Text, Int, Int) = "update narval.work set until = {now} + $3 where name = $1 and fence = $2 and until > {clock}";
    END(Text, Int) = "update narval.work set until = 0 where name = $1 and fence = $2";
    COLLECTED(Int) = "select greatest(0, {now} - at) from narval.collected where cache = $1";
    /// A backup needs NARs that paths have had since it has begun: its number is that time.
    HOLD(Text, Text, Int) = "insert into narval.work (name, owner, fence, until) values ($1, $2, {now}, {now} + $3) on conflict (name) do nothing returning fence";
    KEEP_HOLD(Text, Int, Int) = "update narval.work set until = {now} + $3 where name = $1 and fence = $2";
    END_HOLD(Text, Int) = "delete from narval.work where name = $1 and fence = $2";
    END_OLD_HOLDS() = "delete from narval.work where name >= 'backup ' and name < 'backup!' and until < {now}";
    HELD_SINCE() = "select min(fence) from narval.work where name >= 'backup ' and name < 'backup!' and until >= {now}";
    NOTE_COLLECTED(Int) = "insert into narval.collected (cache, at) values ($1, {now}) on conflict (cache) do update set at = excluded.at";
}

/// Takes the lease of collections, if nobody has it.
fn take(tx: &mut dyn Tx, owner: &str, random: u64) -> Result<Option<Fence>, TxError> {
    let args = args![COLLECTION, owner, random, collection_lease().as_secs()];
    tx.first(&TAKE, &args, |row| row.get(0).map(Fence))
}

/// To be called within a transaction of a collection: until its end, nobody else can take the lease, which is renewed.
pub(in crate::index) fn renew(tx: &mut dyn Tx, fence: Fence) -> Result<(), TxError> {
    let renewed = tx.execute(&RENEW, &args![COLLECTION, fence.0, collection_lease().as_secs()])?;
    if renewed > 0 || !holds!(Fence) { Ok(()) } else { Err(Refused::Superseded.into()) }
}

/// This process, for messages on other machines.
pub(in crate::index) fn this_process() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("process {} on {host}", std::process::id())
}

impl dyn Index + '_ {
    /// Takes the lease for collections; `None` while another process has it. Each transaction with its number renews it for [`collection_lease`].
    pub(crate) fn begin_collection(&self) -> Result<Option<Fence>, IndexError> {
        let (owner, random) = (this_process(), self.random()?);
        self.write(NOTE, move |tx| take(tx, &owner, random))
    }

    /// 31 random bits.
    fn random(&self) -> Result<u64, IndexError> {
        let reason = |error| IndexError::Database {
            index: self.name(),
            reason: format!("no random numbers: {error}"),
            full: false,
        };
        getrandom::u32().map(|random| u64::from(random >> 1)).map_err(reason)
    }

    /// From now on, no collection removes NARs that a path has at this time or later. Returns the hold, which ends
    /// [by itself](collection_lease) unless it is kept; `None` if somebody has the one of this name.
    pub(crate) fn hold_nars(&self, of: Option<&str>) -> Result<Option<Held>, IndexError> {
        let of = of.map_or_else(|| self.random().map(|random| format!("{random:08x}")), |of| Ok(of.to_owned()))?;
        let (owner, name) = (this_process(), format!("backup {of}"));
        self.write(NOTE, move |tx| {
            tx.execute(&END_OLD_HOLDS, &[])?;
            let fence = tx.first(&HOLD, &args![&name, &owner, collection_lease().as_secs()], |row| row.get(0))?;
            Ok(fence.map(|fence| Held { name: name.clone(), fence }))
        })
    }

    /// Keeps such a hold. Returns `false` if it has ended, and is gone or another's.
    pub(crate) fn keep_hold(&self, held: &Held) -> Result<bool, IndexError> {
        let Held { name, fence } = held.clone();
        self.write(NOTE, move |tx| Ok(tx.execute(&KEEP_HOLD, &args![&name, fence, collection_lease().as_secs()])? > 0))
    }

    /// Ends it.
    pub(crate) fn end_hold(&self, held: &Held) -> Result<(), IndexError> {
        let Held { name, fence } = held.clone();
        self.write(NOTE, move |tx| tx.execute(&END_HOLD, &args![&name, fence]).map(drop))
    }

    /// Since when NARs are held, if they are.
    pub(crate) fn held_since(&self) -> Result<Option<u64>, IndexError> {
        self.read(Reading::Some, |tx| tx.one(&HELD_SINCE, &[], |row| row.get(0)))
    }

    /// Who has the lease for collections, in words for a message.
    pub(crate) fn collector(&self) -> Result<Option<String>, IndexError> {
        self.read(Reading::Some, |tx| tx.first(&OWNER, &args![COLLECTION], |row| row.get(0)))
    }

    /// Renews the lease for collections.
    pub(crate) fn continue_collection(&self, fence: Fence) -> Result<(), IndexError> {
        self.write_fenced(NOTE, fence, |_| Ok(()))
    }

    /// Ends the lease for collections. With `collected`, that cache has been collected completely.
    pub(crate) fn end_collection(&self, fence: Fence, collected: Option<CacheId>) -> Result<(), IndexError> {
        self.write(NOTE, move |tx| {
            if let Some(cache) = collected {
                tx.execute(&NOTE_COLLECTED, &args![cache])?;
            }
            tx.execute(&END, &args![COLLECTION, fence.0]).map(drop)
        })
    }

    /// How long ago a cache was last collected completely, by whichever process.
    pub(crate) fn collected(&self, cache: CacheId) -> Result<Option<Duration>, IndexError> {
        let ago = self.read(Reading::Some, |tx| tx.first(&COLLECTED, &args![cache], |row| row.get(0)))?;
        Ok(ago.map(Duration::from_secs))
    }
}
