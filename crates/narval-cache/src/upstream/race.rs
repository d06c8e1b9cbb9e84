//! The one way in which several upstreams are asked for the same thing.
//!
//! - They are asked by `priority`, and those of the same priority by what is to be expected of them ([`Health::promise`]).
//! - The next one is asked when one says that it has nothing, or fails; and also when one takes longer than 95 % of its last
//!   answers did, as far as [`Budget`] allows. When half of the time is over, all are asked that are left.
//! - An answer of a lower priority waits until those of higher ones have answered, or the time is over. So time decides between
//!   upstreams of the same priority, and never between others: operators who do not care which one is used give them the same.
//! - One that failed or was late is doubtful until it has answered a probe: it is asked after all others, and none waits for it.
//!   One that was late within a second is in no doubt for those who wait for a minute.
//! - What was not answered in time is unknown. Nobody may remember it as an absence.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use narval_client::{Budget, clock, request_id};
use narval_files::{served_client, work_for};

use super::Unavailable;
use super::remote::Remote;
use super::said::Said;
use super::standing::health::{Health, Standing};

/// The shortest time before another upstream is asked, too: the machine may have been busy.
const HEDGE_MIN: Duration = Duration::from_millis(10);
/// The part of the time after which another is asked, too, while the 95th percentile is not known.
const HEDGE_UNKNOWN: u32 = 8;

/// When upstreams are asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Since when they are waited for.
    pub(super) begun: Instant,
    /// How long.
    pub(super) within: Duration,
    /// After which all are asked that are left.
    pub(super) all_after: Duration,
    /// Answers are the same whoever gives them: they are asked in the given order, and the next one after this time.
    pub(super) equal: Option<Duration>,
}

impl Pace {
    /// That of requests for what may differ between upstreams.
    pub(super) fn ranked(within: Duration) -> Self {
        Self { begun: clock::instant(), within, all_after: within / 2, equal: None }
    }

    fn hedge_after(&self, health: &Health) -> Duration {
        let after = self.equal.unwrap_or_else(|| health.p95().unwrap_or(self.within / HEDGE_UNKNOWN));
        after.max(HEDGE_MIN)
    }
}

/// One upstream in a race.
struct Runner<T> {
    remote: Arc<Remote>,
    priority: i64,
    standing: Standing,
    state: State<T>,
}

enum State<T> {
    Waits,
    Runs(Instant),
    Has(T),
    Lost,
}

/// Asks these upstreams within a time; returns the answer, and whose it is. `None`: none of them has it.
///
/// # Errors
/// One that may have it has failed, or has not answered in time.
pub(super) fn race<T: Send + 'static>(
    remotes: &[Arc<Remote>],
    hedges: &Budget,
    pace: Pace,
    ask: impl Fn(&Arc<Remote>) -> Said<T> + Clone + Send + 'static,
) -> Result<Option<(Arc<Remote>, T)>, Unavailable> {
    hedges.earn();
    let mut failed = None;
    let mut runners = runners(remotes, &pace, &mut failed);
    let (sender, receiver) = mpsc::channel();
    // When the answer was found.
    let found = Arc::new(OnceLock::new());
    let (half, deadline) = (pace.begun + pace.all_after, pace.begun + pace.within);
    let mut hedge_at = half;
    loop {
        if let Some(at) = best(&runners, true) {
            found.get_or_init(clock::instant);
            return Ok(finish(runners, at, &pace));
        }
        let now = clock::instant();
        let next = runners.iter().position(|runner| matches!(runner.state, State::Waits));
        let runs = runners.iter().any(|runner| matches!(runner.state, State::Runs(_)));
        let holds = runners.iter().any(|runner| matches!(runner.state, State::Has(_)));
        if let Some(next) = next
            && now < deadline
            && !holds
        {
            // What is doubtful meanwhile is not waited for.
            let hopeful = |runner: &Runner<T>| {
                matches!(runner.state, State::Runs(_)) && runner.remote.health.standing(pace.within) == Standing::Good
            };
            let is_hedge = runs && now < half && (pace.equal.is_none() || runners.iter().any(hopeful));
            if !is_hedge || now >= hedge_at && hedges.spend() {
                if let Some(runner) = runners.get_mut(next) {
                    if is_hedge {
                        runner.remote.counts.hedged();
                    }
                    hedge_at = half.min(now + pace.hedge_after(&runner.remote.health));
                    runner.state = State::Runs(now);
                    let (remote, ask, sender) = (Arc::clone(&runner.remote), ask.clone(), sender.clone());
                    let (slow, found) = (Arc::clone(&remote), Arc::clone(&found));
                    // The receiver is gone if another one was faster: this answer is not needed then.
                    let started = start(remote, ask, move |said| {
                        let waits = sender.send((next, said)).is_ok();
                        if let Some(found) = found.get().filter(|_| !waits) {
                            slow.counts.saved(clock::since(*found));
                        }
                    });
                    if let Err(unavailable) = started {
                        runner.state = State::Lost;
                        failed.get_or_insert(unavailable);
                    }
                }
                continue;
            }
            if now >= hedge_at {
                hedge_at = pace.equal.map_or(half, |after| half.min(now + after.max(HEDGE_MIN)));
            }
        }
        if !runs {
            break;
        }
        let until = if next.is_some() && !holds && now < half { hedge_at } else { deadline };
        match receiver.recv_timeout(until.saturating_duration_since(now)) {
            Ok((at, said)) => {
                let Some(runner) = runners.get_mut(at) else { continue };
                runner.state = match said {
                    Said::Has(what) => State::Has(what),
                    Said::Absent => State::Lost,
                    Said::Failed(unavailable) => {
                        failed.get_or_insert(unavailable);
                        State::Lost
                    }
                };
            }
            Err(RecvTimeoutError::Timeout) if clock::instant() < deadline => {}
            // This function has a sender.
            Err(_) => {
                late(&runners, pace.within, &mut failed);
                break;
            }
        }
    }
    match (best(&runners, false), failed) {
        (Some(at), _) => Ok(finish(runners, at, &pace)),
        (None, Some(unavailable)) => Err(unavailable),
        (None, None) => Ok(None),
    }
}

/// Those that may be asked, in the order in which they are.
fn runners<T>(remotes: &[Arc<Remote>], pace: &Pace, failed: &mut Option<Unavailable>) -> Vec<Runner<T>> {
    let rank = |remote: &Arc<Remote>| match pace.equal {
        Some(_) => (0, 0.0),
        None => (remote.cache.priority(), -remote.health.promise()),
    };
    let ranked = |remote: &Arc<Remote>| {
        let (priority, promise) = rank(remote);
        (remote.health.standing(pace.within), priority, promise, Arc::clone(remote))
    };
    let mut list: Vec<_> = remotes.iter().map(ranked).collect();
    list.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
    let mut runners = Vec::new();
    for (standing, priority, _, remote) in list {
        if standing == Standing::Down {
            let seconds = remote.health.rests_for().as_secs().max(10);
            failed.get_or_insert_with(|| Unavailable::new(seconds, format!("{} does not respond", remote.url())));
        } else {
            runners.push(Runner { remote, priority, standing, state: State::Waits });
        }
    }
    runners
}

/// The answer to use. With `waits`, none while one of a higher priority, that is not doubtful, may still answer.
fn best<T>(runners: &[Runner<T>], waits: bool) -> Option<usize> {
    let has = |runner: &&Runner<T>| matches!(runner.state, State::Has(_));
    let priority = runners.iter().filter(has).map(|runner| runner.priority).min()?;
    let may_answer = |runner: &Runner<T>| {
        runner.priority < priority && runner.standing == Standing::Good && matches!(runner.state, State::Runs(_))
    };
    if waits && runners.iter().any(may_answer) {
        return None;
    }
    runners.iter().position(|runner| has(&runner) && runner.priority == priority)
}

fn finish<T>(mut runners: Vec<Runner<T>>, at: usize, pace: &Pace) -> Option<(Arc<Remote>, T)> {
    for (other, runner) in runners.iter().enumerate() {
        let State::Runs(since) = runner.state else { continue };
        match pace.equal {
            None => runner.remote.health.overtaken(clock::since(since)),
            Some(_) if other < at => runner.remote.health.nar_failed(),
            Some(_) => {}
        }
    }
    let Runner { remote, state, .. } = runners.swap_remove(at);
    match state {
        State::Has(what) => {
            remote.counts.won();
            Some((remote, what))
        }
        _ => None,
    }
}

/// Those that have had half of the time, or nearly so, were too slow. One that was asked at last has done nothing wrong.
fn late<T>(runners: &[Runner<T>], within: Duration, failed: &mut Option<Unavailable>) {
    for runner in runners {
        let State::Runs(since) = runner.state else { continue };
        let reason = format!("{} has not answered within {} ms", runner.remote.url(), within.as_millis());
        if clock::since(since) >= within.mul_f64(0.4) {
            tracing::warn!("upstream {reason}");
            runner.remote.is_late(since, within);
        }
        failed.get_or_insert_with(|| Unavailable::new(5, reason));
    }
}

/// Asks one upstream on a thread of its own, which ends with the request: nobody may have the patience to wait for that.
fn start<T: Send + 'static>(
    remote: Arc<Remote>,
    ask: impl Fn(&Arc<Remote>) -> Said<T> + Send + 'static,
    answer: impl FnOnce(Said<T>) + Send + 'static,
) -> Result<(), Unavailable> {
    let busy = || Unavailable::new(5, format!("too many requests to {} are not answered yet", remote.url()));
    let permit = remote.asked.take().ok_or_else(busy)?;
    let (id, client) = (request_id::current(), served_client());
    let run = move || {
        let (_permit, _client, _entered) = (permit, work_for(client), request_id::enter(id));
        answer(ask(&remote));
    };
    let started = thread::Builder::new().name("ask-upstream".into()).spawn(run);
    started.map(drop).map_err(|error| Unavailable::new(5, error.to_string()))
}
