//! The time, and waiting for it.
//!
//! What the commit and collection of paths does with time goes through these functions, so that a simulation decides what time it is and who
//! runs next ([`Virtual`]). Outside tests, they are what they stand for.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time of a simulated thread.
#[cfg(test)]
pub(crate) trait Virtual {
    /// What its clock shows, since 1970.
    fn shown(&self) -> Duration;
    /// How long the simulation has lasted.
    fn elapsed(&self) -> Duration;
    /// Lets others run for so long.
    fn sleep(&self, duration: Duration);
}

#[cfg(test)]
thread_local! {
    /// The time of this thread, if it is simulated.
    pub(crate) static VIRTUAL: std::cell::RefCell<Option<std::rc::Rc<dyn Virtual>>> = const { std::cell::RefCell::new(None) };
}

#[cfg(test)]
fn simulated() -> Option<std::rc::Rc<dyn Virtual>> {
    VIRTUAL.with_borrow(Option::clone)
}

/// The first moment that anybody asked about.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What the machine's clock shows.
pub(crate) fn system_time() -> SystemTime {
    #[cfg(test)]
    if let Some(time) = simulated() {
        return UNIX_EPOCH + time.shown();
    }
    SystemTime::now()
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    system_time().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The present. It also passes while the process is stopped.
pub(crate) fn instant() -> Instant {
    #[cfg(test)]
    if let Some(time) = simulated() {
        return *BEGAN + time.elapsed();
    }
    Instant::now()
}

/// How long ago this process first asked.
pub(crate) fn elapsed() -> Duration {
    let began = *BEGAN;
    instant().saturating_duration_since(began)
}

/// Waits for so long.
pub(crate) fn sleep(duration: Duration) {
    #[cfg(test)]
    if let Some(time) = simulated() {
        return time.sleep(duration);
    }
    std::thread::sleep(duration);
}

/// Takes a lock that is held during requests.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    if let Some(time) = simulated() {
        loop {
            match mutex.try_lock() {
                Ok(guard) => return guard,
                Err(std::sync::TryLockError::Poisoned(guard)) => return guard.into_inner(),
                Err(std::sync::TryLockError::WouldBlock) => time.sleep(Duration::from_millis(1)),
            }
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether work may be given to other threads. A simulation knows only its own.
pub(crate) fn has_threads() -> bool {
    #[cfg(test)]
    if simulated().is_some() {
        return false;
    }
    true
}
