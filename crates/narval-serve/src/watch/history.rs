//! The last hour: what was counted in every five seconds of it, so that the page has a past when it is opened.
//!
//! One thread of the server takes the samples. A cache that nobody has asked has none, and one that was asked has [`KEPT`] of them at
//! most.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use narval_client::clock;
use narval_http::Snapshot;
use parking_lot::Mutex;

/// The time between two samples.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// The samples of an hour.
pub(crate) const KEPT: usize = 720;

/// The shortest time between two checks of the parts: one writes to the disk.
const CHECK_EVERY: Duration = Duration::from_secs(30);

/// What was counted within [`EVERY`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Requests that were answered with what they asked for, or that it has not changed.
    pub(crate) hits: u32,
    /// Requests for what is not there.
    pub(crate) absent: u32,
    /// Requests that were answered 4xx for other reasons.
    pub(crate) refused: u32,
    /// Requests that were answered 5xx.
    pub(crate) failed: u32,
    pub(crate) sent_kib: u32,
    pub(crate) received_kib: u32,
    /// 99 of 100 answers that were not in memory began within so many microseconds. 0: there was none.
    pub(crate) p99_micros: u32,
    /// Uploads that were taken, and that were refused.
    pub(crate) taken: u32,
    pub(crate) not_taken: u32,
    /// Uploads for which there was no room: on the disk, or within the quota.
    pub(crate) no_room: u32,
    /// Times the store could not be read.
    pub(crate) store_errors: u32,
    /// Paths whose files were found damaged.
    pub(crate) damaged: u32,
    /// Compressed NARs that were found damaged.
    pub(crate) damaged_nars: u32,
    /// Wrong tokens after too many of them.
    pub(crate) throttled: u32,
    /// Of the engine: requests that found the queue full, connections that were refused, panics.
    pub(crate) overloaded: u32,
    pub(crate) unconnected: u32,
    pub(crate) panics: u32,
}

impl Sample {
    /// All requests.
    pub(crate) fn requests(&self) -> u32 {
        [self.absent, self.refused, self.failed].into_iter().fold(self.hits, u32::saturating_add)
    }

    /// This and another one; of the times, the longer one.
    pub(crate) fn and(self, other: &Self) -> Self {
        let sum = |of: fn(&Self) -> u32| of(&self).saturating_add(of(other));
        Self {
            hits: sum(|it| it.hits),
            absent: sum(|it| it.absent),
            refused: sum(|it| it.refused),
            failed: sum(|it| it.failed),
            sent_kib: sum(|it| it.sent_kib),
            received_kib: sum(|it| it.received_kib),
            p99_micros: self.p99_micros.max(other.p99_micros),
            taken: sum(|it| it.taken),
            not_taken: sum(|it| it.not_taken),
            no_room: sum(|it| it.no_room),
            store_errors: sum(|it| it.store_errors),
            damaged: sum(|it| it.damaged),
            damaged_nars: sum(|it| it.damaged_nars),
            throttled: sum(|it| it.throttled),
            overloaded: sum(|it| it.overloaded),
            unconnected: sum(|it| it.unconnected),
            panics: sum(|it| it.panics),
        }
    }
}

/// The buckets of times that answers took to begin.
pub(crate) const TIMES: usize = 11;

/// Totals since the server started, from which samples are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) hits: u64,
    pub(crate) absent: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Answers by the bucket of their times, and the upper bounds of these in microseconds.
    pub(crate) times: [u64; TIMES],
    pub(crate) bounds: [u32; TIMES],
    pub(crate) taken: u64,
    pub(crate) not_taken: u64,
    pub(crate) no_room: u64,
    pub(crate) store_errors: u64,
    pub(crate) damaged: u64,
    pub(crate) damaged_nars: u64,
    pub(crate) throttled: u64,
    pub(crate) overloaded: u64,
    pub(crate) unconnected: u64,
    pub(crate) panics: u64,
}

impl Totals {
    /// Of the engine, which serves all caches.
    pub(crate) fn of_engine(engine: &Snapshot) -> Self {
        Self {
            overloaded: engine.overloaded,
            unconnected: engine.connections_refused,
            panics: engine.panics,
            ..Self::default()
        }
    }

    /// What has been added since.
    fn since(&self, before: &Self) -> Sample {
        let more = |of: fn(&Self) -> u64| of(self).saturating_sub(of(before));
        let count = |of: fn(&Self) -> u64| u32::try_from(more(of)).unwrap_or(u32::MAX);
        let kib = |of: fn(&Self) -> u64| u32::try_from(more(of).div_ceil(1024)).unwrap_or(u32::MAX);
        let times = std::iter::zip(self.times, before.times).map(|(now, before)| now.saturating_sub(before));
        let times: Vec<u64> = times.collect();
        Sample {
            hits: count(|it| it.hits),
            absent: count(|it| it.absent),
            refused: count(|it| it.refused),
            failed: count(|it| it.failed),
            sent_kib: kib(|it| it.sent),
            received_kib: kib(|it| it.received),
            p99_micros: percentile(&times, &self.bounds),
            taken: count(|it| it.taken),
            not_taken: count(|it| it.not_taken),
            no_room: count(|it| it.no_room),
            store_errors: count(|it| it.store_errors),
            damaged: count(|it| it.damaged),
            damaged_nars: count(|it| it.damaged_nars),
            throttled: count(|it| it.throttled),
            overloaded: count(|it| it.overloaded),
            unconnected: count(|it| it.unconnected),
            panics: count(|it| it.panics),
        }
    }
}

/// The bound that 99 of 100 do not exceed; 0 without any.
fn percentile(counts: &[u64], bounds: &[u32]) -> u32 {
    let all: u64 = counts.iter().sum();
    let wanted = all - all / 100;
    let mut so_far = 0;
    let found = std::iter::zip(counts, bounds).find(|(count, _)| {
        so_far += **count;
        so_far > 0 && so_far >= wanted
    });
    found.map_or(0, |(_, bound)| *bound)
}

/// The history of a cache, or of the server.
#[derive(Debug, Default)]
pub(crate) struct History {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    samples: VecDeque<Sample>,
    /// `None` before the first look.
    totals: Option<Totals>,
    last_request: Option<u64>,
    /// Free bytes by file system, as lines that are extended into the future.
    trends: BTreeMap<String, Trend>,
    /// Parts that did not work when they were checked last, and when that was.
    broken: Vec<&'static str>,
    checked: Option<Instant>,
    is_checking: bool,
    /// What is wrong, and since when, in seconds since 1970.
    wrong: BTreeMap<String, u64>,
}

/// What a history knows now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    /// The oldest first.
    pub(crate) samples: Vec<Sample>,
    /// When the last request came, to [`EVERY`], in seconds since 1970.
    pub(crate) last_request: Option<u64>,
}

impl History {
    /// Adds the sample since the last call.
    pub(crate) fn take(&self, totals: Totals) {
        let mut state = self.state.lock();
        let before = state.totals.get_or_insert_default();
        let sample = totals.since(before);
        state.totals = Some(totals);
        if sample.requests() > 0 || sample.taken > 0 {
            state.last_request = Some(clock::now());
        }
        if state.samples.is_empty() && sample == Sample::default() {
            return;
        }
        if state.samples.len() == KEPT {
            state.samples.pop_front();
        }
        state.samples.push_back(sample);
    }

    pub(crate) fn past(&self) -> Past {
        let state = self.state.lock();
        Past { samples: state.samples.iter().copied().collect(), last_request: state.last_request }
    }

    /// The sum of the last samples.
    pub(crate) fn last(&self, time: Duration) -> Sample {
        let count = samples_of(time);
        let state = self.state.lock();
        state.samples.iter().rev().take(count).fold(Sample::default(), |sum, sample| sum.and(sample))
    }

    /// The median of the times of the last samples that have one, in microseconds; `None` if those are few.
    pub(crate) fn usual_p99(&self, time: Duration) -> Option<u32> {
        const FEW: usize = 3;
        let state = self.state.lock();
        let last = state.samples.iter().rev().take(samples_of(time));
        let mut times: Vec<u32> = last.map(|sample| sample.p99_micros).filter(|micros| *micros > 0).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().filter(|_| times.len() >= FEW)
    }

    /// Since when each of these is wrong. What is not among them is well again.
    pub(crate) fn since(&self, wrong: &[String]) -> Vec<u64> {
        let mut state = self.state.lock();
        let now = clock::now();
        state.wrong.retain(|name, _| wrong.contains(name));
        wrong.iter().map(|name| *state.wrong.entry(name.clone()).or_insert(now)).collect()
    }

    /// Checks the parts, unless that was done lately or is being done. Nobody waits for the checks of others.
    pub(crate) fn check(&self, broken: impl FnOnce() -> Vec<&'static str>) {
        let mut state = self.state.lock();
        if state.is_checking || state.checked.is_some_and(|at| at.elapsed() < CHECK_EVERY) {
            return;
        }
        state.is_checking = true;
        drop(state);
        let broken = broken();
        let mut state = self.state.lock();
        (state.broken, state.checked, state.is_checking) = (broken, Some(Instant::now()), false);
    }

    /// The parts that did not work when they were checked last.
    pub(crate) fn broken(&self) -> Vec<&'static str> {
        self.state.lock().broken.clone()
    }

    /// Notes the free bytes of a file system. Returns when it will be full at the rate of the last hours, in seconds from now.
    pub(crate) fn free(&self, disk: &str, now: u64, free: u64) -> Option<u64> {
        let mut state = self.state.lock();
        if !state.trends.contains_key(disk) {
            state.trends.insert(disk.to_owned(), Trend::default());
        }
        state.trends.get_mut(disk)?.note(now, free)
    }
}

fn samples_of(time: Duration) -> usize {
    usize::try_from(time.as_secs() / EVERY.as_secs()).unwrap_or(KEPT)
}

/// Free bytes of a file system over the last hours.
#[derive(Debug, Default)]
struct Trend(VecDeque<(u64, u64)>);

impl Trend {
    /// Seconds between two points, and the number of them: six hours.
    const EVERY: u64 = 300;
    const POINTS: usize = 72;
    /// Before this many seconds, nothing is said.
    const LEAST: u64 = 600;

    fn note(&mut self, now: u64, free: u64) -> Option<u64> {
        if self.0.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= Self::EVERY) {
            if self.0.len() == Self::POINTS {
                self.0.pop_front();
            }
            self.0.push_back((now, free));
        }
        let (first, had) = *self.0.front()?;
        let (time, less) = (now.saturating_sub(first), had.checked_sub(free)?);
        (time >= Self::LEAST && less > 0).then(|| {
            let left = u128::from(free) * u128::from(time) / u128::from(less);
            u64::try_from(left).unwrap_or(u64::MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> [u32; TIMES] {
        std::array::from_fn(|at| (at as u32 + 1) * 100)
    }

    #[test]
    fn the_last_hour_is_kept_as_differences() {
        let history = History::default();
        history.take(Totals::default());
        assert!(history.past().samples.is_empty(), "nobody has asked");
        let mut totals = Totals { bounds: bounds(), ..Totals::default() };
        for number in 1..=KEPT as u64 + 10 {
            totals.hits += number;
            totals.sent += 1025;
            totals.times[3] += 99;
            totals.times[10] += 1;
            history.take(totals.clone());
        }
        let past = history.past();
        assert_eq!((past.samples.len(), past.samples[0].hits, past.samples[KEPT - 1].hits), (KEPT, 11, 730));
        assert_eq!((past.samples[0].sent_kib, past.samples[0].p99_micros), (2, 400));
        assert!(past.last_request.is_some());
        assert_eq!(history.last(EVERY * 3).hits, 730 + 729 + 728);
        assert_eq!(history.usual_p99(EVERY * 3), Some(400));
        // A service that begins anew has smaller totals.
        history.take(Totals::default());
        assert_eq!(history.past().samples[KEPT - 1], Sample::default());
    }

    #[test]
    fn percentiles_are_bounds() {
        assert_eq!(percentile(&[0, 0], &[1, 2]), 0);
        assert_eq!(percentile(&[1, 0], &[1, 2]), 1);
        assert_eq!(percentile(&[99, 1], &[1, 2]), 1);
        assert_eq!(percentile(&[98, 2], &[1, 2]), 2);
    }

    #[test]
    fn what_is_wrong_is_so_since_it_was_first_seen() {
        let history = History::default();
        let [one, two] = ["one", "two"].map(str::to_owned);
        history.state.lock().wrong.insert(one.clone(), 5);
        let since = history.since(&[one.clone(), two.clone()]);
        assert!(since[0] == 5 && since[1] > 1_000_000_000);
        assert_eq!(history.since(std::slice::from_ref(&two)), since[1..]);
        assert!(history.since(&[one])[0] > 5, "it was well meanwhile");
    }

    #[test]
    fn checks_are_made_by_one_and_not_too_often() {
        let history = History::default();
        history.check(|| {
            history.check(|| unreachable!("it is being checked"));
            vec!["store"]
        });
        history.check(|| unreachable!("it was checked lately"));
        assert_eq!(history.broken(), ["store"]);
        history.state.lock().checked = Instant::now().checked_sub(CHECK_EVERY);
        history.check(Vec::new);
        assert!(history.broken().is_empty());
    }

    #[test]
    fn a_disk_is_full_at_the_rate_of_the_last_hours() {
        let history = History::default();
        assert_eq!(history.free("data", 0, 1000), None);
        assert_eq!(history.free("data", 599, 900), None, "too soon to say");
        assert_eq!(history.free("data", 1000, 900), Some(9000));
        assert_eq!(history.free("data", 2000, 1100), None, "it has more than it had");
        for at in 0..200 {
            history.free("full", at * Trend::EVERY, 1_000_000 - at * 100);
        }
        assert_eq!(history.state.lock().trends["full"].0.len(), Trend::POINTS);
    }
}
