//! Failures in the log: while an upstream refuses connections, each probe and each client would write the same line.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The shortest time between two such lines of one upstream.
const PAUSE: Duration = Duration::from_secs(10);

/// The failures of one upstream, as far as they are logged.
#[derive(Default)]
pub(in crate::upstream) struct Failures(Mutex<State>);

#[derive(Default)]
struct State {
    logged_at: Option<Instant>,
    not_logged: u64,
}

impl Failures {
    /// Records a failure. If it is to be logged, returns how many were not logged since the last one that was.
    pub(in crate::upstream) fn add(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.logged_at.is_some_and(|at| now.saturating_duration_since(at) < PAUSE) {
            state.not_logged += 1;
            return None;
        }
        state.logged_at = Some(now);
        Some(std::mem::take(&mut state.not_logged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_says_how_many_were_left_out() {
        let (failures, start) = (Failures::default(), Instant::now());
        let at = |ms| failures.add(start + Duration::from_millis(ms));
        assert_eq!(at(0), Some(0));
        assert_eq!([at(250), at(5000), at(9999)], [None; 3]);
        assert_eq!([at(10_000), at(10_001), at(30_000)], [Some(3), None, Some(1)]);
    }
}
