//! A timeline of what every thread did, in the format of `chrome://tracing` and Perfetto.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a thread was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// Reading from the network.
    Fetch,
    /// Decompressing.
    Decompress,
    /// Computing the NAR's hash.
    Hash,
    /// Writing files.
    Write,
    /// Waiting for a core.
    Wait,
    /// A whole path.
    Path,
}

impl Span {
    const fn name(self) -> &'static str {
        match self {
            Self::Fetch => "fetch",
            Self::Decompress => "decompress",
            Self::Hash => "hash",
            Self::Write => "write",
            Self::Wait => "wait for a core",
            Self::Path => "path",
        }
    }
}

struct Event {
    name: String,
    kind: Span,
    thread: u64,
    start_us: u64,
    len_us: u64,
}

/// The maximum number of spans, about 60 MB; a closure of 100 GB has fewer.
const EVENTS_MAX: usize = 1_000_000;

/// The timeline; free when disabled.
pub struct Trace {
    since: Instant,
    events: Option<Mutex<Vec<Event>>>,
}

thread_local! {
    static THREAD: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Trace {
    /// A timeline, recorded if `on`.
    pub fn new(on: bool) -> Self {
        Self { since: Instant::now(), events: on.then(Mutex::default) }
    }

    pub(crate) fn begin(&self) -> Option<Instant> {
        self.events.as_ref().map(|_| Instant::now())
    }

    pub(crate) fn end(&self, start: Option<Instant>, kind: Span) {
        self.end_named(start, kind, kind.name());
    }

    pub(crate) fn end_named(&self, start: Option<Instant>, kind: Span, name: &str) {
        let (Some(events), Some(start)) = (&self.events, start) else { return };
        let micros = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let (start_us, len_us) = (micros(start.duration_since(self.since)), micros(start.elapsed()));
        let mut events = events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < EVENTS_MAX {
            events.push(Event { name: name.to_owned(), kind, thread: THREAD.get(), start_us, len_us });
        }
    }

    /// The number of this thread.
    pub(crate) fn thread_number() -> u64 {
        THREAD.get()
    }

    /// Sets this thread's number on the timeline.
    pub(crate) fn name_thread(number: u64) {
        THREAD.set(number);
    }

    /// Writes it as JSON (Trace Event Format, complete events).
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        if let Some(events) = &self.events {
            for (index, event) in events.lock().unwrap_or_else(PoisonError::into_inner).iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let name = serde_json::Value::String(event.name.clone());
                let (kind, thread) = (event.kind.name(), event.thread);
                let (start, len) = (event.start_us, event.len_us);
                writeln!(
                    out,
                    "{comma}{{\"name\":{name},\"cat\":\"{kind}\",\"ph\":\"X\",\"pid\":1,\"tid\":{thread},\"ts\":{start},\"dur\":{len}}}"
                )?;
            }
        }
        writeln!(out, "]}}")?;
        out.flush()
    }
}
