//! Makes files consistent with the index after a process was killed between updating both.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use narval_nix::HashPart;

use super::pending::WhichPending;
use crate::data::Data;
use crate::error::{DataError, io_error};
use crate::index::{CacheId, Lost, PathRecord, Pending};
use crate::rule::holds;
use crate::storage::VALID_FOR;
use crate::{Cache, Refusal, RefusalKind};
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

    /// Carries out the next entries, with the exclusive lock held. Returns whether there may be more.
    fn reconcile_some(&self) -> Result<bool, DataError> {
        let caches = self.caches()?;
        let cache_of = |id: CacheId| caches.iter().find(|cache| cache.id() == id);
        let done = &self.shared().reconciled;
        let some = self.shared().index.pending_after(done.load(Ordering::Acquire), STEP)?;
        // One question for all paths, after a commit of many.
        let mut records = HashMap::new();
        for cache in &caches {
            let of_cache = some.iter().filter(|(_, id, _)| *id == cache.id());
            let parts = of_cache.filter_map(|(.., pending)| pending.path().copied()).collect::<Vec<_>>();
            let found = self.shared().index.paths(cache.id(), &parts)?;
            records.extend(parts.into_iter().zip(found).map(|(part, record)| ((cache.id(), part), record)));
        }
        for (number, id, pending) in &some {
            let until = clock::instant() + VALID_FOR;
            match (cache_of(*id), pending.path()) {
                // One that changed twice has been looked at.
                (Some(cache), Some(part)) => {
                    let record = records.remove(&(*id, *part));
                    record.map_or(Ok(()), |record| cache.reconcile_path(part, record, until))?;
                }
                (Some(cache), None) => cache.reconcile(pending, *number, until)?,
                (None, _) => {}
            }
            // Nobody else is writing: later changes have greater numbers.
            done.fetch_max(*number, Ordering::AcqRel);
        }
        Ok(some.len() == STEP)
    }
}

impl Cache {
    /// Makes files consistent with the index, with the exclusive lock held.
    pub(crate) fn reconcile_now(&self) -> Result<(), Refusal> {
        self.data().reconcile_locked().map_err(|error| match error {
            DataError::Index(error) => error.into(),
            DataError::Io { action, path, source } => Refusal::of_file(action, path.display(), &source),
            error => {
                tracing::error!("{error}");
                Refusal::new(RefusalKind::Failed, "the cache cannot repair its files; see its log")
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

    /// Makes one file consistent with the index. In a bucket, nothing takes effect after `until`, which is counted from before the index
    /// is read: what it said before a pause may be different now. `number` is that of the pending entry.
    pub(crate) fn reconcile(&self, pending: &Pending, number: i64, until: Instant) -> Result<(), DataError> {
        let path = self.files().place();
        let fail = |source: io::Error| io_error("repair", path, source);
        match pending {
            Pending::Path(part) => self.reconcile_path(part, self.index().path(self.id(), part)?, until),
            Pending::File(name) => {
                let Some(nar) = self.index().file(self.id(), name)? else {
                    // A bucket has no lock: others may have stored it again when a request takes effect. Collections remove it.
                    let is_locked = !self.storage().publishes_later() || !holds!(Leased);
                    return if is_locked { self.files().unlink_nar(name, until).map_err(fail) } else { Ok(()) };
                };
                if self.files().check_nar(name, &nar).map_err(fail)? {
                    return Ok(());
                }
                // The NAR is being stored in another encoding since. The object of this name may be there: a collection removes both.
                if self.storage().publishes_later() && self.files().served_name(name, &nar) != *name && holds!(Encoding)
                {
                    return Ok(());
                }
                let lost = match self.storage().publishes_later() {
                    true => Lost::Unplaced(number),
                    false => Lost::Certainly,
                };
                if self.index().remove_file(self.id(), name, lost)? {
                    tracing::info!("cache '{}': '{name}' was not received completely, and is removed", self.name());
                }
                Ok(())
            }
        }
    }
}
