//! What is counted of the requests to an upstream.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use narval_client::trace::{Times, TimesCounter};

use super::health::Standing;
use super::neighbour_counts::NeighbourStats;

/// Upper bounds of the times to the first byte, in seconds.
pub const SECONDS: [f64; 8] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];

/// The requests to one upstream.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Counts {
    found: AtomicU64,
    absent: AtomicU64,
    failed: AtomicU64,
    late: AtomicU64,
    hedges: AtomicU64,
    failovers: AtomicU64,
    used: AtomicU64,
    filtered: AtomicU64,
    saved_micros: AtomicU64,
    times: TimesCounter<{ SECONDS.len() + 1 }>,
}

/// How a request to an upstream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum RequestOutcome {
    Found,
    Absent,
    Failed,
}

/// What the requests to one upstream have come to.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamStats {
    /// Its address.
    pub url: String,
    /// Whether it responds, as far as the last requests have shown.
    pub is_up: bool,
    /// Whether its last request failed or came late: it is asked after the others.
    pub is_doubtful: bool,
    /// Narinfos and NARs that it had.
    pub found: u64,
    /// Those that it did not have.
    pub absent: u64,
    /// Requests that failed, or were answered with something invalid.
    pub failed: u64,
    /// Requests that were not answered in time.
    pub late: u64,
    /// Requests that were made although another upstream might still have answered in time.
    pub hedges: u64,
    /// Requests that were made because another upstream had used up its time.
    pub failovers: u64,
    /// Answers of it that were used.
    pub used: u64,
    /// Narinfos that it was not asked for, because its presence filter does not have them.
    pub filtered: u64,
    /// How much longer clients would have waited for it, if no other upstream had been asked.
    pub saved: Duration,
    /// The mean time of an answer, the last ones counting most; `None` before the first.
    pub usual: Option<Duration>,
    /// Times to the first byte of an answer, by [`SECONDS`].
    pub times: Times<{ SECONDS.len() }>,
}

/// What is kept of all upstreams of a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamsStats {
    /// The upstreams, by priority.
    pub upstreams: Vec<UpstreamStats>,
    /// Narinfos that clients were told to be absent because upstreams did not answer in time.
    pub counted_absent: u64,
    /// Bytes of the files that are kept.
    pub kept_bytes: u64,
    /// How many there may be.
    pub kept_bytes_max: u64,
    /// NARs that were sent from files that are kept.
    pub kept_hits: u64,
    /// NARs that were fetched.
    pub kept_misses: u64,
    /// What has passed between neighbours, if this machine takes part.
    pub neighbours: Option<NeighbourStats>,
}

impl Counts {
    /// Counts a request that took so long until the first byte of its answer.
    pub(in crate::upstream) fn add(&self, outcome: RequestOutcome, time: Duration) {
        let counter = match outcome {
            RequestOutcome::Found => &self.found,
            RequestOutcome::Absent => &self.absent,
            RequestOutcome::Failed => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if outcome != RequestOutcome::Failed {
            self.times.add(&SECONDS, time);
        }
    }

    /// Counts a request that was not answered in time.
    pub(in crate::upstream) fn late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was made although another upstream might still have answered in time.
    pub(in crate::upstream) fn hedged(&self) {
        self.hedges.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was made because another upstream had used up its time.
    pub(in crate::upstream) fn failed_over(&self) {
        self.failovers.fetch_add(1, Ordering::Relaxed);
    }

    /// Hedges and failovers.
    #[cfg(test)]
    pub(in crate::upstream) fn beside(&self) -> [u64; 2] {
        [&self.hedges, &self.failovers].map(|count| count.load(Ordering::Relaxed))
    }

    /// Counts an answer that was used.
    pub(in crate::upstream) fn won(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a narinfo that it was not asked for.
    pub(in crate::upstream) fn filtered(&self) {
        self.filtered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an answer, or a failure, that came so much later than the answer that was used.
    pub(in crate::upstream) fn saved(&self, time: Duration) {
        self.saved_micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(0), Ordering::Relaxed);
    }

    pub(in crate::upstream) fn stats(&self, url: String, standing: Standing, usual: Option<Duration>) -> UpstreamStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        UpstreamStats {
            url,
            is_up: standing != Standing::Down,
            is_doubtful: standing != Standing::Good,
            late: get(&self.late),
            hedges: get(&self.hedges),
            failovers: get(&self.failovers),
            used: get(&self.used),
            filtered: get(&self.filtered),
            saved: Duration::from_micros(get(&self.saved_micros)),
            usual,
            found: get(&self.found),
            absent: get(&self.absent),
            failed: get(&self.failed),
            times: self.times.times(),
        }
    }
}
