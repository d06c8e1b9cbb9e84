//! Server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>).
//!
//! An open stream holds no thread. Any thread sends; the connection's shard passes on what was queued, and a comment from
//! time to time, so that proxies keep the connection and a client that is gone is noticed.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use crate::message::body::Body;
use crate::message::body_source::{BodySource, BodyWaker, Fill, SegmentBuf};
use crate::ws::SendStatus;
use crate::{HeaderName, Response};

/// A stream of server-sent events to one client; see [`Response::events`]. A cheap handle: any thread may hold one, and
/// send. The stream ends when the last handle is dropped, when it is [closed](Self::close), when the client leaves, and
/// when the server stops.
#[derive(Clone, Debug)]
pub struct EventStream {
    handle: Arc<Handle>,
}

/// What a stream may cost, and how often a silent one is heard of.
#[derive(Clone, Debug)]
pub struct EventOptions {
    heartbeat: Duration,
    soft_bytes: usize,
    hard_bytes: usize,
}

impl Default for EventOptions {
    /// A heartbeat each 15 s, [`Backpressure`](SendStatus::Backpressure) above 256 KiB, [`Dropped`](SendStatus::Dropped)
    /// above 1 MiB.
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(15), soft_bytes: 256 * 1024, hard_bytes: 1024 * 1024 }
    }
}

impl EventOptions {
    /// How long nothing may be sent before a comment is, which clients ignore.
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval.max(Duration::from_millis(1));
        self
    }

    /// How many bytes may wait for the client: above `soft` sending reports backpressure, and events that would go above
    /// `hard` are dropped.
    #[must_use]
    pub fn queue_bytes(mut self, soft: usize, hard: usize) -> Self {
        (self.soft_bytes, self.hard_bytes) = (soft, hard.max(soft));
        self
    }
}

impl Response {
    /// A stream of events: return the response, and send to the [`EventStream`], from now on and from any thread.
    ///
    /// A browser that was disconnected says in the field `Last-Event-ID` what it saw last.
    ///
    /// ```
    /// use narval_http::{Event, EventOptions, Request, Response};
    ///
    /// fn ticks(_: Request) -> Response {
    ///     let (response, events) = Response::events(EventOptions::default());
    ///     std::thread::spawn(move || {
    ///         let mut n = 0;
    ///         while events.send(&Event::new(format!("tick {n}")).id(n.to_string())).is_accepted() {
    ///             n += 1;
    ///             std::thread::sleep(std::time::Duration::from_secs(1));
    ///         }
    ///     });
    ///     response
    /// }
    /// ```
    pub fn events(options: EventOptions) -> (Self, EventStream) {
        let state = State { last: Instant::now(), ..State::new() };
        let shared = Arc::new(Shared { options, state: Mutex::new(state) });
        let response = Self::new(StatusCode::OK)
            .header(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))
            .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
            // nginx in front would hold events back until it has a buffer full.
            .header(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"))
            .body(Body::source(Source { shared: shared.clone() }, None));
        (response, EventStream { handle: Arc::new(Handle { shared }) })
    }
}

impl EventStream {
    /// Sends an event. Never waits: the status says what became of it.
    pub fn send(&self, event: &Event) -> SendStatus {
        let Shared { options, state } = &*self.handle.shared;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_open() {
            return SendStatus::Closed;
        }
        let queued = state.queued_bytes + event.wire.len();
        // An event larger than the limit is let through when nothing waits: else it could never be sent.
        if state.queued_bytes > 0 && queued > options.hard_bytes {
            return SendStatus::Dropped;
        }
        state.queued_bytes = queued;
        state.queue.push_back(event.wire.clone());
        state.wake();
        if queued > options.soft_bytes { SendStatus::Backpressure } else { SendStatus::Queued }
    }

    /// Ends the stream when what is queued has been sent. A browser connects again: answer 204 to tell it not to.
    pub fn close(&self) {
        self.handle.shared.end();
    }

    /// Whether events are still taken.
    pub fn is_open(&self) -> bool {
        self.handle.shared.lock().is_open()
    }

    /// Bytes that wait for the client.
    pub fn queued_bytes(&self) -> usize {
        self.handle.shared.lock().queued_bytes
    }
}

impl PartialEq for EventStream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }
}

impl Eq for EventStream {}

impl Hash for EventStream {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.handle).hash(state);
    }
}

/// One event, encoded once however many streams it is sent to.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    wire: Bytes,
}

impl Event {
    /// An event with this text, of any number of lines.
    pub fn new(data: impl AsRef<str>) -> Self {
        let data = data.as_ref();
        let mut wire = Vec::with_capacity(data.len() + 16);
        // CR, LF and CRLF each end a line there.
        for line in data.replace("\r\n", "\n").split(['\n', '\r']) {
            wire.extend_from_slice(b"data: ");
            wire.extend_from_slice(line.as_bytes());
            wire.push(b'\n');
        }
        wire.push(b'\n');
        Self { wire: wire.into() }
    }

    /// Names the kind of event: what a page listens for with `addEventListener`. Without, it is `message`.
    #[must_use]
    pub fn name(self, name: impl AsRef<str>) -> Self {
        self.with("event: ", name.as_ref())
    }

    /// Names the event itself: what a client sends as `Last-Event-ID` when it connects again.
    #[must_use]
    pub fn id(self, id: impl AsRef<str>) -> Self {
        self.with("id: ", id.as_ref())
    }

    /// How long the client is to wait before it connects again.
    #[must_use]
    pub fn retry(self, after: Duration) -> Self {
        self.with("retry: ", &after.as_millis().to_string())
    }

    /// The event as it is sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.wire
    }

    /// Puts a line in front; what would end it, or void an id (NUL), is left out.
    fn with(self, field: &str, value: &str) -> Self {
        let value: String = value.chars().filter(|c| !matches!(c, '\r' | '\n' | '\0')).collect();
        Self { wire: [field.as_bytes(), value.as_bytes(), b"\n", &self.wire].concat().into() }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?})", String::from_utf8_lossy(&self.wire))
    }
}

/// What the handles share: the stream ends with it.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.end();
    }
}

#[derive(Debug)]
struct Shared {
    options: EventOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
    /// No more events are taken; those that wait are sent.
    ended: bool,
    /// Nobody takes them.
    gone: bool,
    /// When something was last passed on.
    last: Instant,
    /// The connection waits for events.
    waker: Option<BodyWaker>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.wake();
    }
}

impl State {
    fn new() -> Self {
        Self { queue: VecDeque::new(), queued_bytes: 0, ended: false, gone: false, last: Instant::now(), waker: None }
    }

    fn is_open(&self) -> bool {
        !self.ended && !self.gone
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The connection's end.
struct Source {
    shared: Arc<Shared>,
}

impl BodySource for Source {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let mut state = self.shared.lock();
        while out.room() > 0
            && let Some(event) = state.queue.pop_front()
        {
            state.queued_bytes -= event.len();
            out.memory().extend_from_slice(&event);
        }
        if !state.queue.is_empty() {
            return Ok(Fill::More);
        }
        // An idle stream holds no buffer.
        state.queue = VecDeque::new();
        if state.ended {
            return Ok(Fill::Done);
        }
        if out.memory().is_empty() && state.last.elapsed() >= self.shared.options.heartbeat {
            out.memory().extend_from_slice(b":\n\n");
        }
        if !out.memory().is_empty() {
            state.last = Instant::now();
        }
        Ok(Fill::Wait)
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        let mut state = self.shared.lock();
        if state.ended || !state.queue.is_empty() {
            return Duration::ZERO;
        }
        state.waker = Some(waker);
        // Never zero: that would mean that there is something now.
        self.shared.options.heartbeat.saturating_sub(state.last.elapsed()).max(Duration::from_millis(1))
    }

    fn hang_up(&mut self) -> bool {
        self.shared.end();
        true
    }

    fn never_blocks(&self) -> bool {
        true
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        (state.gone, state.queue, state.queued_bytes, state.waker) = (true, VecDeque::new(), 0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_encoded_line_by_line() {
        assert_eq!(Event::new("one").as_bytes(), b"data: one\n\n");
        assert_eq!(Event::new("a\nb\r\nc\rd").as_bytes(), b"data: a\ndata: b\ndata: c\ndata: d\n\n");
        assert_eq!(Event::new("").as_bytes(), b"data: \n\n");
        let event = Event::new("x").name("up\ndate").id("7\0").retry(Duration::from_secs(2));
        assert_eq!(event.as_bytes(), b"retry: 2000\nid: 7\nevent: update\ndata: x\n\n");
    }

    /// The stream and its source.
    fn open(options: EventOptions) -> (EventStream, Box<dyn BodySource>) {
        let (mut response, events) = Response::events(options);
        match std::mem::take(response.plain().1).kind {
            crate::message::body::BodyKind::Source { source, .. } => (events, source),
            other => panic!("{other:?}"),
        }
    }

    fn filled(source: &mut dyn BodySource) -> (String, Fill) {
        let mut out = SegmentBuf::default();
        let fill = source.fill(&mut out).expect("no error");
        (String::from_utf8(out.memory).expect("text"), fill)
    }

    #[test]
    fn a_silent_stream_beats_and_a_busy_one_does_not() {
        let (events, mut source) = open(EventOptions::default().heartbeat(Duration::from_secs(3600)));
        assert_eq!(filled(&mut *source), (String::new(), Fill::Wait));
        assert_eq!(events.send(&Event::new("x")), SendStatus::Queued);
        assert_eq!(filled(&mut *source), ("data: x\n\n".to_owned(), Fill::Wait));
        let (_events, mut source) = open(EventOptions::default().heartbeat(Duration::ZERO));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(filled(&mut *source), (":\n\n".to_owned(), Fill::Wait));
    }

    #[test]
    fn a_full_queue_says_so_and_the_last_handle_ends_the_stream() {
        let (events, mut source) = open(EventOptions::default().queue_bytes(10, 20));
        let event = Event::new("x");
        assert_eq!(events.send(&event), SendStatus::Queued);
        assert_eq!(events.send(&event), SendStatus::Backpressure);
        assert_eq!(events.send(&event), SendStatus::Dropped);
        assert_eq!(events.queued_bytes(), 18);
        let other = events.clone();
        assert_eq!(events, other);
        drop(events);
        assert!(other.is_open());
        drop(other);
        assert_eq!(filled(&mut *source), ("data: x\n\ndata: x\n\n".to_owned(), Fill::Done));
    }

    #[test]
    fn where_nobody_listens_any_more_sending_says_so() {
        let (events, source) = open(EventOptions::default());
        drop(source);
        assert_eq!(events.send(&Event::new("x")), SendStatus::Closed);
        assert!(!events.is_open());
    }
}
