//! How long a worker has been busy, with the job that it runs now.
//!
//! A job's duration is known only when it ends. A worker that has waited for a minute in a handler would have been idle so far,
//! and an overload would be seen when it is over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The lowest bit: a job is running.
const RUNNING: u64 = 1;

/// The time that one thread has spent on jobs. Only that thread writes.
///
/// One word, so that readers never see half of a change: the sum of all jobs in nanoseconds, less the time at which the job that
/// is running began.
#[derive(Debug)]
pub(crate) struct BusyTime {
    since: Instant,
    word: AtomicU64,
}

impl Default for BusyTime {
    fn default() -> Self {
        Self { since: Instant::now(), word: AtomicU64::new(0) }
    }
}

impl BusyTime {
    /// A job begins.
    pub(crate) fn begin(&self, now: Instant) {
        let sum = self.word.load(Ordering::Relaxed) >> 1;
        self.word.store((sum.wrapping_sub(self.nanos(now)) << 1) | RUNNING, Ordering::Relaxed);
    }

    /// The job ends. Without a job, nothing changes.
    pub(crate) fn end(&self, now: Instant) {
        self.word.store(nanos_of(self.get(now)) << 1, Ordering::Relaxed);
    }

    /// The sum, up to this moment.
    pub(crate) fn get(&self, now: Instant) -> Duration {
        let word = self.word.load(Ordering::Relaxed);
        let sum =
            if word & RUNNING == 0 { word >> 1 } else { (word >> 1).wrapping_add(self.nanos(now)) & (u64::MAX >> 1) };
        Duration::from_nanos(sum)
    }

    fn nanos(&self, now: Instant) -> u64 {
        nanos_of(now.saturating_duration_since(self.since))
    }
}

fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_that_runs_counts() {
        let busy = BusyTime::default();
        let at = |seconds: u64| busy.since + Duration::from_secs(seconds);
        assert_eq!(busy.get(at(5)), Duration::ZERO);
        busy.begin(at(10));
        assert_eq!(busy.get(at(10)), Duration::ZERO);
        assert_eq!(busy.get(at(13)), Duration::from_secs(3));
        busy.end(at(14));
        assert_eq!(busy.get(at(20)), Duration::from_secs(4));
        busy.begin(at(30));
        assert_eq!(busy.get(at(31)), Duration::from_secs(5));
        busy.end(at(31));
        busy.end(at(40));
        assert_eq!(busy.get(at(50)), Duration::from_secs(5));
    }
}
