//! What is known of one upstream: whether it answers, how soon, and how often it has what is asked for.

use std::time::{Duration, Instant};

use narval_client::clock;
use parking_lot::Mutex;

/// Consecutive failures after which it is not asked, except for probes. One that had clients wait counts as two.
const FAILURES_MAX: u32 = 3;
/// How many requests, none of which is answered in time, show that an upstream is silent: it is not asked any more then, except for probes.
const SILENT_MIN: usize = 4;
/// The longest time that a `Retry-After` is honoured for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// How long others are preferred to one that did not send a NAR; it doubles.
const NARS_DOUBTED_FOR: Duration = Duration::from_secs(5);
const NARS_DOUBTED_FOR_MAX: Duration = Duration::from_secs(120);
/// How many of the last answers the 95th percentile is of.
const SAMPLES: usize = 64;
/// From how many on it is known.
const SAMPLES_MIN: usize = 8;
/// The weight of one answer in the estimates.
const WEIGHT: f64 = 0.25;
/// The weight of one answer in the share of paths that it has.
const WEIGHT_OF_SHARE: f64 = 1.0 / 32.0;

/// Whether to ask it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::upstream) enum Standing {
    /// Its last request was answered.
    Good,
    /// Its last request failed, or was not answered in time: it is asked after the others, and none waits for it.
    Doubtful,
    /// It is not asked: it keeps failing, or has said when to come back.
    Down,
}

/// The state of one upstream.
#[derive(Default)]
pub(in crate::upstream) struct Health(Mutex<State>);

#[derive(Default)]
struct State {
    failures: u32,
    /// The same of requests that were not answered in time.
    late: u32,
    /// When it was found to be late for the last time.
    late_at: Option<Instant>,
    /// The longest time within which it has not answered: nothing is known of those who wait longer.
    late_within: Duration,
    /// When it answered last.
    answered_at: Option<Instant>,
    /// Whether nothing of what it was asked at one time was answered, nor anything since.
    is_silent: bool,
    /// NARs that it did not send, in a row, and until when others are preferred therefore. Its narinfos say nothing about that.
    nars_failed: u32,
    nars_doubted_until: Option<Instant>,
    /// Until when it has asked not to be asked.
    rests_until: Option<Instant>,
    /// Whether a thread finds out when it answers again.
    is_probed: bool,
    /// The mean time of an answer, in seconds, the last ones counting most.
    time: Option<f64>,
    /// The share of the paths asked for that it did not have.
    misses: Share,
    /// The times of the last answers, in seconds, in a ring.
    samples: Vec<f64>,
    at: usize,
}

struct Share(f64);

/// Nothing is known.
impl Default for Share {
    fn default() -> Self {
        Self(0.5)
    }
}

impl Health {
    /// Whether to ask it for an answer that is needed within this time.
    pub(in crate::upstream) fn standing(&self, within: Duration) -> Standing {
        let state = self.0.lock();
        let rests = state.rests_until.is_some_and(|until| clock::instant() < until);
        let late = match state.is_silent {
            _ if within > state.late_within => 0,
            true => FAILURES_MAX,
            false => state.late,
        };
        match state.failures.saturating_add(late) {
            _ if rests => Standing::Down,
            0 if !state.doubts_nars() => Standing::Good,
            FAILURES_MAX.. => Standing::Down,
            _ => Standing::Doubtful,
        }
    }

    /// Records an answer. One that came too late ends no doubts.
    pub(in crate::upstream) fn answered(&self, has: bool, time: Duration, in_time: bool) {
        let mut state = self.0.lock();
        let missed = if has { 0.0 } else { 1.0 };
        state.misses.0 += (missed - state.misses.0) * WEIGHT_OF_SHARE;
        state.took(time.as_secs_f64());
        let (at, time) = (state.at, time.as_secs_f64());
        match state.samples.get_mut(at) {
            Some(sample) => *sample = time,
            None => state.samples.push(time),
        }
        state.at = (at + 1) % SAMPLES;
        (state.answered_at, state.is_silent) = (Some(clock::instant()), false);
        if in_time {
            (state.failures, state.late, state.late_within, state.rests_until) = (0, 0, Duration::ZERO, None);
        }
    }

    /// Records that another one has answered meanwhile: it takes this long at least.
    pub(in crate::upstream) fn overtaken(&self, elapsed: Duration) {
        let mut state = self.0.lock();
        if state.time.is_none_or(|time| time < elapsed.as_secs_f64()) {
            state.took(elapsed.as_secs_f64());
        }
    }

    /// Records a failure. Returns whether somebody must probe it from now on.
    pub(in crate::upstream) fn failed(&self, retry_after: Option<Duration>) -> bool {
        let mut state = self.0.lock();
        if let Some(asked) = retry_after {
            state.rests_until = Some(clock::instant() + asked.min(RETRY_AFTER_MAX));
        }
        state.failures = state.failures.saturating_add(1);
        state.must_be_probed()
    }

    /// Records that what was asked then was not answered within this time, and how many requests are not answered now. Those that were
    /// asked at the same time count once: this machine may have stood still for a moment. Answers to them end the silence then. Returns the
    /// same as [`failed`](Self::failed).
    pub(in crate::upstream) fn late(&self, since: Instant, within: Duration, unanswered: usize) -> bool {
        let mut state = self.0.lock();
        state.late_within = state.late_within.max(within);
        if state.late_at.is_none_or(|at| since >= at) {
            state.late_at = Some(clock::instant());
            state.late = state.late.saturating_add(2);
            state.is_silent |= unanswered >= SILENT_MIN && state.answered_at.is_none_or(|at| at < since);
        }
        state.must_be_probed()
    }

    /// Records that a NAR did not come from it, or too slowly. Those that fail together count once.
    pub(in crate::upstream) fn nar_failed(&self) {
        let mut state = self.0.lock();
        if state.doubts_nars() {
            return;
        }
        let doubted = NARS_DOUBTED_FOR.saturating_mul(1 << state.nars_failed.min(16)).min(NARS_DOUBTED_FOR_MAX);
        state.nars_failed = state.nars_failed.saturating_add(1);
        state.nars_doubted_until = Some(clock::instant() + doubted);
    }

    /// Whether a NAR has lately failed to come from it.
    pub(in crate::upstream) fn doubts_nars(&self) -> bool {
        self.0.lock().doubts_nars()
    }

    /// Records that the end of a NAR came from it.
    pub(in crate::upstream) fn nar_came(&self) {
        let mut state = self.0.lock();
        (state.nars_failed, state.nars_doubted_until) = (0, None);
    }

    /// For how long it has asked not to be asked.
    pub(in crate::upstream) fn rests_for(&self) -> Duration {
        let until = self.0.lock().rests_until;
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(clock::instant()))
    }

    /// Records that it cannot be probed: the next failure tries again.
    pub(in crate::upstream) fn gives_up_probing(&self) {
        self.0.lock().is_probed = false;
    }

    /// Whether probing ends, because it answers again.
    pub(in crate::upstream) fn ends_probing(&self) -> bool {
        let mut state = self.0.lock();
        if !state.is_doubted() {
            state.is_probed = false;
        }
        !state.is_probed
    }

    /// How much is to be expected of asking it: the larger, the earlier it is asked among its equals. One that was never asked
    /// comes first, in order to be known.
    pub(in crate::upstream) fn promise(&self) -> f64 {
        let state = self.0.lock();
        state.time.map_or(f64::INFINITY, |time| (1.0 - state.misses.0).max(0.01) / time.max(0.0001))
    }

    /// The mean time of an answer, the last ones counting most.
    pub(in crate::upstream) fn usual(&self) -> Option<Duration> {
        self.0.lock().time.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// The time that 95 % of its last answers have not exceeded, once it is known.
    pub(in crate::upstream) fn p95(&self) -> Option<Duration> {
        let mut samples = self.0.lock().samples.clone();
        if samples.len() < SAMPLES_MIN {
            return None;
        }
        samples.sort_by(f64::total_cmp);
        let at = (samples.len() * 95).div_ceil(100).saturating_sub(1);
        samples.get(at).copied().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

impl State {
    fn doubts_nars(&self) -> bool {
        self.nars_doubted_until.is_some_and(|until| clock::instant() < until)
    }

    const fn is_doubted(&self) -> bool {
        self.failures > 0 || self.late > 0
    }

    const fn must_be_probed(&mut self) -> bool {
        self.is_doubted() && !std::mem::replace(&mut self.is_probed, true)
    }

    fn took(&mut self, time: f64) {
        self.time = Some(self.time.map_or(time, |mean| mean + (time - mean) * WEIGHT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_answer_in_time_ends_doubts_and_a_late_one_does_not() {
        let health = Health::default();
        assert_eq!(health.standing(MS), Standing::Good);
        assert!(health.failed(None), "somebody must probe it");
        assert!(!health.failed(None), "one is enough");
        assert_eq!(health.standing(MS), Standing::Doubtful);
        health.answered(true, MS, false);
        assert_eq!(health.standing(MS), Standing::Doubtful);
        health.failed(None);
        assert_eq!(health.standing(MS), Standing::Down);
        assert!(!health.ends_probing());
        health.answered(false, MS, true);
        assert_eq!(health.standing(MS), Standing::Good);
        assert!(health.ends_probing() && health.failed(None));
    }

    #[test]
    fn requests_that_are_late_together_are_late_once() {
        let (health, asked) = (Health::default(), clock::instant());
        for _ in 0..50 {
            health.late(asked, MS, 1);
        }
        assert_eq!(health.standing(MS), Standing::Doubtful);
        health.late(clock::instant(), MS, 1);
        assert_eq!(health.standing(MS), Standing::Down);
        assert_eq!(health.standing(2 * MS), Standing::Good, "nothing is known of those who wait longer");
        health.late(asked, Duration::MAX, 1);
        assert_eq!(health.standing(Duration::MAX), Standing::Down);
    }

    #[test]
    fn one_that_answers_nothing_of_much_is_down_at_once_and_until_it_says_anything() {
        let (silent, slow) = (Health::default(), Health::default());
        let asked = clock::instant();
        slow.answered(true, MS, true);
        for health in [&silent, &slow] {
            health.late(asked, MS, SILENT_MIN);
        }
        assert_eq!((silent.standing(MS), slow.standing(MS)), (Standing::Down, Standing::Doubtful));
        assert_eq!(silent.standing(2 * MS), Standing::Good, "nothing is known of those who wait longer");
        silent.answered(true, 2 * MS, false);
        assert_eq!(silent.standing(MS), Standing::Doubtful, "it is slow");
        silent.answered(true, MS, true);
        assert_eq!(silent.standing(MS), Standing::Good);
    }

    #[test]
    fn retry_after_is_honoured() {
        let health = Health::default();
        health.failed(Some(Duration::from_secs(3600)));
        assert_eq!(health.standing(MS), Standing::Down);
        assert!(health.rests_for() <= RETRY_AFTER_MAX && health.rests_for() > Duration::from_secs(200));
    }

    #[test]
    fn the_likeliest_and_the_fastest_promise_most() {
        let (fast, slow, unknown) = (Health::default(), Health::default(), Health::default());
        for _ in 0..40 {
            fast.answered(true, MS, true);
            slow.answered(true, 20 * MS, true);
        }
        assert!(unknown.promise() > fast.promise() && fast.promise() > slow.promise());
        for _ in 0..200 {
            fast.answered(false, MS, true);
        }
        fast.overtaken(500 * MS);
        assert!(slow.promise() > fast.promise());
        assert_eq!(slow.p95(), Some(20 * MS));
        for _ in 0..2 {
            slow.answered(true, 90 * MS, true);
        }
        assert_eq!(slow.p95(), Some(20 * MS), "2 of 42 are less than 5 %, and 3 of 43 are more");
        slow.answered(true, 90 * MS, true);
        assert_eq!((slow.p95(), unknown.p95()), (Some(90 * MS), None));
    }
}
