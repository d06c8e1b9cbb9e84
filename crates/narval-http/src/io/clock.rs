#[cfg(any(test, feature = "sim"))]
use std::sync::Arc;
#[cfg(any(test, feature = "sim"))]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Milliseconds since the server was built.
pub(crate) type Millis = u64;

/// A span of time in the clock's unit.
pub(crate) fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}

/// The source of the time: the monotonic clock, or that of the simulated kernel.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    Monotonic(Instant),
    #[cfg(any(test, feature = "sim"))]
    Simulated(Arc<AtomicU64>),
}

impl Clock {
    pub(crate) fn monotonic() -> Self {
        Self::Monotonic(Instant::now())
    }

    pub(crate) fn now(&self) -> Millis {
        match self {
            Self::Monotonic(start) => u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
            #[cfg(any(test, feature = "sim"))]
            Self::Simulated(now) => now.load(Ordering::Relaxed),
        }
    }
}
