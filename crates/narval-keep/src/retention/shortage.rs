//! Remembers when the disk or a quota was full.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::grace::UNFINISHED_GRACE;

/// Space is freed at most this often, however many uploads fail at the same time.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How long a shortage counts as recent: long enough for files that were in use then.
const RECENT: Duration = Duration::from_secs(2 * UNFINISHED_GRACE);

/// When the disk or a quota was last full. Times are seconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    pub(super) noticed: AtomicU64,
    swept: AtomicU64,
}

impl Shortage {
    pub(super) fn is_recent(&self, now: u64) -> bool {
        now.saturating_sub(self.noticed.load(Ordering::Relaxed)) < RECENT.as_secs()
    }

    /// Lets the next caller free space immediately.
    #[cfg(test)]
    pub(crate) fn forget_sweep(&self) {
        self.swept.store(0, Ordering::Relaxed);
    }

    /// Whether this caller must free space.
    pub(super) fn begin(&self, now: u64) -> bool {
        let last = self.swept.load(Ordering::Relaxed);
        now.saturating_sub(last) >= AGAIN_AFTER.as_secs()
            && self.swept.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
