//! A day of an office in front of three upstreams that fail in all ways, simulated from a seed: who is asked, when, and how long clients wait is
//! decided by the code that ships ([`Race`], [`Health`](crate::upstream::standing::health::Health), [`Budget`]), on a clock that the simulation sets.
//!
//! `NARVAL_SEED=7 NARVAL_SEEDS=1 cargo test -p narval-cache a_day_of_an_office -- --nocapture` runs one seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_client::clock::{self, Jumping};
use narval_client::{BUDGET_MAX, Budget, Url};
use narval_nix::StoreDir;

use super::{Ended, Pace, Race, Step};
use crate::upstream::answer::{Unavailable, UpstreamAnswer};
use crate::upstream::limits::{ASKED_MAX, HEDGES_SHARE, RETRIES_SHARE};
use crate::upstream::options::{Deadline, UpstreamOptions};
use crate::upstream::remote::Remote;
use crate::upstream::standing::counts::RequestOutcome;
use crate::upstream::standing::probe::{PROBE_WAIT, Pauses};

const HOUR: Duration = Duration::from_secs(3600);
const HOURS: usize = 24;
/// How long an upstream is waited for before a request to it fails.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How soon one that is back must be used.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// Requests of one client at a time, as Nix makes them.
const AT_ONCE: usize = 25;

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn within(&mut self, from: f64, to: f64) -> f64 {
        from + self.fraction() * (to - from)
    }

    /// A time with this median, of which one in fifty is ten times as long: an upstream that works has answered when half of the time for
    /// which clients wait is left. One that is asked when half of it is over is asked in time.
    fn latency(&mut self, median: Duration) -> Duration {
        let tail = if self.fraction() < 0.02 { 10.0 } else { 1.0 };
        median
            .mul_f64(self.within(-0.7, 0.7).exp() * tail)
            .min(Deadline::default().absent_after / 2 - Duration::from_millis(1))
    }
}

fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Refuses,
    /// It answers 503, some with `Retry-After`.
    Busy,
    /// What was asked is answered when it is over, if the request still waits.
    Silent,
    /// It takes so many times as long.
    Slow(f64),
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    from: Duration,
    to: Duration,
    fault: Fault,
}

struct Simulated {
    remote: Arc<Remote>,
    latency: Duration,
    outages: Vec<Outage>,
    in_flight: usize,
}

impl Simulated {
    fn fault(&self, at: Duration) -> Option<Outage> {
        self.outages.iter().find(|outage| outage.from <= at && at < outage.to).copied()
    }

    /// Whether it works during all of this time.
    fn works(&self, from: Duration, to: Duration) -> bool {
        self.outages.iter().all(|outage| outage.to <= from || to < outage.from)
    }
}

/// Who has a path: one in ten is nowhere, and the two public caches have the same.
fn has(upstream: usize, path: u64) -> bool {
    let (kind, office) = (mixed(path) % 100, mixed(path ^ 1) % 100);
    match upstream {
        0 => office < 40 && kind < 90,
        _ => kind < 85,
    }
}

#[derive(Clone, Copy, Debug)]
enum Reply {
    Has,
    Absent,
    Failed(Option<Duration>),
}

/// A question to an upstream, and for whom: a race and its runner, or a probe.
#[derive(Clone, Copy)]
struct Question {
    upstream: usize,
    began: Instant,
    asker: Option<(u64, usize)>,
}

enum Due {
    Session,
    Wake(u64),
    Answer(Question, Reply),
    Probe(usize),
    /// A probe was answered, or was waited for long enough.
    Probed(usize),
}

struct Request {
    race: Race<()>,
    path: u64,
    session: usize,
    begun: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Hour {
    requests: u64,
    /// Hedges, and failovers.
    beside: [u64; 2],
}

#[derive(Default)]
struct Outcome {
    hours: [Hour; HOURS],
    beside: [u64; 2],
    took: Vec<Duration>,
    found: u64,
    absent: u64,
    unknown: u64,
    /// Paths that were said to be absent, though an upstream that works, and has worked for [`BACK_WITHIN`], has them.
    wrong: Vec<(Duration, u64)>,
}

struct Office {
    clocks: Rc<Jumping>,
    random: Random,
    hedges: Budget,
    upstreams: Vec<Simulated>,
    due: BinaryHeap<Reverse<(Duration, u64)>>,
    what: HashMap<u64, Due>,
    requests: HashMap<u64, Request>,
    /// The requests that are left of each session.
    sessions: Vec<usize>,
    pauses: HashMap<usize, Pauses>,
    ids: u64,
    outcome: Outcome,
}

impl Office {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let line = outages(&mut random, 2.0, |random| match random.next() % 2 {
            0 => Fault::Refuses,
            _ => Fault::Silent,
        });
        let upstream = |name: &str, priority, millis, outages| {
            let url = Url::parse(&format!("http://{name}.invalid")).unwrap();
            let options = UpstreamOptions { priority, ..UpstreamOptions::new(url, None) };
            let remote = Arc::new(Remote::new(options, &StoreDir::default(), Deadline::default().absent_after));
            Simulated { remote, latency: Duration::from_millis(millis), outages, in_flight: 0 }
        };
        let mut own = || {
            outages(&mut random, 8.0, |random| match random.next() % 4 {
                0 => Fault::Refuses,
                1 => Fault::Busy,
                2 => Fault::Silent,
                _ => Fault::Slow(random.within(5.0, 200.0)),
            })
        };
        let public = |mut own: Vec<Outage>| {
            own.extend(&line);
            own
        };
        let upstreams = vec![
            upstream("office", 40, 2, own()),
            upstream("public", 50, 25, public(own())),
            upstream("mirror", 50, 40, public(own())),
        ];
        Self {
            clocks: Jumping::begin(),
            random,
            hedges: Budget::new(HEDGES_SHARE),
            upstreams,
            due: BinaryHeap::new(),
            what: HashMap::new(),
            requests: HashMap::new(),
            sessions: Vec::new(),
            pauses: HashMap::new(),
            ids: 0,
            outcome: Outcome::default(),
        }
    }

    fn now(&self) -> Duration {
        self.clocks.elapsed.get()
    }

    fn at(&mut self, at: Duration, due: Due) {
        self.ids += 1;
        self.due.push(Reverse((at.max(self.now()), self.ids)));
        self.what.insert(self.ids, due);
    }

    fn day(mut self) -> Outcome {
        self.at(Duration::ZERO, Due::Session);
        while let Some(Reverse((at, id))) = self.due.pop() {
            self.count_beside();
            self.clocks.elapsed.set(at);
            match self.what.remove(&id).unwrap() {
                Due::Session => self.session(),
                Due::Wake(id) => self.drive(id),
                Due::Answer(question, reply) => self.answered(question, reply),
                Due::Probe(upstream) => self.probe(upstream),
                Due::Probed(upstream) => self.probe_again(upstream),
            }
        }
        self.count_beside();
        self.outcome
    }

    /// Those of this hour, before the clock moves on.
    fn count_beside(&mut self) {
        let hour = self.hour();
        for kind in [0, 1] {
            let all = self.upstreams.iter().map(|one| one.remote.counts.beside()[kind]).sum::<u64>();
            self.outcome.hours[hour].beside[kind] += all - self.outcome.beside[kind];
            self.outcome.beside[kind] = all;
        }
    }

    /// A closure that somebody asks for, and when the next one is.
    fn session(&mut self) {
        let hour = self.now().as_secs_f64() / 3600.0;
        let per_hour = if (8.0..18.0).contains(&hour) { 20.0 } else { 3.0 };
        let pause = HOUR.mul_f64(-self.random.within(0.0001, 1.0).ln() / per_hour);
        if self.now() + pause < HOUR * HOURS as u32 {
            self.at(self.now() + pause, Due::Session);
        }
        let paths = self.random.within(20.0, 300.0) as usize;
        self.sessions.push(paths);
        for _ in 0..AT_ONCE.min(paths) {
            self.request(self.sessions.len() - 1);
        }
    }

    fn request(&mut self, session: usize) {
        if self.sessions[session] == 0 {
            return;
        }
        self.sessions[session] -= 1;
        self.outcome.hours[self.hour()].requests += 1;
        self.hedges.earn();
        let remotes: Vec<_> = self.upstreams.iter().map(|upstream| Arc::clone(&upstream.remote)).collect();
        let race = Race::new(&remotes, Pace::ranked("narinfo", Deadline::default().absent_after));
        self.ids += 1;
        let (id, path, begun) = (self.ids, self.random.next(), self.now());
        self.requests.insert(id, Request { race, path, session, begun });
        self.drive(id);
    }

    fn hour(&self) -> usize {
        ((self.now().as_secs() / HOUR.as_secs()) as usize).min(HOURS - 1)
    }

    /// Does what a race wants done now.
    fn drive(&mut self, id: u64) {
        while let Some(request) = self.requests.get_mut(&id) {
            let step = request.race.step(&self.hedges, clock::instant());
            match step {
                Step::Ask(at) => {
                    let remote = Arc::clone(request.race.remote(at).unwrap());
                    let path = request.path;
                    let same = |one: &Simulated| Arc::ptr_eq(&one.remote, &remote);
                    let upstream = self.upstreams.iter().position(same).unwrap();
                    if self.ask(upstream, path, Some((id, at))).is_none() {
                        let busy = UpstreamAnswer::Failed(Unavailable::new(5, "too many requests"));
                        self.requests.get_mut(&id).unwrap().race.answer(at, busy, clock::instant());
                    }
                }
                Step::Wait(until) => {
                    let after = until.saturating_duration_since(clock::instant());
                    return self.at(self.now() + after, Due::Wake(id));
                }
                Step::End => return self.end(id),
            }
        }
    }

    /// Asks an upstream, unless too many requests to it are not answered. Returns when it will answer.
    fn ask(&mut self, upstream: usize, path: u64, asker: Option<(u64, usize)>) -> Option<Duration> {
        let now = self.now();
        let one = &mut self.upstreams[upstream];
        if one.in_flight >= ASKED_MAX {
            return None;
        }
        one.in_flight += 1;
        let latency = self.random.latency(one.latency);
        let reply = if has(upstream, path) { Reply::Has } else { Reply::Absent };
        // It can also begin to fail before the answer.
        let (at, reply) = match one.fault(now).or_else(|| one.fault(now + latency)) {
            None => (now + latency, reply),
            Some(Outage { fault: Fault::Refuses, .. }) => (now + Duration::from_millis(1), Reply::Failed(None)),
            Some(Outage { fault: Fault::Busy, .. }) => {
                let retry_after = self.random.next().is_multiple_of(3).then_some(Duration::from_secs(3));
                (now + latency, Reply::Failed(retry_after))
            }
            Some(Outage { fault: Fault::Silent, to, .. }) if to + latency < now + TIMEOUT => (to + latency, reply),
            Some(Outage { fault: Fault::Slow(factor), .. }) if latency.mul_f64(factor) < TIMEOUT => {
                (now + latency.mul_f64(factor), reply)
            }
            Some(Outage { fault: Fault::Silent | Fault::Slow(_), .. }) => (now + TIMEOUT, Reply::Failed(None)),
        };
        self.at(at, Due::Answer(Question { upstream, began: clock::instant(), asker }, reply));
        Some(at)
    }

    /// What [`Remote::narinfo`] does with an answer; it is used if somebody waits for it.
    fn answered(&mut self, question: Question, reply: Reply) {
        let Question { upstream, began, asker } = question;
        let one = &mut self.upstreams[upstream];
        one.in_flight -= 1;
        let time = clock::since(began);
        let answer = match reply {
            Reply::Has => UpstreamAnswer::Has(()),
            Reply::Absent => UpstreamAnswer::Absent,
            Reply::Failed(_) => UpstreamAnswer::Failed(Unavailable::new(5, "it has failed")),
        };
        let must_be_probed = match reply {
            Reply::Has | Reply::Absent => {
                one.remote.answered(
                    if matches!(reply, Reply::Has) { RequestOutcome::Found } else { RequestOutcome::Absent },
                    time,
                );
                false
            }
            Reply::Failed(retry_after) => one.remote.not_answered(began, time, retry_after),
        };
        self.probe_if(must_be_probed, upstream);
        if let Some((id, at)) = asker
            && let Some(request) = self.requests.get_mut(&id)
        {
            request.race.answer(at, answer, clock::instant());
            self.drive(id);
        }
    }

    fn probe_if(&mut self, must: bool, upstream: usize) {
        if must {
            self.pauses.insert(upstream, Pauses::default());
            self.probe_again(upstream);
        }
    }

    fn probe_again(&mut self, upstream: usize) {
        let random = self.random.fraction();
        let pause = self.pauses.get_mut(&upstream).unwrap().next(random);
        self.at(self.now() + pause, Due::Probe(upstream));
    }

    /// A turn of the thread that probes.
    fn probe(&mut self, upstream: usize) {
        let health = &self.upstreams[upstream].remote.health;
        if health.ends_probing() {
            return;
        }
        let (path, rests) = (self.random.next(), health.rests_for() > Duration::ZERO);
        let answer = if rests { None } else { self.ask(upstream, path, None) };
        let until = answer.map_or(self.now(), |at| at.min(self.now() + PROBE_WAIT));
        self.at(until, Due::Probed(upstream));
    }

    fn end(&mut self, id: u64) {
        let Request { race, path, session, begun } = self.requests.remove(&id).unwrap();
        let Ended { answer, late, .. } = race.end(clock::instant());
        for (remote, since) in late {
            let upstream = self.upstreams.iter().position(|one| Arc::ptr_eq(&one.remote, &remote)).unwrap();
            let unanswered = self.upstreams[upstream].in_flight;
            let within = Deadline::default().absent_after;
            let must = remote.health.late(since, within, unanswered);
            self.probe_if(must, upstream);
        }
        let now = self.now();
        let is_found = matches!(answer, Ok(Some(_)));
        let settled = begun.saturating_sub(BACK_WITHIN);
        let had = |(at, one): (usize, &Simulated)| has(at, path) && one.works(settled, now);
        if !is_found && self.upstreams.iter().enumerate().any(had) {
            self.outcome.wrong.push((begun, path));
        }
        match answer {
            Ok(Some(_)) => self.outcome.found += 1,
            Ok(None) => self.outcome.absent += 1,
            Err(_) => self.outcome.unknown += 1,
        }
        self.outcome.took.push(now - begun);
        self.request(session);
    }
}

/// Outages of a day, this many on average: from seconds to half an hour.
fn outages(random: &mut Random, count: f64, fault: impl Fn(&mut Random) -> Fault) -> Vec<Outage> {
    let (mut outages, mut at) = (Vec::new(), Duration::ZERO);
    loop {
        at += HOUR.mul_f64(-random.within(0.0001, 1.0).ln() * HOURS as f64 / count);
        if at > HOUR * HOURS as u32 {
            return outages;
        }
        let to = at + Duration::from_secs_f64(random.within(1.0, 7.5).exp());
        outages.push(Outage { from: at, to, fault: fault(random) });
        at = to;
    }
}

#[test]
fn a_day_of_an_office() {
    let variable = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (first, seeds) = (variable("NARVAL_SEED", 1), variable("NARVAL_SEEDS", 3));
    println!(
        "seed  requests   found  absent unknown  median     99 %  longest  hedges  worst hour  failovers  worst hour"
    );
    for seed in first..first + seeds {
        let Outcome { hours, mut took, found, absent, unknown, wrong, beside } = Office::new(seed).day();
        took.sort();
        let of_all = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
        let of_day = beside.map(|count| count as f64 / took.len() as f64);
        let of_hour = |kind: usize| {
            move |hour: &Hour| (hour.beside[kind] as f64 - BUDGET_MAX).max(0.0) / hour.requests.max(1) as f64
        };
        let worst = [0, 1].map(|kind| hours.iter().map(of_hour(kind)).fold(0.0, f64::max));
        println!(
            "{seed:>4} {:>9} {found:>7} {absent:>7} {unknown:>7} {:>4} ms {:>5} ms {:>5} ms {:>5.2} % {:>9.2} % {:>8.2} % {:>9.2} %",
            took.len(),
            of_all(0.5).as_millis(),
            of_all(0.99).as_millis(),
            of_all(1.0).as_millis(),
            100.0 * of_day[0],
            100.0 * worst[0],
            100.0 * of_day[1],
            100.0 * worst[1],
        );
        assert!(took.len() > 10_000, "seed {seed}: {} requests", took.len());
        assert!(of_all(1.0) <= Deadline::default().absent_after, "seed {seed}: {:?}", of_all(1.0));
        assert!(wrong.is_empty(), "seed {seed}: {} absent that were there, first {:?}", wrong.len(), wrong.first());
        assert!(worst[0] <= HEDGES_SHARE, "seed {seed}: hedges {worst:?}");
        // No budget refuses them. A trusted upstream that takes as long as clients wait, for a quarter of an hour, makes 12 % in an hour.
        assert!(of_day[1] <= RETRIES_SHARE, "seed {seed}: failovers {of_day:?}");
    }
}
