//! The circuit breaker: a cache that keeps failing is not queried for a while.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::clock;

/// Consecutive failures that open it.
const FAILURES_MAX: u32 = 3;
/// How long it stays open, before one request may try again.
const OPEN_FOR: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    failures: u32,
    open_until: Option<Instant>,
}

/// Counts failures of one cache.
#[derive(Default)]
pub struct Breaker(Mutex<State>);

impl Breaker {
    /// Whether to skip the cache. When the time is over, exactly one caller may try.
    pub fn is_open(&self) -> bool {
        let mut state = self.0.lock();
        match state.open_until {
            Some(until) if clock::instant() < until => true,
            Some(_) => {
                state.open_until = Some(clock::instant() + OPEN_FOR);
                false
            }
            None => false,
        }
    }

    /// Whether its last requests have failed. Unlike [`is_open`](Self::is_open), this lets nobody try.
    pub fn is_failing(&self) -> bool {
        self.0.lock().open_until.is_some()
    }

    /// Records a response of the cache.
    pub fn succeeded(&self) {
        *self.0.lock() = State::default();
    }

    /// Records a failure; returns whether the breaker is open now.
    pub fn failed(&self) -> bool {
        let mut state = self.0.lock();
        state.failures += 1;
        if state.failures >= FAILURES_MAX {
            state.open_until = Some(clock::instant() + OPEN_FOR);
        }
        state.open_until.is_some()
    }

    /// Opens it immediately.
    pub fn trip(&self) {
        *self.0.lock() = State { failures: FAILURES_MAX, open_until: Some(clock::instant() + OPEN_FOR) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_failures_in_a_row() {
        let breaker = Breaker::default();
        assert!(!breaker.failed() && !breaker.failed() && !breaker.is_open());
        breaker.succeeded();
        assert!(!breaker.failed() && !breaker.failed() && breaker.failed());
        assert!(breaker.is_open());
        breaker.0.lock().open_until = Some(clock::instant());
        assert!(!breaker.is_open(), "one may try");
        assert!(breaker.is_open(), "only one");
        breaker.succeeded();
        assert!(!breaker.is_open());
    }
}
