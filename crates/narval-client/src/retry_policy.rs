//! How often is tried again, and after how long: exponential back-off with full jitter, or `Retry-After`.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::error::HttpError;

/// The longest time between attempts while a server that was there is away: it is used soon after its return.
pub(crate) const AWAY_WAIT_MAX: Duration = Duration::from_secs(2);

/// How often, and after how long, a failed exchange is retried.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// The number of attempts, including the first.
    pub attempts: u32,
    /// How long further attempts are made if the server has answered before, but is away now (no connection, a broken one, or
    /// 502, 503 or 504 from a proxy). Not if there is only one attempt.
    pub patience: Duration,
    /// The initial back-off, which doubles.
    pub base: Duration,
    /// The same after 429 and 503 without `Retry-After`.
    pub overload_base: Duration,
    /// The longest wait. If `Retry-After` asks for more, there is no further attempt.
    pub cap: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 5,
            patience: Duration::from_secs(30),
            base: Duration::from_millis(100),
            overload_base: Duration::from_secs(5),
            cap: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// How long to wait after `failures` failed attempts, the last of them with `error`. `away`: for how long the server has been
    /// away, if it was there before. Returns `None` if no further attempt should be made.
    pub fn wait(&self, failures: u32, away: Option<Duration>, error: &HttpError) -> Option<Duration> {
        let returns = self.attempts > 1 && away.is_some_and(|away| away < self.patience);
        if !error.is_retryable() || (failures >= self.attempts && !returns) {
            return None;
        }
        if let Some(wait) = error.retry_after() {
            // A little longer than asked, so that clients do not all return at the same time.
            return (wait <= self.cap).then(|| wait + self.base.mul_f64(random_fraction()));
        }
        let (base, cap) = match error.is_overload() {
            true => (self.overload_base, self.cap),
            false if returns => (self.base, self.cap.min(AWAY_WAIT_MAX)),
            false => (self.base, self.cap),
        };
        let doubled = base.saturating_mul(1 << failures.saturating_sub(1).min(16));
        Some(doubled.min(cap).mul_f64(random_fraction()))
    }
}

/// A number from 0 up to, but not including, 1. Each `RandomState` has fresh keys, which is random enough for jitter.
pub fn random_fraction() -> f64 {
    let bits = RandomState::new().hash_one(0u8) >> 11;
    bits as f64 / (1u64 << 53) as f64
}
