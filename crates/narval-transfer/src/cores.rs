//! Permits to use a core.
//!
//! Many downloads may be in progress, but only as many threads decode as there are cores: more would evict each other's
//! dictionaries from the CPU caches. A thread that waits for the network returns its core meanwhile; the largest NAR
//! gets the next free one.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use parking_lot::{Condvar, Mutex};
use tracing::trace_span;

use crate::timeline::TIMELINE;

struct State {
    free: usize,
    /// Those that wait: by the size of the NAR, and in their order.
    waiting: BTreeSet<(u64, Reverse<u64>)>,
    /// How many have come.
    came: u64,
}

/// The memory of a decoder for a large NAR.
const DICTIONARY_LEN: u64 = 8 * 1024 * 1024;

/// The memory that a NAR's decoder may use.
pub fn decoder_memory(nar_size: u64) -> u64 {
    nar_size.min(DICTIONARY_LEN)
}

/// The cores.
pub struct Cores {
    total: usize,
    state: Mutex<State>,
    freed: Condvar,
    /// Notified when a thread gets the core that it waited for: one more download may start. The pipeline waits on it.
    pub relaxed: Condvar,
}

impl Cores {
    /// This many, at least one.
    pub fn new(total: usize) -> Self {
        let total = total.max(1);
        let state = Mutex::new(State { free: total, waiting: BTreeSet::new(), came: 0 });
        Self { total, state, freed: Condvar::new(), relaxed: Condvar::new() }
    }

    /// How many there are.
    pub const fn total(&self) -> usize {
        self.total
    }

    /// The number of threads with data but without a core.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Waits for a core; larger NARs go first.
    pub fn take(&self, size: u64) -> Core<'_> {
        let _waiting = trace_span!(target: TIMELINE, "wait for a core").entered();
        self.wait_for_one(size);
        Core { cores: self, size }
    }

    fn wait_for_one(&self, size: u64) {
        let mut state = self.state.lock();
        state.came += 1;
        let turn = (size, Reverse(state.came));
        state.waiting.insert(turn);
        while state.free == 0 || state.waiting.last() != Some(&turn) {
            self.freed.wait(&mut state);
        }
        state.waiting.remove(&turn);
        state.free -= 1;
        if state.free > 0 && !state.waiting.is_empty() {
            self.freed.notify_all();
        }
        drop(state);
        self.relaxed.notify_one();
    }

    fn give_back(&self) {
        let mut state = self.state.lock();
        state.free += 1;
        if !state.waiting.is_empty() {
            self.freed.notify_all();
        }
    }
}

/// A core, returned when dropped.
pub struct Core<'a> {
    cores: &'a Cores,
    size: u64,
}

impl Core<'_> {
    /// Runs something that waits, and returns the core meanwhile.
    pub fn lend<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.cores.give_back();
        let waited = wait();
        self.cores.wait_for_one(self.size);
        waited
    }
}

impl Drop for Core<'_> {
    fn drop(&mut self) {
        self.cores.give_back();
    }
}
