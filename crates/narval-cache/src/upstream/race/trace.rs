//! What was asked of upstreams for a path, and what came of it: why a request was slow.
//!
//! What a thread asks while it [records](Traces::record) a request belongs to its trace. The last traces are in memory, and slow ones apart
//! from others: a closure of fast ones does not push them out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use narval_client::clock;
use narval_nix::HashPart;
use parking_lot::Mutex;

use crate::upstream::remote::Remote;

/// The maximum number of traces in memory that were slow, and of others; each takes a few hundred bytes.
const TRACES_MAX: usize = 1024;
/// From when on a request is slow.
const SLOW: Duration = Duration::from_millis(100);
/// The maximum number of events of one trace.
const EVENTS_MAX: usize = 64;
/// The longest text of a failure, in bytes.
const REASON_LEN_MAX: usize = 200;

/// One request for a path that was put to upstreams.
#[derive(Clone, Debug)]
pub struct Trace {
    hash_part: HashPart,
    begun: Instant,
    /// Whether it was for the NAR, and not the narinfo.
    pub is_nar: bool,
    /// When it began.
    pub at: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// How it ended.
    pub end: TraceEnd,
    /// What happened meanwhile, in this order; the first 64.
    pub events: Vec<Event>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEnd {
    /// It was found.
    Found,
    /// No upstream has it.
    Absent,
    /// It is not known who has it, or it could not be fetched.
    Failed(String),
}

/// What happened at one time.
#[derive(Clone, Debug)]
pub struct Event {
    at: Instant,
    /// How long after the request began.
    pub after: Duration,
    /// The address of the upstream.
    pub upstream: String,
    /// What it was asked for.
    pub what: &'static str,
    /// What happened.
    pub happened: Happened,
}

/// What an upstream was asked, or answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It was asked.
    Asked,
    /// It was asked while another one was waited for.
    AskedToo,
    /// It has it.
    Has,
    /// It does not have it.
    Absent,
    /// It failed.
    Failed(String),
    /// It had not answered when the time was over.
    Late,
    /// It had not answered when another one had.
    NotNeeded,
    /// It was not asked, because it does not answer.
    Down,
    /// It was not asked, because its presence filter does not have it.
    Filtered,
    /// It was left at this byte of a NAR.
    Left(u64, String),
}

impl Happened {
    pub(in crate::upstream) fn failed(reason: &str) -> Self {
        Self::Failed(shortened(reason))
    }
}

impl TraceEnd {
    pub(in crate::upstream) fn failed(reason: &str) -> Self {
        Self::Failed(shortened(reason))
    }
}

impl Event {
    pub(in crate::upstream) fn new(at: Instant, remote: &Remote, what: &'static str, happened: Happened) -> Self {
        Self { at, after: Duration::ZERO, upstream: remote.url().to_string(), what, happened }
    }
}

thread_local! {
    /// The events of the request that this thread works on.
    static EVENTS: RefCell<Option<Vec<Event>>> = const { RefCell::new(None) };
}

/// Adds events to the trace of the request that this thread works on, if any.
pub(in crate::upstream) fn add(events: impl IntoIterator<Item = Event>) {
    EVENTS.with_borrow_mut(|all| {
        if let Some(all) = all {
            let left = EVENTS_MAX.saturating_sub(all.len());
            all.extend(events.into_iter().take(left));
        }
    });
}

/// Adds what happens now.
pub(in crate::upstream) fn now(remote: &Remote, what: &'static str, happened: Happened) {
    add([Event::new(clock::instant(), remote, what, happened)]);
}

/// Adds that a NAR is not read on from an upstream.
pub(in crate::upstream) fn left(remote: &Remote, position: u64, reason: &str) {
    now(remote, "NAR", Happened::Left(position, shortened(reason)));
}

/// The last traces.
#[derive(Default)]
pub(in crate::upstream) struct Traces(Mutex<[VecDeque<Trace>; 2]>);

impl Traces {
    /// Does the work of a request, and remembers what was asked meanwhile, if anything was.
    pub(in crate::upstream) fn record<T>(
        &self,
        hash_part: HashPart,
        is_nar: bool,
        work: impl FnOnce() -> T,
        end: impl FnOnce(&T) -> TraceEnd,
    ) -> T {
        let (begun, at) = (clock::instant(), clock::system_time());
        let before = EVENTS.replace(Some(Vec::new()));
        let done = work();
        let mut events = EVENTS.replace(before).unwrap_or_default();
        if !events.is_empty() {
            events.sort_by_key(|event| event.at);
            for event in &mut events {
                event.after = event.at.saturating_duration_since(begun);
            }
            let took = clock::since(begun);
            self.add(Trace { hash_part, begun, is_nar, at, took, end: end(&done), events });
        }
        done
    }

    fn add(&self, trace: Trace) {
        let mut traces = self.0.lock();
        let [fast, slow] = &mut *traces;
        let ring = if trace.took < SLOW { fast } else { slow };
        if ring.len() >= TRACES_MAX {
            ring.pop_front();
        }
        ring.push_back(trace);
    }

    /// The traces of the last requests for a path: for its narinfo, and for its NAR.
    pub(in crate::upstream) fn of(&self, hash_part: &HashPart) -> Vec<Trace> {
        let traces = self.0.lock();
        let last = |is_nar| {
            let fits = |trace: &&Trace| trace.hash_part == *hash_part && trace.is_nar == is_nar;
            traces.iter().filter_map(|ring| ring.iter().rev().find(fits)).max_by_key(|trace| trace.begun).cloned()
        };
        [last(false), last(true)].into_iter().flatten().collect()
    }
}

/// The trace of a narinfo that was found, or not.
pub(in crate::upstream) fn end_of<T, E: ToString>(result: &Result<Option<T>, E>) -> TraceEnd {
    match result {
        Ok(Some(_)) => TraceEnd::Found,
        Ok(None) => TraceEnd::Absent,
        Err(error) => TraceEnd::failed(&error.to_string()),
    }
}

/// The start of a text, without control characters: it may be that of an upstream.
fn shortened(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(REASON_LEN_MAX)];
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(number: u8, took: Duration) -> Trace {
        let (begun, at) = (clock::instant(), clock::system_time());
        let hash_part = HashPart::from_digest(&[number; 20]);
        Trace { hash_part, begun, is_nar: false, at, took, end: TraceEnd::Absent, events: Vec::new() }
    }

    #[test]
    fn the_last_one_counts_and_fast_ones_push_out_no_slow_ones() {
        let traces = Traces::default();
        traces.add(trace(1, SLOW));
        for _ in 0..2 * TRACES_MAX {
            traces.add(trace(2, Duration::ZERO));
        }
        let one = |number| traces.of(&HashPart::from_digest(&[number; 20]));
        assert_eq!((one(1).len(), one(2).len(), one(3).len()), (1, 1, 0));
        traces.add(trace(1, Duration::ZERO));
        assert_eq!(one(1)[0].took, Duration::ZERO);
        assert_eq!(traces.0.lock()[0].len(), TRACES_MAX);
    }

    #[test]
    fn texts_of_upstreams_are_short_and_harmless() {
        assert_eq!(shortened("a\x1b[31m\nb"), "a [31m b");
        assert!(shortened(&"ü".repeat(500)).len() <= REASON_LEN_MAX);
    }
}
