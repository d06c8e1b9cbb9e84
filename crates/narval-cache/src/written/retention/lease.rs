//! The lease of a collection: one process collects at a time, on whichever machine.
//!
//! Each transaction of a collection has the lease's number and renews it, so a process that was paused for longer than its lease
//! cannot change the index any more. Bytes have no such check. So no removal takes effect once half of the lease has passed since it was
//! renewed, and nobody takes over before all of it has: the other half is for clocks that differ. A process that was paused finds the
//! time over, wherever it was.

use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::clock;
use crate::rule::{Rule, holds};
use crate::written::index::{CacheId, Fence, Index, IndexError, collection_lease};
use crate::written::{Cache, Refusal};

/// How often a lease is renewed during work without transactions.
fn renew_after() -> Duration {
    collection_lease() / 4
}

/// A collection that has the lease. Another process can have it when this is dropped.
pub(super) struct Collection<'a> {
    index: &'a dyn Index,
    fence: Fence,
    /// By the index's clock.
    renewed: Cell<Duration>,
    /// Whether a removal has failed that may still take effect: then nobody takes over before the lease ends by itself.
    is_uncertain: Cell<bool>,
}

impl<'a> Collection<'a> {
    /// Takes the lease; `None` while another process has it.
    pub(super) fn begin(cache: &'a Cache) -> Result<Option<Self>, IndexError> {
        let index = cache.index();
        let renewed = Cell::new(index.clock());
        Ok(index.begin_collection()?.map(|fence| Self::new(index, fence, renewed)))
    }

    /// Takes the lease from a collection that was interrupted, if it has left something in this cache; with the folder's lock.
    pub(super) fn take_over(cache: &'a Cache) -> Result<Option<Self>, IndexError> {
        let index = cache.index();
        let renewed = Cell::new(index.clock());
        Ok(index.take_over_collection(cache.id())?.map(|fence| Self::new(index, fence, renewed)))
    }

    const fn new(index: &'a dyn Index, fence: Fence, renewed: Cell<Duration>) -> Self {
        Self { index, fence, renewed, is_uncertain: Cell::new(false) }
    }

    /// Does a transaction, which renews the lease.
    pub(super) fn step<T>(&self, work: impl FnOnce(Fence) -> Result<T, IndexError>) -> Result<T, IndexError> {
        let begun = self.index.clock();
        let done = work(self.fence)?;
        self.renewed.set(begun);
        Ok(done)
    }

    /// Until when a removal may take effect. To be asked before each removal, and before the index is read for it.
    pub(super) fn may_remove(&self) -> Result<Instant, Refusal> {
        if self.age() >= renew_after() && holds(Rule::HalfLease) {
            // The transaction says whether another has the lease.
            self.step(|fence| self.index.continue_collection(fence))?;
        }
        // In this order: a pause between the two makes the time shorter.
        let now = clock::instant();
        if !holds(Rule::HalfLease) {
            return Ok(now + collection_lease());
        }
        Ok(now + (collection_lease() / 2).saturating_sub(self.age()))
    }

    /// A removal has failed, and may still take effect until the time that it was given.
    pub(super) fn is_uncertain(&self) {
        self.is_uncertain.set(holds(Rule::Uncertain));
    }

    /// Records that this cache has been collected completely.
    pub(super) fn completed(self, cache: CacheId) -> Result<(), IndexError> {
        self.index.end_collection(self.fence, Some(cache))
    }

    fn age(&self) -> Duration {
        self.index.clock().saturating_sub(self.renewed.get())
    }
}

/// Does something that may take longer than a lease, and renews the lease meanwhile.
pub(super) fn keep_while<T>(
    collection: Option<&Collection<'_>>,
    work: impl FnOnce() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let Some(Collection { index, fence, .. }) = collection.filter(|_| clock::has_threads()) else { return work() };
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(renew_after()) == Err(RecvTimeoutError::Timeout) {
                if let Err(error) = index.continue_collection(*fence) {
                    // The next transaction of the collection fails, or renews it.
                    tracing::debug!("{error}");
                }
            }
        });
        let done = work();
        drop(end);
        done
    })
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        if !self.is_uncertain.get() {
            // Otherwise it ends by itself.
            self.index.end_collection(self.fence, None).ok();
        }
    }
}
