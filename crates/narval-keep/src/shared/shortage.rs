//! Remembers when the disk or a quota was full.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Space is freed at most this often, however many uploads fail at the same time.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// When the disk or a quota was last full. Times are seconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    pub(crate) noticed: AtomicU64,
    swept: AtomicU64,
}

impl Shortage {
    /// Lets the next caller free space immediately.
    #[cfg(test)]
    pub(crate) fn forget_sweep(&self) {
        self.swept.store(0, Ordering::Relaxed);
    }

    /// Whether this caller must free space.
    pub(crate) fn begin(&self, now: u64) -> bool {
        let last = self.swept.load(Ordering::Relaxed);
        now.saturating_sub(last) >= AGAIN_AFTER.as_secs()
            && self.swept.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
