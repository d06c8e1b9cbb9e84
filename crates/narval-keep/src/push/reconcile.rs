//! Makes files consistent with the index after a process was killed between updating both.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use narval_nix::HashPart;

use super::pending::WhichPending;
use crate::cache::Cache;
use crate::data::Data;
use crate::error::{DataError, io_error};
use crate::records::paths::{CacheId, PathRecord};
use crate::rejection::Rejection;
use crate::storage::VALID_FOR;
use narval_client::clock;

/// Pending entries that are carried out while others wait.
const STEP: usize = 1024;

impl Data {
    /// Checks everything that is pending in the index. Waits for current writers, so that their unfinished files are
    /// not taken for leftovers.
    pub(crate) fn reconcile(&self) -> Result<(), DataError> {
        let shared = self.shared();
        if shared.index.pending_after(0, 1)?.is_empty() {
            return Ok(());
        }
        let path = shared.storage.place();
        loop {
            let _alone = shared.storage.lock_exclusive().map_err(|source| io_error("lock", path, source))?;
            if shared.storage.publishes_later() {
                return self.reconcile_locked();
            }
            if !self.reconcile_some()? {
                return Ok(());
            }
        }
    }

    /// Like [`Data::reconcile`], with the exclusive lock held.
    pub(crate) fn reconcile_locked(&self) -> Result<(), DataError> {
        if self.shared().storage.publishes_later() {
            return self.publish_pending(WhichPending::Removed);
        }
        while self.reconcile_some()? {}
        Ok(())
    }

    /// Makes changes of narinfos in a folder durable, so that nobody has to look at them again. Those that are not written stay: their process is
    /// about to do it. If they are not a while later, it was killed beside this one.
    pub(crate) fn settle(&self) -> Result<(), DataError> {
        let shared = self.shared();
        // In a bucket, entries are removed one by one.
        if shared.storage.publishes_later() {
            return Ok(());
        }
        let (path, caches) = (shared.storage.place(), self.caches()?);
        let (mut settled, mut after, before) = (Vec::new(), 0, shared.looked_at.load(Ordering::Acquire));
        loop {
            let some = shared.index.pending_after(after, STEP)?;
            let Some((last, ..)) = some.last() else { break };
            after = *last;
            let records = self.records_of(&caches, &some)?;
            for (number, id, part) in some {
                let cache = caches.iter().find(|cache| cache.id() == id);
                if let (Some(cache), Some(record)) = (cache, records.get(&(id, part))) {
                    let text =
                        cache.text(&format!("{part}.narinfo")).map_err(|source| io_error("read", path, source))?;
                    if record.as_ref().map_or(&[][..], |record| &record.narinfo) != text {
                        if number > before {
                            continue;
                        }
                        let alone = shared.storage.lock_exclusive();
                        let _alone = alone.map_err(|source| io_error("lock", path, source))?;
                        cache.reconcile(&part, clock::instant() + VALID_FOR)?;
                    }
                }
                settled.push(number);
            }
        }
        shared.looked_at.store(after, Ordering::Release);
        if settled.is_empty() {
            return Ok(());
        }
        shared.storage.sync().map_err(|source| io_error("synchronise", path, source))?;
        Ok(shared.index.settle(settled)?)
    }

    /// What the index has of the paths of pending entries: one question for all of a cache, after a commit of many.
    fn records_of(
        &self,
        caches: &[Cache],
        some: &[(i64, CacheId, HashPart)],
    ) -> Result<HashMap<(CacheId, HashPart), Option<PathRecord>>, DataError> {
        let mut records = HashMap::new();
        for cache in caches {
            let of_cache = some.iter().filter(|(_, id, _)| *id == cache.id());
            let parts = of_cache.map(|(.., part)| *part).collect::<Vec<_>>();
            let found = self.shared().index.paths(cache.id(), &parts)?;
            records.extend(parts.into_iter().zip(found).map(|(part, record)| ((cache.id(), part), record)));
        }
        Ok(records)
    }

    /// Carries out the next entries, with the exclusive lock held. Returns whether there may be more.
    fn reconcile_some(&self) -> Result<bool, DataError> {
        let caches = self.caches()?;
        let cache_of = |id: CacheId| caches.iter().find(|cache| cache.id() == id);
        let done = &self.shared().reconciled;
        let some = self.shared().index.pending_after(done.load(Ordering::Acquire), STEP)?;
        let mut records = self.records_of(&caches, &some)?;
        for (number, id, part) in &some {
            let until = clock::instant() + VALID_FOR;
            // One that changed twice has been looked at.
            if let (Some(cache), Some(record)) = (cache_of(*id), records.remove(&(*id, *part))) {
                cache.reconcile_path(part, record, until)?;
            }
            // Nobody else is writing: later changes have greater numbers.
            done.fetch_max(*number, Ordering::AcqRel);
        }
        Ok(some.len() == STEP)
    }
}

impl Cache {
    /// Makes files consistent with the index, with the exclusive lock held.
    pub(crate) fn reconcile_now(&self) -> Result<(), Rejection> {
        self.data().reconcile_locked().map_err(|error| match error {
            DataError::Index(error) => error.into(),
            DataError::Io { action, path, source } => Rejection::of_file(action, path.display(), &source),
            error => {
                tracing::error!("{error}");
                Rejection::failed("the cache cannot repair its files; see its log")
            }
        })
    }

    /// Makes the narinfo of a path consistent with its record.
    fn reconcile_path(&self, part: &HashPart, record: Option<PathRecord>, until: Instant) -> Result<(), DataError> {
        let published = match record {
            Some(record) => self.files().publish(&record, None, until),
            None => self.files().withdraw(part, until),
        };
        published.map_err(|source| io_error("repair", self.files().place(), source))
    }

    /// Makes the narinfo of a path consistent with the index. In a bucket, nothing takes effect after `until`, which is counted from before the index
    /// is read: what it said before a pause may be different now.
    pub(crate) fn reconcile(&self, part: &HashPart, until: Instant) -> Result<(), DataError> {
        self.reconcile_path(part, self.index().path(self.id(), part)?, until)
    }
}
