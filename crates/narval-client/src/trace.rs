//! What work takes: histograms of all of it, and spans of sampled requests, for a collector.
//!
//! A request carries its context as `traceparent` (W3C Trace Context, <https://www.w3.org/TR/trace-context/>). A server [accepts](accept) it, each span
//! within becomes the parent of the next, and requests that are sent meanwhile pass it on. Where nobody [collects](collect) spans, nothing is accepted
//! or passed on, and the clock is not read for it.

use std::cell::Cell;
use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use crate::message::context::Context;
use crate::message::request_id::{self, Carried};

/// Spans that wait for the collector; further ones are dropped, and counted.
const WAITING_MAX: usize = 4096;
/// Upper bounds of the buckets, in seconds.
pub const SECONDS: [f64; 11] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0];

/// Whether anybody collects spans.
static IS_ON: AtomicBool = AtomicBool::new(false);
static COLLECTOR: OnceLock<Collector> = OnceLock::new();
static TIMES: [TimesCounter<{ SECONDS.len() + 1 }>; 3] = [const { TimesCounter::new() }; 3];

struct Collector {
    spans: SyncSender<Finished>,
    /// The share of the requests without a context that are sampled.
    share: f64,
    dropped: AtomicU64,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Answering a request: up to the answer's first byte.
    Request,
    /// A request to another server, up to the first byte of its answer.
    Server,
    /// The same, to an object store.
    Storage,
    /// A read of an index or of a store's database.
    DatabaseRead,
    /// A transaction that may change an index.
    DatabaseWrite,
}

impl Work {
    /// Others are measured elsewhere.
    fn cells(self) -> Option<&'static TimesCounter<{ SECONDS.len() + 1 }>> {
        let [storage, read, write] = &TIMES;
        match self {
            Self::Request | Self::Server => None,
            Self::Storage => Some(storage),
            Self::DatabaseRead => Some(read),
            Self::DatabaseWrite => Some(write),
        }
    }
}

/// How often something took how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Times<const N: usize> {
    /// How many did not take longer than each of some bounds.
    pub counts: [u64; N],
    /// All of them.
    pub count: u64,
    /// The sum.
    pub sum: Duration,
}

impl<const N: usize> Times<N> {
    /// `counts`: those between each bound and the one before, and then those beyond the last one.
    pub fn of(counts: impl IntoIterator<Item = u64>, sum: Duration) -> Self {
        let mut times = Self { counts: [0; N], count: 0, sum };
        for (at, count) in counts.into_iter().enumerate() {
            times.count += count;
            if let Some(counted) = times.counts.get_mut(at) {
                *counted = times.count;
            }
        }
        times
    }
}

/// Counts how often something took how long. `M` is one more than the number of bounds: the last one counts the rest.
#[derive(Debug)]
pub struct TimesCounter<const M: usize> {
    counts: [AtomicU64; M],
    nanos: AtomicU64,
}

impl<const M: usize> TimesCounter<M> {
    /// Nothing is counted yet.
    pub const fn new() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; M], nanos: AtomicU64::new(0) }
    }

    /// Counts one, by these bounds.
    pub fn add(&self, bounds: &[f64], time: Duration) {
        let at = bounds.iter().position(|bound| time.as_secs_f64() <= *bound).unwrap_or(bounds.len());
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What was counted.
    pub fn times<const N: usize>(&self) -> Times<N> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Times::of(counts, Duration::from_nanos(self.nanos.load(Ordering::Relaxed)))
    }
}

impl<const M: usize> Default for TimesCounter<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// How long this work has taken in this process.
pub fn times(work: Work) -> Times<{ SECONDS.len() }> {
    work.cells().map_or_else(|| Times::of([], Duration::ZERO), TimesCounter::times)
}

/// A span that is over.
#[derive(Clone, Debug)]
pub struct Finished {
    /// What was done.
    pub work: Work,
    /// Its name.
    pub name: String,
    /// It, in its trace.
    pub context: Context,
    /// The span that it is a part of; 0 if it is the first of its trace.
    pub parent: u64,
    /// When it began, since 1970.
    pub begun: Duration,
    /// How long it took.
    pub took: Duration,
    /// What is known of it.
    pub notes: Vec<(&'static str, String)>,
    /// Whether it failed.
    pub is_failed: bool,
}

/// Has spans collected from now on: those of requests that say so, and of this share of the others. Only the first call has an effect; others
/// return `None`.
pub fn collect(share: f64) -> Option<Receiver<Finished>> {
    let (spans, receiver) = sync_channel(WAITING_MAX);
    COLLECTOR.set(Collector { spans, share, dropped: AtomicU64::new(0) }).ok()?;
    IS_ON.store(true, Ordering::Release);
    Some(receiver)
}

/// Whether spans are collected.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// The spans that were dropped, because the collector was too slow or away.
pub fn dropped() -> u64 {
    COLLECTOR.get().map_or(0, |collector| collector.dropped.load(Ordering::Relaxed))
}

/// Counts spans that were lost on their way.
pub fn lost(count: u64) {
    if let Some(collector) = COLLECTOR.get() {
        collector.dropped.fetch_add(count, Ordering::Relaxed);
    }
}

/// The context of a request: that which its `traceparent` says, or a new one if it is sampled.
pub fn accept<'a>(traceparent: impl FnOnce() -> Option<&'a [u8]>) -> Option<Context> {
    let collector = COLLECTOR.get().filter(|_| is_on())?;
    if let Some(context) = traceparent().and_then(Context::parse) {
        return Some(context);
    }
    let is_sampled = (random() >> 11) as f64 / ((1_u64 << 53) as f64) < collector.share;
    is_sampled.then(|| Context { trace: (u128::from(random()) << 64) | u128::from(random()), span: 0, is_sampled })
}

/// A number that is not 0. Ids need to differ, not to be secret.
fn random() -> u64 {
    thread_local! {
        static NEXT: (RandomState, Cell<u64>) = (RandomState::new(), const { Cell::new(0) });
    }
    let drawn = NEXT.with(|(keys, next)| keys.hash_one(next.replace(next.get().wrapping_add(1))));
    drawn.max(1)
}

/// Work that is being done; it ends when this is dropped.
#[must_use = "the span ends when it is dropped"]
pub struct Span {
    work: Work,
    /// `None`: nobody wants to know how long it takes, and the clock is not read.
    begun: Option<Instant>,
    recorded: Option<Box<Recorded>>,
}

struct Recorded {
    finished: Finished,
    _entered: request_id::Entered,
}

/// Begins some work of this thread. `name` is only asked if it is recorded.
pub fn begin(work: Work, name: impl FnOnce() -> String) -> Span {
    let recorded = if is_on() { record(work, name) } else { None };
    let is_measured = recorded.is_some() || work.cells().is_some();
    Span { work, begun: is_measured.then(Instant::now), recorded }
}

fn record(work: Work, name: impl FnOnce() -> String) -> Option<Box<Recorded>> {
    let carried = request_id::current();
    let parent = carried.trace().filter(|context| context.is_sampled)?;
    let context = Context { span: random(), ..parent };
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (parent, notes, took) = (parent.span, Vec::new(), Duration::ZERO);
    let finished = Finished { work, name: name(), context, parent, begun, took, notes, is_failed: false };
    let entered = request_id::enter(Carried::new(carried.id().cloned(), Some(context)));
    Some(Box::new(Recorded { finished, _entered: entered }))
}

impl Span {
    /// Gives it a name that says more, made from the one that it has.
    pub fn rename(&mut self, name: impl FnOnce(&str) -> String) {
        if let Some(recorded) = &mut self.recorded {
            recorded.finished.name = name(&recorded.finished.name);
        }
    }

    /// Adds something that is known of the work. It is only asked if it is recorded.
    pub fn note(&mut self, name: &'static str, value: impl FnOnce() -> String) {
        if let Some(recorded) = &mut self.recorded {
            recorded.finished.notes.push((name, value()));
        }
    }

    /// A server was asked for this: the status of its answer, or why there is none.
    pub(crate) fn answered(&mut self, answer: Result<u16, &dyn Display>) {
        match answer {
            Ok(status) => {
                self.note("http.response.status_code", || status.to_string());
                if status >= 500 {
                    self.fail();
                }
            }
            Err(error) => {
                self.note("error.message", || error.to_string());
                self.fail();
            }
        }
    }

    /// The work has failed.
    pub fn fail(&mut self) {
        if let Some(recorded) = &mut self.recorded {
            recorded.finished.is_failed = true;
        }
    }

    /// Nothing was done.
    pub fn cancel(mut self) {
        self.recorded = None;
        std::mem::forget(self);
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(took) = self.begun.map(|begun| begun.elapsed()) else { return };
        if let Some(cells) = self.work.cells() {
            cells.add(&SECONDS, took);
        }
        if let (Some(recorded), Some(collector)) = (self.recorded.take(), COLLECTOR.get()) {
            let finished = Finished { took, ..recorded.finished.clone() };
            if collector.spans.try_send(finished).is_err() {
                collector.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test: what is collected is the process's.
    #[test]
    fn spans_are_parts_of_those_around_them_and_others_cost_nothing() {
        assert!(accept(|| panic!("nobody collects")).is_none());
        drop(begin(Work::DatabaseRead, || panic!("nobody collects")));
        assert!(times(Work::DatabaseRead).count >= 1);
        let spans = collect(0.0).unwrap();
        assert!(collect(1.0).is_none());
        assert!(accept(|| None).is_none(), "not sampled");
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = accept(|| Some(parent.as_bytes())).unwrap();
        let entered = request_id::enter(Carried::new(None, Some(context)));
        let mut request = begin(Work::Request, || "GET".to_owned());
        request.note("status", || "200".to_owned());
        let carried = request_id::current();
        let other = std::thread::spawn(move || {
            let _entered = request_id::enter(carried);
            begin(Work::Storage, || "PUT".to_owned()).fail();
            request_id::current().trace()
        });
        assert!(other.join().unwrap().is_some());
        begin(Work::DatabaseWrite, || "never".to_owned()).cancel();
        drop(request);
        drop(entered);
        drop(begin(Work::Request, || panic!("outside")));
        let (part, whole) = (spans.recv().unwrap(), spans.recv().unwrap());
        assert_eq!((whole.context.trace, whole.parent, part.parent), (context.trace, context.span, whole.context.span));
        assert!(part.is_failed && part.took <= whole.took && whole.notes == [("status", "200".to_owned())]);
        assert!(spans.try_recv().is_err());
        // A collector that is away: the queue is full, and nothing waits.
        let _entered = request_id::enter(Carried::new(None, Some(context)));
        for _ in 0..WAITING_MAX + 10 {
            drop(begin(Work::Request, String::new));
        }
        assert_eq!(dropped(), 10);
    }
}
