//! Measures how fast a cache sends. A delta saves bytes, but costs processor time: over a fast connection, the whole NAR takes less time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Below this rate (bytes per second of waiting for one download), a delta is worth its processor time: the base has to be read and
/// hashed, and the delta undone, which takes about 4 ns per byte of the NAR; the compressed NAR is a quarter of it.
const FAST_BYTES_PER_S: u64 = 64 * 1024 * 1024;
/// The number of bytes that must have been received before the rate is used.
const MEASURED_BYTES_MIN: u64 = 1024 * 1024;
/// Until then, a cache is slow if its `nix-cache-info` took this long, connection included: two round trips of 10 ms. Less would
/// take a busy machine for a slow line.
const SLOW_START: Duration = Duration::from_millis(20);

/// The bytes received, and the time spent waiting for them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    bytes: AtomicU64,
    waited_us: AtomicU64,
}

impl Pace {
    /// Counts bytes that took this long to arrive.
    pub(crate) fn received(&self, bytes: usize, waited: Duration) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.waited_us.fetch_add(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether the line to a cache that was opened in this time is so slow that deltas and compression are worth it.
    pub(crate) fn is_slow(&self, opened_in: Duration) -> bool {
        let (bytes, waited_us) = (self.bytes.load(Ordering::Relaxed), self.waited_us.load(Ordering::Relaxed));
        if bytes < MEASURED_BYTES_MIN {
            return opened_in >= SLOW_START;
        }
        bytes.saturating_mul(1_000_000) / waited_us.max(1) < FAST_BYTES_PER_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_round_trip_decides_until_a_megabyte_has_arrived() {
        let (near, far) = (Duration::from_millis(1), Duration::from_millis(60));
        let pace = Pace::default();
        assert!(!pace.is_slow(near) && pace.is_slow(far));
        // 2.5 MB/s: 20 Mbit/s.
        pace.received(1_000_000, Duration::from_millis(400));
        assert!(!pace.is_slow(near));
        pace.received(1_000_000, Duration::from_millis(400));
        assert!(pace.is_slow(near) && pace.is_slow(far));
        pace.received(1_000_000_000, Duration::from_millis(400));
        assert!(!pace.is_slow(near) && !pace.is_slow(far));
    }
}
