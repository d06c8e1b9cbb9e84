//! The atomics of the lease and the doorbell: those of `std`, or those of `loom` when they are model-checked
//! (`RUSTFLAGS="--cfg loom" cargo test -p narval-http --release --lib loom`). The code that ships is the code that is
//! checked.

#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Waits on a condition variable; wake-ups may be spurious. On the simulated kernel, the other participants run
/// meanwhile, one at a time.
pub(crate) fn wait<'a, T>(condition: &Condvar, mutex: &'a Mutex<T>, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    #[cfg(any(test, feature = "sim"))]
    if is_simulated() {
        drop(guard);
        crate::io::sim::yield_now();
        return mutex.lock().unwrap_or_else(PoisonError::into_inner);
    }
    #[cfg(not(any(test, feature = "sim")))]
    let _ = mutex;
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Whether this thread belongs to the simulated server, where no time passes while it waits.
pub(crate) fn is_simulated() -> bool {
    #[cfg(any(test, feature = "sim"))]
    return crate::io::sim::is_participant();
    #[cfg(not(any(test, feature = "sim")))]
    false
}
