//! Measures how fast a cache sends. A delta saves bytes, but costs processor time: over a fast connection, the whole NAR takes less time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Below this rate (bytes per second of waiting for one download), a delta is worth its processor time: the base has to be read and
/// hashed, and the delta undone, which takes about 4 ns per byte of the NAR; the compressed NAR is a quarter of it.
const FAST_BYTES_PER_S: u64 = 64 * 1024 * 1024;
/// The number of bytes that must have been received before the rate is used.
const MEASURED_BYTES_MIN: u64 = 1024 * 1024;
/// Until then, a cache is slow if its `nix-cache-info` took this long, connection included: two round trips of 10 ms. Less would
/// take a busy machine for a slow line.
const SLOW_START: Duration = Duration::from_millis(20);

/// The rate in bytes per second that is assumed until then, of a slow line: 20 Mbit/s.
const ASSUMED_BYTES_PER_S: u64 = 2_500_000;

/// The bytes received, and the time spent waiting for them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    bytes: AtomicU64,
    waited_us: AtomicU64,
    line: Mutex<Line>,
}

/// What NARs and deltas take of the line.
#[derive(Debug, Default)]
struct Line {
    /// How many are being downloaded.
    downloads: usize,
    /// Since when, and what had been received then.
    busy_since: Option<(Instant, u64)>,
    /// The bytes that were received before, and in which time.
    bytes: u64,
    busy: Duration,
    /// The bytes that the downloads under way are expected to lack, and those of the answers that are waited for.
    expected: u64,
}

/// The download of a whole NAR or a delta.
#[derive(Debug)]
pub(crate) struct Download<'a> {
    pace: &'a Pace,
    /// A delta says little about the rate: it arrives while its base is read, and is waited for only briefly.
    is_measured: bool,
    /// The bytes that are still expected of it.
    expected: u64,
}

/// A delta that was asked for, until the answer has begun.
#[derive(Debug)]
pub(crate) struct PendingDelta<'a> {
    pace: &'a Pace,
    expected: u64,
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

    /// How long a download of about this many bytes would take from now on, behind those under way and the deltas that others wait for.
    pub(crate) fn time_for(&self, len: u64) -> Duration {
        self.line().time_for(len, self.bytes.load(Ordering::Relaxed), Instant::now())
    }

    /// Counts a delta that is asked for, of which about this many bytes are expected.
    pub(crate) fn pending(&self, expected: u64) -> PendingDelta<'_> {
        let mut line = self.line();
        line.expected = line.expected.saturating_add(expected);
        PendingDelta { pace: self, expected }
    }

    /// Counts the download of a whole NAR, of which about this many bytes are expected.
    pub(crate) fn download(&self, expected: u64) -> Download<'_> {
        let mut line = self.line();
        line.downloads += 1;
        line.expected = line.expected.saturating_add(expected);
        line.busy_since.get_or_insert_with(|| (Instant::now(), self.bytes.load(Ordering::Relaxed)));
        Download { pace: self, is_measured: true, expected }
    }

    /// Counts the download of a delta, of which about this many bytes are expected.
    pub(crate) fn download_delta(&self, expected: u64) -> Download<'_> {
        let mut line = self.line();
        line.expected = line.expected.saturating_add(expected);
        Download { pace: self, is_measured: false, expected }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }
}

impl Line {
    fn time_for(&self, len: u64, received: u64, now: Instant) -> Duration {
        let (mut bytes, mut busy) = (self.bytes, self.busy);
        if let Some((since, before)) = self.busy_since {
            bytes += received.saturating_sub(before);
            busy += now.saturating_duration_since(since);
        }
        if bytes < MEASURED_BYTES_MIN {
            (bytes, busy) = (ASSUMED_BYTES_PER_S, Duration::from_secs(1));
        }
        let micros = u128::from(self.expected.saturating_add(len)) * busy.as_micros() / u128::from(bytes);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

impl Drop for PendingDelta<'_> {
    fn drop(&mut self) {
        let mut line = self.pace.line();
        line.expected = line.expected.saturating_sub(self.expected);
    }
}

impl Download<'_> {
    /// Counts bytes of it that took this long to arrive.
    pub(crate) fn received(&mut self, bytes: usize, waited: Duration) {
        if self.is_measured {
            self.pace.received(bytes, waited);
        }
        let known = self.expected.min(bytes as u64);
        self.expected -= known;
        let mut line = self.pace.line();
        line.expected = line.expected.saturating_sub(known);
    }
}

impl Drop for Download<'_> {
    fn drop(&mut self) {
        let received = self.pace.bytes.load(Ordering::Relaxed);
        let mut line = self.pace.line();
        line.expected = line.expected.saturating_sub(self.expected);
        line.downloads -= usize::from(self.is_measured);
        if line.downloads == 0
            && let Some((since, before)) = line.busy_since.take()
        {
            line.bytes += received.saturating_sub(before);
            line.busy += since.elapsed();
        }
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

    #[test]
    fn a_download_comes_after_those_under_way_at_the_rate_of_the_line() {
        let pace = Pace::default();
        assert_eq!(pace.time_for(5_000_000), Duration::from_secs(2));
        let mut one = pace.download(5_000_000);
        assert_eq!(pace.time_for(5_000_000), Duration::from_secs(4));
        one.received(500_000, Duration::ZERO);
        let two = pace.download(500_000);
        assert_eq!(pace.time_for(5_000_000), Duration::from_secs(4));
        drop((one, two));
        assert_eq!(pace.time_for(5_000_000), Duration::from_secs(2));
        let pending = pace.pending(2_500_000);
        assert_eq!(pace.time_for(5_000_000), Duration::from_secs(3));
        drop(pending);
        let mut delta = pace.download_delta(5_000_000);
        delta.received(2_500_000, Duration::ZERO);
        assert_eq!(pace.time_for(5_000_000), Duration::from_secs(3));
        drop(delta);
        assert_eq!(pace.time_for(5_000_000), Duration::from_secs(2));
        assert!(pace.is_slow(Duration::from_millis(60)), "deltas do not count");
        // What two have received together in 6 s.
        let line = Line { bytes: 3_000_000, busy: Duration::from_secs(6), ..Line::default() };
        assert_eq!(line.time_for(5_000_000, 0, Instant::now()), Duration::from_secs(10));
        let now = Instant::now();
        let line = Line { busy_since: Some((now, 1_000_000)), expected: 1_000_000, ..line };
        let later = now + Duration::from_secs(2);
        assert_eq!(line.time_for(1_000_000, 2_000_000, later), Duration::from_secs(4));
        assert!(line.time_for(u64::MAX, 2_000_000, later) > Duration::from_secs(3600));
    }
}
