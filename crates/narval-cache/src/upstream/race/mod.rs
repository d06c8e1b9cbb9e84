//! The one way in which several upstreams are asked for the same thing.
//!
//! - They are asked by `priority`, and those of the same priority by what is to be expected of them ([`Health::promise`]): first those whose presence
//!   filter has the path.
//! - The next one is asked when one says that it has nothing, or fails; and also when one takes longer than 95 % of its last
//!   answers did, as far as [`Budget`] allows: a hedge. When half of the time is over, those that were asked have used up theirs, and those that
//!   are left are asked as if these had failed: failovers, which no budget can refuse, because a path that is there would be called absent.
//! - An answer of a lower priority waits until those of higher ones have answered, or the time is over. So time decides between
//!   upstreams of the same priority, and never between others: operators who do not care which one is used give them the same.
//! - One that failed or was late is doubtful until it has answered a probe: it is asked after all others, and none waits for it.
//!   One that was late within a second is in no doubt for those who wait for a minute.
//! - What was not answered in time is unknown. Nobody may remember it as an absence.

#[cfg(test)]
mod simulation;
pub(super) mod trace;

use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use narval_client::{Budget, clock};
use narval_nix::HashPart;

use self::trace::{Event, Happened};
use super::answer::{Unavailable, UpstreamAnswer};
use super::remote::Remote;
use super::standing::health::{Health, Standing};

/// The shortest time before another upstream is asked, too: the machine may have been busy.
const HEDGE_MIN: Duration = Duration::from_millis(10);
/// The part of the time after which another is asked, too, while the 95th percentile is not known.
const HEDGE_UNKNOWN: u32 = 8;
/// The part of the time, at most, after which the next one is asked when one has used up its time, and another does not answer either.
const FAILOVER_NEXT: u32 = 16;
/// The part of the time by which this thread may wake up too late: where it is more, the machine is so busy that silence says little.
const AWAKE_WITHIN: u32 = 32;

/// When upstreams are asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// What they are asked for, in traces.
    pub(super) what: &'static str,
    /// Since when they are waited for.
    pub(super) begun: Instant,
    /// How long.
    pub(super) within: Duration,
    /// After which those that are left are asked.
    pub(super) all_after: Duration,
    /// The path that is asked for, if presence filters may tell who has it.
    pub(super) path: Option<HashPart>,
    /// Answers are the same whoever gives them: they are asked in the given order, and the next one after this time.
    pub(super) equal: Option<Duration>,
}

impl Pace {
    /// That of requests for what may differ between upstreams.
    pub(super) fn ranked(what: &'static str, within: Duration) -> Self {
        Self { what, begun: clock::instant(), within, all_after: within / 2, path: None, equal: None }
    }

    fn hedge_after(&self, health: &Health) -> Duration {
        let after = self.equal.unwrap_or_else(|| health.p95().unwrap_or(self.within / HEDGE_UNKNOWN));
        after.max(HEDGE_MIN)
    }

    fn half(&self) -> Instant {
        self.begun + self.all_after
    }

    fn deadline(&self) -> Instant {
        self.begun + self.within
    }
}

/// Who is asked when, and whose answer is used. It neither asks nor waits: [`race`] does so with threads, and a simulation without.
pub(super) struct Race<T> {
    pace: Pace,
    runners: Vec<Runner<T>>,
    hedge_at: Instant,
    failed: Option<Unavailable>,
    events: Vec<Event>,
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

/// What is to be done next.
pub(super) enum Step {
    /// This one is to be asked.
    Ask(usize),
    /// Nothing until then, or until one has answered.
    Wait(Instant),
    /// Nothing more.
    End,
}

/// How a race ended.
pub(super) struct Ended<T> {
    /// The answer, and whose it is. `None`: none of them has it.
    pub(super) answer: Result<Option<(Arc<Remote>, T)>, Unavailable>,
    /// Those that were too slow, and since when they were asked.
    pub(super) late: Vec<(Arc<Remote>, Instant)>,
    events: Vec<Event>,
}

impl<T> Race<T> {
    /// Between those that may be asked, in the order in which they are.
    pub(super) fn new(remotes: &[Arc<Remote>], pace: Pace) -> Self {
        let rank = |remote: &Arc<Remote>| match pace.equal {
            Some(_) => (0, 0.0),
            None if pace.path.is_some_and(|path| remote.is_said_to_have(&path)) => {
                (remote.cache.priority(), f64::NEG_INFINITY)
            }
            None => (remote.cache.priority(), -remote.health.promise()),
        };
        let ranked = |remote: &Arc<Remote>| {
            let (priority, promise) = rank(remote);
            (remote.health.standing(pace.within), priority, promise, Arc::clone(remote))
        };
        let mut list: Vec<_> = remotes.iter().map(ranked).collect();
        list.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
        let mut race = Self { pace, runners: Vec::new(), hedge_at: pace.half(), failed: None, events: Vec::new() };
        for (standing, priority, _, remote) in list {
            if standing == Standing::Down {
                let seconds = remote.health.rests_for().as_secs().max(10);
                let unavailable = Unavailable::new(seconds, format!("{} does not respond", remote.url()));
                race.failed.get_or_insert(unavailable);
                race.events.push(Event::new(clock::instant(), &remote, pace.what, Happened::Down));
            } else {
                race.runners.push(Runner { remote, priority, standing, state: State::Waits });
            }
        }
        race
    }

    /// What is to be done now.
    pub(super) fn step(&mut self, hedges: &Budget, now: Instant) -> Step {
        if self.best(true).is_some() {
            return Step::End;
        }
        let (half, deadline, equal) = (self.pace.half(), self.pace.deadline(), self.pace.equal);
        let next = self.runners.iter().position(|runner| matches!(runner.state, State::Waits));
        let runs = self.is_waiting();
        let holds = self.runners.iter().any(|runner| matches!(runner.state, State::Has(_)));
        let may_ask = next.filter(|_| now < deadline && !holds);
        if let Some(next) = may_ask {
            // What is doubtful meanwhile is not waited for.
            let hopeful = |runner: &Runner<T>| {
                let is_good = || runner.remote.health.standing(self.pace.within) == Standing::Good;
                matches!(runner.state, State::Runs(_)) && is_good()
            };
            let is_hedge = runs && now < half && (equal.is_none() || self.runners.iter().any(hopeful));
            // Of those that are left, the next one is asked when the one before has had time, too.
            let is_failover = runs && now >= half && equal.is_none();
            let may = match (is_hedge, is_failover) {
                (true, _) => now >= self.hedge_at && hedges.spend(),
                (_, true) => now >= self.hedge_at,
                (false, false) => true,
            };
            if may {
                self.ask(next, runs, is_hedge, now);
                return Step::Ask(next);
            }
            if now >= self.hedge_at && !is_failover {
                self.hedge_at = equal.map_or(half, |after| half.min(now + after.max(HEDGE_MIN)));
            }
        }
        match runs && now < deadline {
            true if may_ask.is_some() => Step::Wait(self.hedge_at.min(deadline)),
            true => Step::Wait(deadline),
            false => Step::End,
        }
    }

    fn ask(&mut self, at: usize, is_beside: bool, is_hedge: bool, now: Instant) {
        let Some(Runner { remote, state, .. }) = self.runners.get_mut(at) else { return };
        if is_hedge {
            remote.counts.hedged();
        } else if is_beside {
            remote.counts.failed_over();
        }
        *state = State::Runs(now);
        self.hedge_at = match self.pace.half() {
            half if now < half => half.min(now + self.pace.hedge_after(&remote.health)),
            _ => now + self.pace.hedge_after(&remote.health).min(self.pace.within / FAILOVER_NEXT),
        };
        let happened = if is_beside { Happened::AskedToo } else { Happened::Asked };
        self.events.push(Event::new(now, remote, self.pace.what, happened));
    }

    /// Whether one has been asked that has not answered.
    pub(super) fn is_waiting(&self) -> bool {
        self.runners.iter().any(|runner| matches!(runner.state, State::Runs(_)))
    }

    /// The upstream of this number.
    pub(super) fn remote(&self, at: usize) -> Option<&Arc<Remote>> {
        self.runners.get(at).map(|runner| &runner.remote)
    }

    /// Takes what one of them says.
    pub(super) fn answer(&mut self, at: usize, answer: UpstreamAnswer<T>, now: Instant) {
        let Some(runner) = self.runners.get_mut(at) else { return };
        let happened;
        (runner.state, happened) = match answer {
            UpstreamAnswer::Has(what) => (State::Has(what), Happened::Has),
            UpstreamAnswer::Absent => (State::Lost, Happened::Absent),
            UpstreamAnswer::Failed(unavailable) => {
                let happened = Happened::failed(&unavailable.reason);
                self.failed.get_or_insert(unavailable);
                (State::Lost, happened)
            }
        };
        self.events.push(Event::new(now, &runner.remote, self.pace.what, happened));
    }

    /// The answer to use. With `waits`, none while one of a higher priority, that is not doubtful, may still answer.
    fn best(&self, waits: bool) -> Option<usize> {
        let has = |runner: &&Runner<T>| matches!(runner.state, State::Has(_));
        let priority = self.runners.iter().filter(has).map(|runner| runner.priority).min()?;
        let may_answer = |runner: &Runner<T>| {
            runner.priority < priority && runner.standing == Standing::Good && matches!(runner.state, State::Runs(_))
        };
        if waits && self.runners.iter().any(may_answer) {
            return None;
        }
        self.runners.iter().position(|runner| has(&runner) && runner.priority == priority)
    }

    /// The end, after [`Step::End`].
    pub(super) fn end(mut self, now: Instant) -> Ended<T> {
        let mut late = Vec::new();
        let is_late = self.best(true).is_none();
        let used = self.best(false);
        for (other, Runner { remote, state, .. }) in self.runners.iter().enumerate() {
            let State::Runs(since) = *state else { continue };
            let elapsed = now.saturating_duration_since(since);
            match self.pace.equal {
                _ if used.is_none() => {}
                None => remote.health.overtaken(elapsed),
                Some(_) if used.is_some_and(|used| other < used) => remote.health.nar_failed(),
                Some(_) => {}
            }
            let mut happened = Happened::NotNeeded;
            if is_late {
                // One that was asked at last has done nothing wrong.
                if elapsed >= self.pace.within.mul_f64(0.4) {
                    late.push((Arc::clone(remote), since));
                }
                let reason = format!("{} has not answered within {} ms", remote.url(), self.pace.within.as_millis());
                self.failed.get_or_insert(Unavailable::new(5, reason));
                happened = Happened::Late;
            }
            self.events.push(Event::new(now, remote, self.pace.what, happened));
        }
        let answer = used.and_then(|used| match self.runners.swap_remove(used) {
            Runner { remote, state: State::Has(what), .. } => Some((remote, what)),
            _ => None,
        });
        let answer = match (answer, self.failed) {
            (Some((remote, what)), _) => {
                remote.counts.won();
                Ok(Some((remote, what)))
            }
            (None, Some(unavailable)) => Err(unavailable),
            (None, None) => Ok(None),
        };
        Ended { answer, late, events: self.events }
    }
}

/// Asks these upstreams within a time; returns the answer, and whose it is. `None`: none of them has it.
///
/// # Errors
/// One that may have it has failed, or has not answered in time.
pub(super) fn race<T: Send + 'static>(
    remotes: &[Arc<Remote>],
    hedges: &Budget,
    pace: Pace,
    ask: impl Fn(&Arc<Remote>) -> UpstreamAnswer<T> + Clone + Send + 'static,
) -> Result<Option<(Arc<Remote>, T)>, Unavailable> {
    hedges.earn();
    let mut race = Race::new(remotes, pace);
    let (sender, receiver) = mpsc::channel();
    // When the answer was found.
    let found = Arc::new(OnceLock::new());
    loop {
        while let Ok((at, answer)) = receiver.try_recv() {
            race.answer(at, answer, clock::instant());
        }
        let now = clock::instant();
        match race.step(hedges, now) {
            Step::Ask(at) => {
                let Some(remote) = race.remote(at).map(Arc::clone) else { break };
                let (ask, sender) = (ask.clone(), sender.clone());
                let (slow, found) = (Arc::clone(&remote), Arc::clone(&found));
                // The receiver is gone if another one was faster: this answer is not needed then.
                let started = remote.on_a_thread(ask, move |answer| {
                    let waits = sender.send((at, answer)).is_ok();
                    if let Some(found) = found.get().filter(|_| !waits) {
                        slow.counts.saved(clock::since(*found));
                    }
                });
                if let Err(unavailable) = started {
                    race.answer(at, UpstreamAnswer::Failed(unavailable), now);
                }
            }
            Step::Wait(until) => {
                if let Ok((at, answer)) = receiver.recv_timeout(until.saturating_duration_since(now)) {
                    race.answer(at, answer, clock::instant());
                }
            }
            Step::End => break,
        }
    }
    let Ended { answer, late, events } = race.end(clock::instant());
    if let Ok(Some(_)) = answer {
        found.get_or_init(clock::instant);
    }
    let is_awake = clock::instant() < pace.deadline() + pace.within / AWAKE_WITHIN;
    for (remote, since) in late {
        tracing::warn!("upstream {} has not answered within {} ms", remote.url(), pace.within.as_millis());
        remote.is_late(since, pace.within, is_awake);
    }
    trace::add(events);
    answer
}

#[cfg(test)]
mod tests {
    use narval_client::Url;
    use narval_nix::StoreDir;

    use super::*;
    use crate::upstream::options::UpstreamOptions;

    #[test]
    fn of_equals_the_one_whose_filter_has_the_path_is_asked_first() {
        let remote = |name: &str, priority| {
            let url = Url::parse(&format!("http://{name}.invalid")).unwrap();
            let options = UpstreamOptions { priority, ..UpstreamOptions::new(url, None) };
            Arc::new(Remote::new(options, &StoreDir::default(), Duration::from_secs(1)))
        };
        let path = HashPart::from_digest(&[7; 20]);
        let [public, own, better] = [remote("public", 50), remote("own", 50), remote("better", 40)];
        public.health.answered(true, Duration::from_millis(1), true);
        own.health.answered(true, Duration::from_millis(900), true);
        own.presence.set(&[path]);
        let order = |asked| {
            let pace = Pace { path: Some(asked), ..Pace::ranked("narinfo", Duration::from_secs(1)) };
            let race = Race::<()>::new(&[&public, &own, &better].map(Arc::clone), pace);
            [0, 1, 2].map(|at| race.remote(at).unwrap().url().to_string())
        };
        let of = |names: [&str; 3]| names.map(|name| format!("http://{name}.invalid"));
        assert_eq!(order(path), of(["better", "own", "public"]));
        assert_eq!(order(HashPart::from_digest(&[8; 20])), of(["better", "public", "own"]));
    }
}
