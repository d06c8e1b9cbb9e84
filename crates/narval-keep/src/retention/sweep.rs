//! Removes NARs that no path refers to.
//!
//! A name that has been orphaned for long enough is first doomed. Any upload, commit or request of the NAR in the following minutes, on any
//! server, keeps it. After that it is condemned in one transaction: from then on it is absent on every server, and no upload can use
//! the name. Then its bytes are removed, and finally its row. If the process is killed in between, the name stays condemned until the
//! next collection, or the next upload of this NAR, removes it.

use narval_files::Work;

use super::collect::stopped;
use super::grace::cutoff;
use super::lease::{Collection, keep_while};
use super::steps::Steps;
use crate::index::Cutoff;
use crate::{Cache, Refusal, RefusalKind};

/// The most names condemned in one step.
const STEP: usize = 256;

impl Cache {
    /// Removes the NARs that have had no narinfo for this many seconds: immediately if it is less than
    /// [`COLLECT_GRACE`](super::COLLECT_GRACE), otherwise after an earlier collection has doomed them. Returns the number of files, and
    /// their bytes.
    pub(crate) fn sweep(&self, grace: u64, now: u64) -> Result<(usize, u64), Refusal> {
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
    ) -> Result<(usize, u64), Refusal> {
        let cutoff = self.nar_cutoff(grace, now)?;
        work.begin("deleting", "NARs", 0, 0);
        let swept = self.remove_condemned(collection, Some(cutoff), work)?;
        while collection.step(|fence| self.index().doom(fence, self.id(), cutoff, STEP, now))? == STEP {}
        Ok(swept)
    }

    /// Which NARs without a path are removed: not those that a backup needs.
    pub(super) fn nar_cutoff(&self, grace: u64, now: u64) -> Result<Cutoff, Refusal> {
        let mut cutoff = cutoff(grace, now);
        if let Some(since) = self.index().held_since()? {
            cutoff.orphaned = cutoff.orphaned.min(since.saturating_sub(1));
        }
        Ok(cutoff)
    }

    /// Removes the NARs of deleted paths, and names that interrupted collections have condemned.
    pub(super) fn sweep_deleted(&self, collection: &Collection<'_>) -> Result<(usize, u64), Refusal> {
        self.remove_condemned(collection, None, Work::unwatched())
    }

    fn remove_condemned(
        &self,
        collection: &Collection<'_>,
        cutoff: Option<Cutoff>,
        work: &Work,
    ) -> Result<(usize, u64), Refusal> {
        let (mut files, mut bytes, mut steps) = (0, 0, Steps::of(STEP));
        loop {
            stopped(work)?;
            let _alone = self.alone()?;
            let (removed, removed_bytes) = steps.time(|len| self.remove_some(collection, cutoff, len))?;
            if removed == 0 {
                return Ok((files, bytes));
            }
            files += removed;
            bytes += removed_bytes;
            work.count(removed as u64);
            work.count_bytes(removed_bytes);
        }
    }

    /// Condemns and removes a limited number of names, with the exclusive lock held.
    fn remove_some(
        &self,
        collection: &Collection<'_>,
        cutoff: Option<Cutoff>,
        len: usize,
    ) -> Result<(usize, u64), Refusal> {
        if !keep_while(Some(collection), || self.withdraw_removed())? {
            tracing::warn!("cache '{}': NARs are removed later, because narinfos cannot be removed now", self.name());
            return Ok((0, 0));
        }
        let condemned = collection.step(|fence| self.index().condemn(fence, self.id(), cutoff, len))?;
        if !condemned.is_empty() {
            self.remove_bytes(collection, &condemned)?;
            collection.step(|fence| self.index().forget(fence, self.id(), &condemned))?;
        }
        Ok((condemned.len(), condemned.iter().map(|(_, bytes)| bytes).sum()))
    }

    /// Removes immediately what an interrupted collection or deletion has condemned. A collection holds the folder's lock while it removes
    /// files, so if this process gets the lock, no collection is running.
    pub(crate) fn finish_interrupted(&self) -> Result<(), Refusal> {
        let _alone = self.alone()?;
        let Some(collection) = Collection::take_over(self)? else { return Ok(()) };
        while self.remove_some(&collection, None, STEP)?.0 > 0 {}
        Ok(())
    }

    /// Removes the files of condemned names. The index is not asked for a name again: what it remembers while its database is away is not
    /// condemned.
    pub(super) fn remove_bytes(&self, collection: &Collection<'_>, condemned: &[(String, u64)]) -> Result<(), Refusal> {
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!("{error}");
            // A folder answers for certain.
            if self.storage().publishes_later() {
                collection.is_uncertain();
            }
            Refusal::new(RefusalKind::Failed, "the collection cannot remove a file; see the log")
        };
        for (name, _) in condemned {
            let until = collection.may_remove()?;
            self.files().unlink_nar(name, until).map_err(|error| failed(&format_args!("'nar/{name}': {error}")))?;
        }
        Ok(())
    }
}
