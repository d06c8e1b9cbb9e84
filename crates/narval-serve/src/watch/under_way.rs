//! What is under way now: how many, and for downloads and uploads which.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// The maximum number of transfers that are listed; further ones are only counted.
const LISTED_MAX: usize = 512;

/// A gauge of what has begun and has not ended. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gauge(Arc<AtomicU64>);

/// One that is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct GaugeGuard(Arc<AtomicU64>);

impl Gauge {
    /// Counts one more.
    pub(crate) fn begin(&self) -> GaugeGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        GaugeGuard(Arc::clone(&self.0))
    }

    /// How many there are now.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Downloads or uploads that are under way, with what is known of each. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers {
    count: Gauge,
    listed: Arc<Listed>,
}

#[derive(Debug, Default)]
struct Listed {
    list: Mutex<BTreeMap<u64, Arc<Transfer>>>,
    next: AtomicU64,
}

/// A download or an upload.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// The name of the file in the request.
    pub(crate) name: Box<str>,
    pub(crate) began: Instant,
    /// Bytes, if it is known how many there are.
    pub(crate) length: Option<u64>,
    done: Arc<AtomicU64>,
}

impl Transfer {
    /// Bytes so far.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

/// A transfer that is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Transferring {
    number: u64,
    listed: Arc<Listed>,
    /// Where its bytes are counted.
    pub(crate) done: Arc<AtomicU64>,
    _begun: GaugeGuard,
}

impl Transfers {
    /// Counts and lists one more.
    pub(crate) fn begin(&self, name: &str, length: Option<u64>) -> Transferring {
        let (done, listed) = (Arc::<AtomicU64>::default(), Arc::clone(&self.listed));
        let number = listed.next.fetch_add(1, Ordering::Relaxed);
        let transfer = Transfer { name: name.into(), began: Instant::now(), length, done: Arc::clone(&done) };
        let mut list = listed.list.lock();
        if list.len() < LISTED_MAX {
            list.insert(number, Arc::new(transfer));
        }
        drop(list);
        Transferring { number, listed, done, _begun: self.count.begin() }
    }

    /// How many there are now.
    pub(crate) fn count(&self) -> u64 {
        self.count.count()
    }

    /// The first ones of those that are listed, the oldest first.
    pub(crate) fn list(&self, max: usize) -> Vec<Arc<Transfer>> {
        self.listed.list.lock().values().take(max).cloned().collect()
    }
}

impl Drop for Transferring {
    fn drop(&mut self) {
        self.listed.list.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_listed_until_they_end_and_only_so_many() {
        let transfers = Transfers::default();
        let first = transfers.begin("first", Some(10));
        first.done.store(4, Ordering::Relaxed);
        let others: Vec<_> = (0..LISTED_MAX + 5).map(|number| transfers.begin(&number.to_string(), None)).collect();
        let listed = transfers.list(usize::MAX);
        assert_eq!((transfers.count(), listed.len()), (LISTED_MAX as u64 + 6, LISTED_MAX));
        assert_eq!((&*listed[0].name, listed[0].done(), listed[0].length), ("first", 4, Some(10)));
        drop(first);
        assert_eq!(&*transfers.list(1)[0].name, "0");
        drop(others);
        assert!(transfers.count() == 0 && transfers.list(1).is_empty());
    }
}
