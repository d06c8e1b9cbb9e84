//! Retries: exponential back-off with full jitter, or `Retry-After`.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::HttpError;

/// How often, and after how long, a failed exchange is retried.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// The number of attempts, including the first.
    pub attempts: u32,
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
            base: Duration::from_millis(100),
            overload_base: Duration::from_secs(5),
            cap: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// How long to wait after `failures` failed attempts, the last of them with `error`. Returns `None` if no further
    /// attempt should be made.
    pub fn wait(&self, failures: u32, error: &HttpError) -> Option<Duration> {
        if failures >= self.attempts || !error.is_retryable() {
            return None;
        }
        if let Some(asked) = error.retry_after() {
            // A little longer than asked, so that clients do not all return at the same time.
            return (asked <= self.cap).then(|| asked + self.base.mul_f64(random_fraction()));
        }
        let base = if error.is_overload() { self.overload_base } else { self.base };
        let doubled = base.saturating_mul(1 << failures.saturating_sub(1).min(16));
        Some(doubled.min(self.cap).mul_f64(random_fraction()))
    }

    /// Runs `attempt` until it succeeds or the policy allows no other attempt.
    pub fn run<T>(&self, mut attempt: impl FnMut() -> Result<T, HttpError>) -> Result<T, HttpError> {
        let mut failures = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(error) => {
                    failures += 1;
                    let Some(wait) = self.wait(failures, &error) else { return Err(error) };
                    tracing::debug!(%error, ?wait, failures, "trying again");
                    std::thread::sleep(wait);
                }
            }
        }
    }
}

/// A number from 0 up to, but not including, 1. Each `RandomState` has fresh keys, which is random enough for jitter.
pub(crate) fn random_fraction() -> f64 {
    let bits = RandomState::new().hash_one(0u8) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn status(status: u16, retry_after: Option<u64>) -> HttpError {
        let retry_after = match retry_after {
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => None,
        };
        HttpError::Status { status, retry_after }
    }

    #[test]
    fn waits_grow_and_end() {
        let policy = RetryPolicy::default();
        for failures in 1..5 {
            let wait = policy.wait(failures, &status(502, None)).unwrap();
            assert!(wait <= policy.base * (1 << (failures - 1)), "{failures}: {wait:?}");
        }
        assert_eq!(policy.wait(5, &status(502, None)), None);
        assert_eq!(policy.wait(1, &status(404, None)), None);
        assert_eq!(policy.wait(1, &status(501, None)), None);
        assert_eq!(policy.wait(1, &status(401, None)), None);
    }

    #[test]
    fn the_server_says_how_long() {
        let policy = RetryPolicy::default();
        let wait = policy.wait(1, &status(429, Some(3))).unwrap();
        assert!(wait >= Duration::from_secs(3) && wait < Duration::from_secs(4));
        assert_eq!(policy.wait(1, &status(503, Some(3600))), None);
    }
}
