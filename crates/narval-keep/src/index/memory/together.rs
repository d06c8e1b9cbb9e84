//! NARs that are recorded together: uploads that end while a transaction is on its way share the next one.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::index::error::IndexError;
use crate::records::paths::{CacheId, NamedNar};
use narval_client::clock;

/// The most NARs in one transaction.
const TOGETHER_MAX: usize = 64;

/// A NAR that is to be recorded.
#[derive(Debug, Clone)]
pub(in crate::index) struct Addition {
    pub(in crate::index) cache: CacheId,
    pub(in crate::index) nar: NamedNar,
    pub(in crate::index) now: u64,
    /// When it is too late.
    pub(in crate::index) until: u64,
}

/// Those that wait. One of the waiting threads does the transaction for all.
#[derive(Default)]
pub(in crate::index) struct Together {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// In the order of their numbers. Each has a thread that waits, so there are no more than uploads.
    waiting: Vec<(u64, Addition)>,
    next: u64,
    /// Whether a thread is doing a transaction.
    is_busy: bool,
    /// Whether the addition with this number was recorded.
    done: HashMap<u64, Result<(), IndexError>>,
}

/// A transaction on its way. Its additions count as not recorded until it is told otherwise, even after a panic.
struct Batch<'a> {
    together: &'a Together,
    numbers: Vec<u64>,
    recorded: Result<(), IndexError>,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let mut state = self.together.lock();
        state.is_busy = false;
        for number in &self.numbers {
            state.done.insert(*number, self.recorded.clone());
        }
        self.together.changed.notify_all();
    }
}

impl Together {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an addition recorded with those of other threads. `record` records all or none of them.
    pub(in crate::index) fn add(
        &self,
        addition: Addition,
        record: impl Fn(&[Addition]) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push((number, addition));
        loop {
            if let Some(recorded) = state.done.remove(&number) {
                return recorded;
            }
            if state.is_busy {
                state = clock::wait(&self.state, &self.changed, state);
                continue;
            }
            state.is_busy = true;
            let (numbers, additions): (Vec<u64>, Vec<Addition>) = state.take_some().into_iter().unzip();
            drop(state);
            let unknown = Err(IndexError::Busy { index: String::new() });
            let mut batch = Batch { together: self, numbers, recorded: unknown };
            batch.recorded = record(&additions);
            drop(batch);
            state = self.lock();
        }
    }
}

impl State {
    /// The first ones of one cache.
    fn take_some(&mut self) -> Vec<(u64, Addition)> {
        let Some(cache) = self.waiting.first().map(|(_, addition)| addition.cache) else { return Vec::new() };
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        for waiting in std::mem::take(&mut self.waiting) {
            let fits = waiting.1.cache == cache && taken.len() < TOGETHER_MAX;
            if fits { taken.push(waiting) } else { left.push(waiting) }
        }
        self.waiting = left;
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use narval_nix::{Compression, Sha256};

    use super::*;
    use crate::records::paths::NarRecord;

    fn addition(cache: i64, name: &str) -> Addition {
        let hash = Sha256::of(name.as_bytes());
        let nar = NarRecord {
            nar_hash: hash,
            nar_size: 1,
            compression: Compression::None,
            file_hash: hash,
            file_size: 1,
            listing_size: None,
            found: Vec::new(),
        };
        Addition { cache: CacheId(cache), nar: (name.to_owned(), nar), now: 1, until: 2 }
    }

    /// While the first transaction is on its way, 20 more wait: they are one transaction, but for another cache.
    #[test]
    fn those_that_wait_share_a_transaction() {
        let (together, transactions) = (Together::default(), AtomicUsize::new(0));
        let (start, started) = channel();
        std::thread::scope(|scope| {
            let (together, transactions) = (&together, &transactions);
            let first = scope.spawn(move || {
                together.add(addition(1, "first"), |_| {
                    start.send(()).unwrap();
                    while together.lock().waiting.len() < 21 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    transactions.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
            });
            started.recv().unwrap();
            let count = |_: &[Addition]| {
                transactions.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            let names: Vec<(i64, String)> = (0..20).map(|number| (1, number.to_string())).collect();
            let more = [(2, "other".to_owned())];
            let threads: Vec<_> = names
                .into_iter()
                .chain(more)
                .map(|(cache, name)| scope.spawn(move || together.add(addition(cache, &name), count)))
                .collect();
            assert!(threads.into_iter().chain([first]).all(|thread| thread.join().unwrap().is_ok()));
        });
        assert_eq!(transactions.load(Ordering::SeqCst), 3);
        assert!(together.lock().done.is_empty());
    }

    #[test]
    fn after_a_failure_each_is_told() {
        let together = Together::default();
        let busy = || IndexError::Busy { index: String::new() };
        assert!(together.add(addition(1, "a"), |_| Err(busy())).unwrap_err().is_unavailable());
        assert!(
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| together.add(addition(1, "b"), |_| panic!())))
                .is_err()
        );
        together.add(addition(1, "c"), |_| Ok(())).unwrap();
    }
}
