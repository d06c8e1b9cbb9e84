//! A sharded counter: incrementing it is an ordinary addition.
//!
//! An atomic read-modify-write waits for the store buffer to drain, which takes 20 to 40 ns right after the system calls of a request.
//! So each of the first threads has a shard of its own, and reading the counter adds them up.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads with a shard of their own; all others share one more.
const OWN_MAX: usize = 31;

/// See the module's description. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter(Arc<Shards>);

#[derive(Debug, Default)]
struct Shards {
    own: [AtomicU64; OWN_MAX],
    shared: AtomicU64,
}

thread_local! {
    static PLACE: Cell<usize> = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed))
    };
}

impl Counter {
    pub(crate) fn inc(&self) {
        self.inc_by(1);
    }

    pub(crate) fn inc_by(&self, by: u64) {
        match self.0.own.get(PLACE.get()) {
            // Only this thread writes here.
            Some(own) => own.store(own.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed),
            None => {
                self.0.shared.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn get(&self) -> u64 {
        let own = self.0.own.iter().map(|own| own.load(Ordering::Relaxed));
        own.fold(self.0.shared.load(Ordering::Relaxed), u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_increment_is_lost_with_more_threads_than_shards() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..OWN_MAX + 10 {
                scope.spawn(|| (0..1000).for_each(|_| counter.inc()));
            }
        });
        assert_eq!(counter.get(), (OWN_MAX as u64 + 10) * 1000);
        assert!(counter.0.shared.load(Ordering::Relaxed) >= 10_000);
    }
}
