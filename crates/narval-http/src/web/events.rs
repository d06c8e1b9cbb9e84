//! Server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>).
//!
//! An open stream holds no thread. Any thread may send. The connection's shard forwards queued events, and an
//! occasional comment that keeps proxies from closing the connection and detects clients that are gone.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use crate::io::sync::Mutex;
use crate::message::body::Body;
use crate::message::body::source::{BodySource, BodyWaker, Fill, SegmentBuf};
use crate::message::response::Response;
use crate::ws::SendStatus;
use http::HeaderName;

/// A handle on a stream of server-sent events to one client; see [`Response::events`]. Handles are cheap, and any
/// thread may send. The stream ends when the last handle is dropped, when it is [closed](Self::close), when the client
/// disconnects, and when the server stops.
#[derive(Clone, Debug)]
pub struct EventStream {
    handle: Arc<Handle>,
}

/// Limits and heartbeat of a stream.
#[derive(Clone, Debug)]
pub struct EventOptions {
    heartbeat: Duration,
    soft_bytes: usize,
    hard_bytes: usize,
}

impl Default for EventOptions {
    /// A heartbeat every 15 s, [`Backpressure`](SendStatus::Backpressure) above 256 KiB,
    /// [`Dropped`](SendStatus::Dropped) above 1 MiB.
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(15), soft_bytes: 256 * 1024, hard_bytes: 1024 * 1024 }
    }
}

impl EventOptions {
    /// Sets after which idle time a comment is sent, which clients ignore.
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval.max(Duration::from_millis(1));
        self
    }

    /// Sets how many bytes may be queued: above `soft`, sending reports backpressure; events that would exceed `hard`
    /// are dropped.
    #[must_use]
    pub fn queue_bytes(mut self, soft: usize, hard: usize) -> Self {
        (self.soft_bytes, self.hard_bytes) = (soft, hard.max(soft));
        self
    }
}

impl Response {
    /// A stream of events: return the response, and send to the [`EventStream`], at once and from any thread.
    ///
    /// A browser that reconnects sends the last event id that it received in the field `Last-Event-ID`.
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
            // An nginx proxy would otherwise buffer the events.
            .header(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"))
            .body(Body::source(Source { shared: shared.clone() }, None));
        (response, EventStream { handle: Arc::new(Handle { shared }) })
    }
}

impl EventStream {
    /// Sends an event. Never blocks: the status says whether it was queued.
    pub fn send(&self, event: &Event) -> SendStatus {
        let Shared { options, state } = &*self.handle.shared;
        let mut state = state.lock();
        if !state.is_open() {
            return SendStatus::Closed;
        }
        let queued = state.queued_bytes + event.wire.len();
        // An event larger than the limit is allowed into an empty queue: otherwise it could never be sent.
        if state.queued_bytes > 0 && queued > options.hard_bytes {
            return SendStatus::Dropped;
        }
        state.queued_bytes = queued;
        state.queue.push_back(event.wire.clone());
        state.wake();
        if queued > options.soft_bytes { SendStatus::Backpressure } else { SendStatus::Queued }
    }

    /// Ends the stream after the queued events. A browser reconnects; answer 204 to make it stop.
    pub fn close(&self) {
        self.handle.shared.end();
    }

    /// Whether the stream is open.
    pub fn is_open(&self) -> bool {
        self.handle.shared.state.lock().is_open()
    }

    /// Calls `call` when the response has ended, at once if it has: the client has gone, or everything is sent after a
    /// [`close`](Self::close). It runs on the thread that serves the connection: it must not block.
    pub fn on_close(&self, call: impl FnOnce() + Send + 'static) {
        let mut state = self.handle.shared.state.lock();
        if state.gone {
            drop(state);
            call();
        } else {
            state.on_close.0.push(Box::new(call));
        }
    }

    /// The number of bytes queued for the client.
    pub fn queued_bytes(&self) -> usize {
        self.handle.shared.state.lock().queued_bytes
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

/// An event, encoded once however many streams it is sent to.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    wire: Bytes,
}

impl Event {
    /// An event with this text, which may have several lines.
    pub fn new(data: impl AsRef<str>) -> Self {
        let data = data.as_ref();
        let mut wire = Vec::with_capacity(data.len() + 16);
        // CR, LF and CRLF each end a line in the format.
        for line in data.replace("\r\n", "\n").split(['\n', '\r']) {
            wire.extend_from_slice(b"data: ");
            wire.extend_from_slice(line.as_bytes());
            wire.push(b'\n');
        }
        wire.push(b'\n');
        Self { wire: wire.into() }
    }

    /// Sets the event type, which a page passes to `addEventListener`. Default: `message`.
    #[must_use]
    pub fn name(self, name: impl AsRef<str>) -> Self {
        self.with("event: ", name.as_ref())
    }

    /// Sets the event id, which a client sends as `Last-Event-ID` when it reconnects.
    #[must_use]
    pub fn id(self, id: impl AsRef<str>) -> Self {
        self.with("id: ", id.as_ref())
    }

    /// Sets how long the client waits before it reconnects.
    #[must_use]
    pub fn retry(self, after: Duration) -> Self {
        self.with("retry: ", &after.as_millis().to_string())
    }

    /// The encoded event.
    pub fn as_bytes(&self) -> &[u8] {
        &self.wire
    }

    /// Prepends a line. Characters that would end it, or invalidate an id (NUL), are removed.
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

/// Shared by the handles: the stream ends when it is dropped.
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
    /// No more events are accepted; those in the queue are sent.
    ended: bool,
    /// The client is gone.
    gone: bool,
    /// When something was last sent.
    last: Instant,
    /// The connection waits for events.
    waker: Option<BodyWaker>,
    on_close: Calls,
}

/// Called when the response has ended.
#[derive(Default)]
struct Calls(Vec<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calls({})", self.0.len())
    }
}

impl Shared {
    fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.wake();
    }
}

impl State {
    fn new() -> Self {
        let (queue, on_close) = (VecDeque::new(), Calls::default());
        Self { queue, queued_bytes: 0, ended: false, gone: false, last: Instant::now(), waker: None, on_close }
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

/// The connection's side.
struct Source {
    shared: Arc<Shared>,
}

impl BodySource for Source {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let mut state = self.shared.state.lock();
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
        let mut state = self.shared.state.lock();
        if state.ended || !state.queue.is_empty() {
            return Duration::ZERO;
        }
        state.waker = Some(waker);
        // Never zero, which would mean that there is data now.
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
        let mut state = self.shared.state.lock();
        (state.gone, state.queue, state.queued_bytes, state.waker) = (true, VecDeque::new(), 0, None);
        let calls = std::mem::take(&mut state.on_close);
        drop(state);
        calls.0.into_iter().for_each(|call| call());
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
        let (sender, closed) = std::sync::mpsc::channel();
        let tell = |who| {
            let sender = sender.clone();
            move || sender.send(who).expect("somebody waits")
        };
        events.on_close(tell("open"));
        assert!(closed.try_recv().is_err());
        drop(source);
        events.on_close(tell("closed"));
        assert_eq!(closed.try_iter().collect::<Vec<_>>(), ["open", "closed"]);
        assert_eq!(events.send(&Event::new("x")), SendStatus::Closed);
        assert!(!events.is_open());
    }
}
