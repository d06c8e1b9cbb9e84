//! Removes NARs that no path refers to.
//!
//! In one transaction, their rows go and their names become garbage: from then on they are absent on every server, and no name is ever used again.
//! Then their bytes are removed, by whoever comes by, and finally the names. A process that is killed in between leaves garbage for the next one.

use narval_files::Work;

use super::collect::stopped;
use super::grace::cutoff;
use super::lease::{Collection, keep_while};
use super::steps::Steps;
use crate::cache::Cache;
use crate::records::paths::Cutoff;
use crate::rejection::Rejection;
use crate::rule::holds;
use crate::storage::VALID_FOR;
use narval_client::clock;

/// The most names in one step.
const STEP: usize = 256;

/// How old garbage is, in seconds, before its bytes are removed, if a standby may take over that does not know of it.
const LOST_WITH_SERVER: u64 = 10 * 60;

/// How long a name is remembered that a client has given to a NAR, in seconds: the 30 days for which Nix remembers narinfos.
const FORMER_FOR: u64 = 30 * 24 * 60 * 60;

impl Cache {
    /// Removes the NARs that have had no narinfo for this many seconds. Returns the number of files, and their bytes.
    pub(crate) fn sweep(&self, grace: u64, now: u64) -> Result<(usize, u64), Rejection> {
        match Collection::begin(self)? {
            Some(collection) => self.sweep_in(&collection, grace, now, Work::unwatched()),
            // Another process is doing the same.
            None => Ok((0, 0)),
        }
    }

    pub(super) fn sweep_in(
        &self,
        collection: &Collection<'_>,
        grace: u64,
        now: u64,
        work: &Work,
    ) -> Result<(usize, u64), Rejection> {
        let cutoff = self.nar_cutoff(grace, now)?;
        work.begin("deleting", "NARs", 0, 0);
        let (mut files, mut bytes, mut steps) = (0, 0, Steps::of(STEP));
        loop {
            stopped(work)?;
            let gone = steps
                .time(|len| collection.step(|fence| self.index().discard(fence, self.id(), cutoff, (len, now))))?;
            if gone.is_empty() {
                break;
            }
            let gone_bytes: u64 = gone.iter().map(|(_, bytes)| bytes).sum();
            files += gone.len();
            bytes += gone_bytes;
            work.count(gone.len() as u64);
            work.count_bytes(gone_bytes);
        }
        collection.step(|fence| self.index().end_holds(fence, self.id(), now))?;
        self.index().forget_former(self.id(), now.saturating_sub(FORMER_FOR))?;
        // In a folder, files are looked for before anybody relies on them. What is deleted for good goes at once.
        let may_be_lost = self.index().is_shared() && self.storage().publishes_later() && grace > 0;
        let waits = if may_be_lost && holds!(Waits) { LOST_WITH_SERVER } else { 0 };
        keep_while(Some(collection), || self.remove_garbage(now.saturating_sub(waits)))?;
        Ok((files, bytes))
    }

    /// Which NARs without a path are removed: not those that a backup needs.
    pub(super) fn nar_cutoff(&self, grace: u64, now: u64) -> Result<Cutoff, Rejection> {
        let mut cutoff = cutoff(grace, now);
        if let Some(since) = self.index().held_since()? {
            cutoff.orphaned = cutoff.orphaned.min(since.saturating_sub(1));
        }
        Ok(cutoff)
    }

    /// Removes the bytes of NARs whose rows went at this time or before. Others may do the same.
    pub(crate) fn remove_garbage(&self, before: u64) -> Result<(), Rejection> {
        loop {
            let garbage = self.index().garbage(self.id(), before, STEP)?;
            if garbage.is_empty() || !self.remove_now(garbage)? {
                return Ok(());
            }
        }
    }

    /// Removes the bytes of garbage. Returns `false` if that has to be done later.
    pub(super) fn remove_now(&self, garbage: Vec<String>) -> Result<bool, Rejection> {
        // Narinfos go before their NARs.
        if !self.withdraw_removed()? {
            tracing::warn!("cache '{}': NARs are removed later, because narinfos cannot be removed now", self.name());
            return Ok(false);
        }
        self.remove_bytes(garbage.iter().map(String::as_str))?;
        self.index().forget(self.id(), garbage)?;
        Ok(true)
    }

    /// Removes files below `nar/` that have no row.
    pub(super) fn remove_bytes<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), Rejection> {
        for name in names {
            self.files().unlink_nar(name, clock::instant() + VALID_FOR).map_err(|error| {
                tracing::error!("'nar/{name}': {error}");
                Rejection::failed("the collection cannot remove a file; see the log")
            })?;
        }
        Ok(())
    }
}
