//! Permits to make deltas. They bound the processors and the memory that all caches of this process use for deltas.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of deltas that are made at once; each takes a processor.
const MAKERS_MAX: usize = 4;
/// The maximum memory for making deltas, in bytes.
pub(crate) const MEMORY_MAX: u64 = 512 * 1024 * 1024;
/// The maximum number of requests that wait for a delta; each holds a worker.
const WAITING_MAX: usize = 8;
/// How long a request waits for a permit, or for a delta that another request makes. Then it gets the whole NAR.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct State {
    makers: usize,
    memory: u64,
    waiting: usize,
}

static STATE: Mutex<State> = Mutex::new(State { makers: 0, memory: 0, waiting: 0 });
static FREED: Condvar = Condvar::new();

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Half of the processors: the others answer requests.
fn makers_max() -> usize {
    // Cached: the standard library reads files to find out.
    static MAKERS: OnceLock<usize> = OnceLock::new();
    *MAKERS.get_or_init(|| (std::thread::available_parallelism().map_or(2, usize::from) / 2).clamp(1, MAKERS_MAX))
}

/// A permit to make a delta; returned when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    memory: u64,
}

impl Permit {
    /// Waits for a permit that includes this memory, in bytes. `None` if none is free in time, or too many requests are waiting.
    pub(super) fn take(memory: u64) -> Option<Self> {
        let waits = Waiting::begin()?;
        let until = Instant::now() + WAIT_MAX;
        let mut state = state();
        while state.makers >= makers_max() || state.memory.saturating_add(memory) > MEMORY_MAX {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || memory > MEMORY_MAX {
                return None;
            }
            state = FREED.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.makers += 1;
        state.memory += memory;
        drop(state);
        drop(waits);
        Some(Self { memory })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = state();
        state.makers -= 1;
        state.memory -= self.memory;
        drop(state);
        FREED.notify_all();
    }
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiting(());

impl Waiting {
    /// `None` if too many are waiting already.
    pub(super) fn begin() -> Option<Self> {
        let mut state = state();
        (state.waiting < WAITING_MAX).then(|| {
            state.waiting += 1;
            Self(())
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        state().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_freed() {
        assert!(Permit::take(MEMORY_MAX + 1).is_none());
        let one = Permit::take(MEMORY_MAX).unwrap();
        let next = std::thread::spawn(|| Permit::take(1).is_some());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!next.is_finished());
        drop(one);
        assert!(next.join().unwrap());
        let waiting: Vec<_> = std::iter::from_fn(Waiting::begin).take(WAITING_MAX + 1).collect();
        assert_eq!(waiting.len(), WAITING_MAX);
        assert!(Permit::take(1).is_none());
    }
}
