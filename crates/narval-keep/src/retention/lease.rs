//! The lease of a collection: one process collects at a time, on whichever machine.
//!
//! Each transaction of a collection has the lease's number and renews it, so a process that was paused for longer than its lease
//! cannot change the index any more. Bytes have no such check. So no removal takes effect once half of the lease has passed since it was
//! renewed, and nobody takes over before all of it has: the other half is for clocks that differ. A process that was paused finds the
//! time over, wherever it was. Nor is anything removed once the index was away: a standby that takes over may not know what was condemned last.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime};

use crate::index::{CacheId, Fence, Index, IndexError, collection_lease};
use crate::rule::holds;
use crate::{Cache, Refusal, RefusalKind};
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
    /// By the index's clock, and by the machine's: a machine that was paused by its host may have had its clock set since.
    renewed: Cell<(Duration, SystemTime)>,
    /// Which server answered for the index when it began.
    server: u64,
    /// Whether a removal has failed that may still take effect: then nobody takes over before the lease ends by itself.
    is_uncertain: Cell<bool>,
}

impl<'a> Collection<'a> {
    /// Takes the lease; `None` while another process has it.
    pub(super) fn begin(cache: &'a Cache) -> Result<Option<Self>, IndexError> {
        let (index, server) = (cache.index(), cache.index().server());
        let renewed = Cell::new((index.clock(), clock::system_time()));
        Ok(index.begin_collection()?.map(|fence| Self::new(index, fence, server, renewed)))
    }

    /// Takes the lease from a collection that was interrupted, if it has left something in this cache; with the folder's lock.
    pub(super) fn take_over(cache: &'a Cache) -> Result<Option<Self>, IndexError> {
        let (index, server) = (cache.index(), cache.index().server());
        let renewed = Cell::new((index.clock(), clock::system_time()));
        Ok(index.take_over_collection(cache.id())?.map(|fence| Self::new(index, fence, server, renewed)))
    }

    const fn new(index: &'a dyn Index, fence: Fence, server: u64, renewed: Cell<(Duration, SystemTime)>) -> Self {
        Self { index, fence, renewed, server, is_uncertain: Cell::new(false) }
    }

    /// Does a transaction, which renews the lease.
    pub(super) fn step<T>(&self, work: impl FnOnce(Fence) -> Result<T, IndexError>) -> Result<T, IndexError> {
        let begun = (self.index.clock(), clock::system_time());
        let done = work(self.fence)?;
        self.renewed.set(begun);
        Ok(done)
    }

    /// Until when a removal may take effect. To be asked before each removal, and before the index is read for it.
    pub(super) fn may_remove(&self) -> Result<Instant, Refusal> {
        if self.index.server() != self.server && holds!(Server) {
            let message =
                "the index's database was away, or another server has taken over: the next collection goes on";
            return Err(Refusal::new(RefusalKind::Conflict, message));
        }
        if self.age() >= renew_after() && holds!(HalfLease) {
            // The transaction says whether another has the lease.
            self.step(|fence| self.index.continue_collection(fence))?;
        }
        // In this order: a pause between the two makes the time shorter.
        let now = clock::instant();
        if !holds!(HalfLease) {
            return Ok(now + collection_lease());
        }
        Ok(now + (collection_lease() / 2).saturating_sub(self.age()))
    }

    /// A removal has failed, and may still take effect until the time that it was given.
    pub(super) fn is_uncertain(&self) {
        self.is_uncertain.set(holds!(Uncertain));
    }

    /// Records that this cache has been collected completely.
    pub(super) fn completed(self, cache: CacheId) -> Result<(), IndexError> {
        self.index.end_collection(self.fence, Some(cache))
    }

    fn age(&self) -> Duration {
        let (renewed, shown) = self.renewed.get();
        let by_machine = clock::system_time().duration_since(shown).unwrap_or_default();
        let age = self.index.clock().saturating_sub(renewed);
        if holds!(Boottime) { age.max(by_machine) } else { age }
    }
}

/// Does something that may take longer than a lease, and renews the lease meanwhile.
pub(super) fn keep_while<T>(
    collection: Option<&Collection<'_>>,
    work: impl FnOnce() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
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
        if !self.is_uncertain.get() {
            // Otherwise it ends by itself.
            self.index.end_collection(self.fence, None).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Fixture;
    use narval_client::clock::{Jumping, VIRTUAL};

    /// While its machine was suspended, or paused by its host, another process has taken over. It asks before it removes anything.
    #[test]
    fn a_collection_asks_for_its_lease_after_its_machine_was_suspended() {
        for is_suspended in [true, false] {
            let fixture = Fixture::new();
            let clocks = Jumping::begin();
            let collection = Collection::begin(&fixture.cache).unwrap().unwrap();
            fixture.folder.sql("update work set until = 0");
            let other = Collection::begin(&fixture.cache).unwrap().unwrap();
            assert!(collection.may_remove().is_ok(), "no time has passed, so it is not asked");
            let clock = if is_suspended { &clocks.elapsed } else { &clocks.shown };
            clock.set(collection_lease() / 2);
            assert_eq!(collection.may_remove().unwrap_err().kind, RefusalKind::Conflict);
            let until = other.may_remove().unwrap();
            assert!(until > clock::instant(), "it still has the lease, and knows it now");
            drop((collection, other));
            VIRTUAL.set(None);
        }
    }

    /// A standby may have taken over, which does not know what was condemned last: somebody may have what would be removed.
    #[cfg(feature = "postgres")]
    #[test]
    fn a_collection_removes_nothing_after_its_database_was_away() {
        let Some(server) = crate::tests_on_postgres::postgres::PostgresServer::new() else { return };
        let folder = tempfile::tempdir().unwrap();
        let options = crate::DataOptions { database: Some(server.database().parse().unwrap()), ..Default::default() };
        let data = crate::Data::open(&folder.path().join("data"), options).unwrap();
        let cache = data.create_cache(&crate::CacheName::default(), &crate::CacheSettings::default()).unwrap();
        let collection = Collection::begin(&cache).unwrap().unwrap();
        assert!(collection.may_remove().is_ok());
        let (before, until) = (cache.index().server(), Instant::now() + Duration::from_secs(60));
        server.crash();
        server.start();
        while cache.index().server() == before || cache.index().caches().is_err() {
            assert!(Instant::now() < until, "it is not noticed");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(collection.may_remove().unwrap_err().kind, RefusalKind::Conflict);
        drop(collection);
        let next = Collection::begin(&cache).unwrap().unwrap();
        assert!(next.may_remove().is_ok());
    }

    #[test]
    fn time_passes_while_the_machine_is_suspended() {
        use rustix::time::{ClockId, clock_gettime};
        let uptime = || {
            let time = clock_gettime(ClockId::Boottime);
            Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap())
        };
        let (before, began) = (uptime(), clock::instant());
        std::thread::sleep(Duration::from_millis(20));
        let (passed, after) = (clock::since(began), uptime());
        assert!(passed >= Duration::from_millis(20) && passed <= after - before, "{passed:?}");
    }
}
