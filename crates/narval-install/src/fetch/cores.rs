//! Permits to use a core.
//!
//! Many downloads may be in progress, but only as many threads decode as there are cores: more would evict each other's
//! dictionaries from the CPU caches. A thread that waits for the network returns its core meanwhile; the largest NAR
//! gets the next free one.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

struct State {
    free: usize,
    /// The waiting threads: size of the NAR and number of the caller, which makes them unique.
    waiting: BTreeSet<(u64, u64)>,
}

/// The cores.
pub(crate) struct Cores {
    total: usize,
    state: Mutex<State>,
    freed: Condvar,
    /// Notified when a thread gets the core that it waited for: one more download may start. The pipeline waits on it.
    pub(crate) relaxed: Condvar,
}

impl Cores {
    pub(crate) fn new(total: usize) -> Self {
        let total = total.max(1);
        let state = Mutex::new(State { free: total, waiting: BTreeSet::new() });
        Self { total, state, freed: Condvar::new(), relaxed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn total(&self) -> usize {
        self.total
    }

    /// The number of threads with data but without a core.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Waits for a core; larger NARs go first. `number` is the caller's, and unique.
    pub(crate) fn take(&self, size: u64, number: u64) -> Core<'_> {
        self.wait_for_one(size, number);
        Core { cores: self, size, number }
    }

    fn wait_for_one(&self, size: u64, number: u64) {
        let mut state = self.lock();
        state.waiting.insert((size, number));
        while state.free == 0 || state.waiting.last() != Some(&(size, number)) {
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.remove(&(size, number));
        state.free -= 1;
        if state.free > 0 && !state.waiting.is_empty() {
            self.freed.notify_all();
        }
        drop(state);
        self.relaxed.notify_one();
    }

    fn give_back(&self) {
        let mut state = self.lock();
        state.free += 1;
        if !state.waiting.is_empty() {
            self.freed.notify_all();
        }
    }
}

/// A core, returned when dropped.
pub(crate) struct Core<'a> {
    cores: &'a Cores,
    size: u64,
    number: u64,
}

impl Core<'_> {
    /// Runs something that waits, and returns the core meanwhile.
    pub(crate) fn lend<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.cores.give_back();
        let waited = wait();
        self.cores.wait_for_one(self.size, self.number);
        waited
    }
}

impl Drop for Core<'_> {
    fn drop(&mut self) {
        self.cores.give_back();
    }
}
