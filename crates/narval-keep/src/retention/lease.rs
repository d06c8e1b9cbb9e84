//! The lease of a collection: one process collects at a time, on whichever machine.
//!
//! Each transaction of a collection has the lease's number and renews it, so a process that was paused for longer than its lease cannot change the
//! index any more. Bytes need no such check: names of NARs are not used again, and narinfos are [pending](crate::push::pending).

use std::time::Duration;

use crate::cache::Cache;
use crate::index::{Index, IndexError};
use crate::records::leases::{Fence, collection_lease};
use crate::records::paths::CacheId;
use crate::rejection::Rejection;
use narval_client::clock;
use narval_files::renewed;

/// How often a lease is renewed during work without transactions.
fn renew_after() -> Duration {
    collection_lease() / 4
}

/// A collection that has the lease. Another process can have it when this is dropped.
pub(super) struct Collection<'a> {
    index: &'a dyn Index,
    fence: Fence,
}

impl<'a> Collection<'a> {
    /// Takes the lease; `None` while another process has it.
    pub(super) fn begin(cache: &'a Cache) -> Result<Option<Self>, IndexError> {
        let index = cache.index();
        Ok(index.begin_collection()?.map(|fence| Self { index, fence }))
    }

    /// Does a transaction, which renews the lease.
    pub(super) fn step<T>(&self, work: impl FnOnce(Fence) -> Result<T, IndexError>) -> Result<T, IndexError> {
        work(self.fence)
    }

    /// Records that this cache has been collected completely.
    pub(super) fn completed(self, cache: CacheId) -> Result<(), IndexError> {
        self.index.end_collection(self.fence, Some(cache))
    }
}

/// Does something that may take longer than a lease, and renews the lease meanwhile.
pub(super) fn keep_while<T>(
    collection: Option<&Collection<'_>>,
    work: impl FnOnce() -> Result<T, Rejection>,
) -> Result<T, Rejection> {
    let Some(Collection { index, fence, .. }) = collection.filter(|_| clock::has_threads()) else { return work() };
    let (index, fence) = (*index, *fence);
    let renew = move || {
        if let Err(error) = index.continue_collection(fence) {
            // The next transaction of the collection fails, or renews it.
            tracing::debug!("{error}");
        }
    };
    renewed(renew_after(), renew, work)
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        // Otherwise it ends by itself.
        self.index.end_collection(self.fence, None).ok();
    }
}
