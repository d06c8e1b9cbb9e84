//! The atomics of the lease and the doorbell: those of `std`, or those of `loom` when they are model-checked
//! (`RUSTFLAGS="--cfg loom" cargo test -p narval-http --release --lib loom`). The code that ships is the code that is
//! checked. And a mutex that a panic does not poison.

#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::{Condvar, MutexGuard, PoisonError, TryLockError};

/// A mutex that is not poisoned: a panic of a handler ends its own request, and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Waits on a condition variable; wake-ups may be spurious. On the simulated kernel, the other participants run
/// meanwhile, one at a time.
pub(crate) fn wait<'a, T>(condition: &Condvar, mutex: &'a Mutex<T>, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    #[cfg(any(test, feature = "sim"))]
    if is_simulated() {
        drop(guard);
        crate::io::sim::yield_now();
        return mutex.lock();
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
