//! The time, and waiting for it.
//!
//! What the commit and collection of paths does with time goes through these functions, so that a simulation decides what time it is and who
//! runs next (`Virtual`). Outside tests, they are what they stand for.
//!
//! Time that limits what may be done also passes while the machine is suspended. [`Instant::now`] stands still then (`CLOCK_MONOTONIC`), so
//! [`instant`] counts from `CLOCK_BOOTTIME`. Compare its results only with each other.

use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The time of a simulated thread.
#[cfg(any(test, feature = "simulation"))]
pub trait Virtual {
    /// What its clock shows, since 1970.
    fn shown(&self) -> Duration;
    /// How long the simulation has lasted.
    fn elapsed(&self) -> Duration;
    /// Lets others run for so long.
    fn sleep(&self, duration: Duration);
}

#[cfg(any(test, feature = "simulation"))]
thread_local! {
    /// The time of this thread, if it is simulated.
    pub static VIRTUAL: std::cell::RefCell<Option<std::rc::Rc<dyn Virtual>>> = const { std::cell::RefCell::new(None) };
}

/// Clocks that tests set.
#[cfg(any(test, feature = "simulation"))]
#[derive(Default)]
pub struct Jumping {
    /// What it shows, since 1970.
    pub shown: std::cell::Cell<Duration>,
    /// How long it has run.
    pub elapsed: std::cell::Cell<Duration>,
}

#[cfg(any(test, feature = "simulation"))]
impl Jumping {
    /// Those of this thread, until [`VIRTUAL`] is set again.
    pub fn begin() -> std::rc::Rc<Self> {
        let clocks = std::rc::Rc::new(Self::default());
        VIRTUAL.set(Some(std::rc::Rc::<Self>::clone(&clocks)));
        clocks
    }
}

#[cfg(any(test, feature = "simulation"))]
impl Virtual for Jumping {
    fn shown(&self) -> Duration {
        self.shown.get()
    }

    fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }

    fn sleep(&self, _: Duration) {}
}

#[cfg(any(test, feature = "simulation"))]
fn simulated() -> Option<std::rc::Rc<dyn Virtual>> {
    VIRTUAL.with_borrow(Option::clone)
}

/// The first moment that anybody asked about, and how long the machine had been running then.
static BEGAN: LazyLock<(Instant, Duration)> = LazyLock::new(|| (Instant::now(), uptime()));

/// How long the machine has been running or suspended.
fn uptime() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is negative, and there are less than 10^9 nanoseconds.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What the machine's clock shows.
pub fn system_time() -> SystemTime {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(time) = simulated() {
        return UNIX_EPOCH + time.shown();
    }
    SystemTime::now()
}

/// Seconds since 1970.
pub fn now() -> u64 {
    system_time().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The present. It also passes while the process is stopped, and while the machine is suspended.
pub fn instant() -> Instant {
    BEGAN.0 + elapsed()
}

/// How long ago that was.
pub fn since(instant: Instant) -> Duration {
    self::instant().saturating_duration_since(instant)
}

/// How long ago this process first asked.
pub fn elapsed() -> Duration {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(time) = simulated() {
        return time.elapsed();
    }
    let (_, began) = *BEGAN;
    uptime().saturating_sub(began)
}

/// Waits for so long.
pub fn sleep(duration: Duration) {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(time) = simulated() {
        return time.sleep(duration);
    }
    std::thread::sleep(duration);
}

/// Takes a lock that is held during requests.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(any(test, feature = "simulation"))]
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

/// Waits until something has changed that a mutex guards.
pub fn wait<'a, T>(mutex: &'a Mutex<T>, changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(time) = simulated() {
        drop(guard);
        time.sleep(Duration::from_millis(1));
        return mutex.lock().unwrap_or_else(PoisonError::into_inner);
    }
    let _ = mutex;
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Whether work may be given to other threads. A simulation knows only its own.
pub fn has_threads() -> bool {
    #[cfg(any(test, feature = "simulation"))]
    if simulated().is_some() {
        return false;
    }
    true
}
