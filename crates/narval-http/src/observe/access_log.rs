//! The access log, written by a thread of its own, so that a slow disk does not delay responses.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use super::request_id::RequestId;
use crate::http1::head_parts::HeadRef;
use crate::peer::Peer;

/// Lines queued for the writer. Further ones are dropped, and counted.
const QUEUE_MAX: usize = 16 * 1024;

/// Bytes of these lines: clients choose how long a request line, a `Referer` and a `User-Agent` are.
const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// An entry of the access log: an answered request.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The id of the request.
    pub id: RequestId,
    /// The other side of the connection: the client, or a proxy.
    pub peer: Peer,
    /// The client's address, as [`HeadRef::client_ip`].
    pub client: Option<IpAddr>,
    /// When the request's head was complete.
    pub time: SystemTime,
    /// `GET /path HTTP/1.1`, as sent.
    pub request_line: String,
    /// The status of the response.
    pub status: u16,
    /// Bytes sent, including the head.
    pub bytes: u64,
    /// From the complete request head to the last byte written to the socket.
    pub duration: Duration,
    /// Whether the response was aborted.
    pub aborted: bool,
    /// The `Referer` field.
    pub referer: Option<String>,
    /// The `User-Agent` field.
    pub user_agent: Option<String>,
    /// The `X-Real-IP` field, else `X-Forwarded-For`. With trusted proxies, only from them.
    pub forwarded_for: Option<String>,
    /// The trace that the client says the request is part of, from its `traceparent` (W3C Trace Context).
    pub trace_id: Option<String>,
    /// The server was told which proxies to trust.
    pub(super) knows_proxies: bool,
    started: Instant,
}

impl Entry {
    /// Starts the entry of a request whose head is complete now.
    pub fn new(head: &HeadRef<'_>, id: RequestId) -> Self {
        let text = |name| head.header_bytes(name).map(|value| String::from_utf8_lossy(value).into_owned());
        Self {
            id,
            peer: head.peer().clone(),
            client: head.client_ip(),
            time: SystemTime::now(),
            request_line: format!("{} {} {:?}", head.method(), head.target(), head.version()),
            status: 0,
            bytes: 0,
            duration: Duration::ZERO,
            aborted: false,
            referer: text("referer"),
            user_agent: text("user-agent"),
            forwarded_for: text("x-real-ip").or_else(|| text("x-forwarded-for")),
            trace_id: head.header_bytes("traceparent").and_then(trace_id),
            knows_proxies: false,
            started: Instant::now(),
        }
    }

    /// Bytes of memory that it takes.
    fn held(&self) -> usize {
        let fields = [&self.referer, &self.user_agent, &self.forwarded_for, &self.trace_id];
        let fields = fields.into_iter().flatten().map(String::capacity).sum::<usize>();
        size_of::<Self>() + self.request_line.capacity() + fields
    }

    /// The same for a server that was told which proxies to trust: what others say about their clients is left out.
    pub(crate) fn with_proxies(head: &HeadRef<'_>, id: RequestId) -> Self {
        let entry = Self { knows_proxies: true, ..Self::new(head, id) };
        if head.told().is_some() { entry } else { Self { forwarded_for: None, ..entry } }
    }
}

/// The 32 digits after `00-`. What is not of this form is no trace.
fn trace_id(traceparent: &[u8]) -> Option<String> {
    let id = traceparent.get(3..35)?;
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_id = id.iter().all(is_hex) && id.iter().any(|byte| *byte != b'0');
    let is_parent = traceparent.len() >= 55 && [2, 35, 52].iter().all(|at| traceparent.get(*at) == Some(&b'-'));
    (is_id && is_parent).then(|| String::from_utf8_lossy(id).into_owned())
}

/// The start of a request, and its log entry if there is a log.
#[derive(Debug)]
pub(crate) struct Watch {
    /// When its head was complete.
    pub(crate) started: Instant,
    pub(crate) entry: Option<Box<Entry>>,
}

impl Watch {
    /// Of a request whose head is complete now, if it is logged.
    pub(crate) fn of(entry: Option<Box<Entry>>) -> Option<Box<Self>> {
        entry.map(|entry| Box::new(Self { started: Instant::now(), entry: Some(entry) }))
    }
}

/// Writes the access log, on a thread of its own.
pub trait AccessLog: Send + 'static {
    /// Writes one entry.
    fn write(&mut self, entry: &Entry);

    /// Called when the queue is empty, so that buffered lines can be written.
    fn flush(&mut self) {}
}

/// The engine's side of the log.
#[derive(Debug)]
pub(crate) struct LogQueue {
    /// `None` ends the thread.
    sender: SyncSender<Option<Box<Entry>>>,
    /// Bytes of the queued entries.
    bytes: Arc<AtomicUsize>,
    dropped: AtomicU64,
}

impl LogQueue {
    /// Starts the thread that writes to `log`. It ends when the queue is dropped, or earlier by [`end`](Self::end).
    pub(crate) fn start(log: Box<dyn AccessLog>) -> std::io::Result<(Self, std::thread::JoinHandle<()>)> {
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let bytes = Arc::<AtomicUsize>::default();
        let entries = Entries { receiver, bytes: bytes.clone() };
        let thread = std::thread::Builder::new().name("access-log".into()).spawn(move || write_all(log, &entries))?;
        Ok((Self { sender, bytes, dropped: AtomicU64::new(0) }, thread))
    }

    /// Makes the thread end after the queued lines. Returns `false` if the queue has no room for that now.
    pub(crate) fn end(&self) -> bool {
        !matches!(self.sender.try_send(None), Err(TrySendError::Full(_)))
    }

    /// Lines dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn push(&self, mut entry: Box<Entry>, status: u16, bytes: u64, aborted: bool) {
        entry.status = status;
        entry.bytes = bytes;
        entry.aborted = aborted;
        entry.duration = entry.started.elapsed();
        let held = entry.held();
        let has_room = self.bytes.fetch_add(held, Ordering::Relaxed) + held <= QUEUE_BYTES_MAX;
        if !has_room || self.sender.try_send(Some(entry)).is_err() {
            self.bytes.fetch_sub(held, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The writer's side of the queue.
struct Entries {
    receiver: Receiver<Option<Box<Entry>>>,
    bytes: Arc<AtomicUsize>,
}

impl Entries {
    /// Writes an entry, which counts until then. Returns `false` for the end.
    fn write(&self, entry: Option<Box<Entry>>, log: &mut dyn AccessLog) -> bool {
        let Some(entry) = entry else { return false };
        guarded(|| log.write(&entry));
        self.bytes.fetch_sub(entry.held(), Ordering::Relaxed);
        true
    }
}

/// A panic while writing one line must not lose all later ones.
fn guarded(method: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(method)).is_err() {
        tracing::error!("the access log panicked: lines may be missing");
    }
}

fn write_all(mut log: Box<dyn AccessLog>, entries: &Entries) {
    while let Ok(entry) = entries.receiver.recv() {
        let mut goes_on = entries.write(entry, &mut *log);
        while goes_on && let Ok(entry) = entries.receiver.try_recv() {
            goes_on = entries.write(entry, &mut *log);
        }
        guarded(|| log.flush());
        if !goes_on {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::http1::head::parse_head;
    use crate::limits::HeadLimits;

    /// A log whose disk stands still until its channel is closed.
    struct Stuck(Receiver<()>);

    impl AccessLog for Stuck {
        fn write(&mut self, _: &Entry) {
            // It fails once the disk works again.
            let _ = self.0.recv();
        }
    }

    #[test]
    fn long_lines_that_wait_for_the_disk_are_bounded_in_bytes() {
        let (disk, stuck) = channel();
        let (queue, thread) = LogQueue::start(Box::new(Stuck(stuck))).unwrap();
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\nreferer: {}\r\n\r\n", "a".repeat(15_000));
        let parts = parse_head(head.as_bytes(), &HeadLimits::default()).unwrap().unwrap().parts;
        let push = || {
            let entry = Entry::new(&HeadRef::new(head.as_bytes(), &parts, &Peer::Unix.into()), RequestId::NONE);
            queue.push(Box::new(entry), 200, 0, false);
        };
        (0..2000).for_each(|_| push());
        assert!(queue.bytes.load(Ordering::Relaxed) <= QUEUE_BYTES_MAX);
        assert!(queue.dropped() >= 900, "{} of 2000 were dropped", queue.dropped());
        drop(disk);
        while queue.bytes.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        let dropped = queue.dropped();
        push();
        assert_eq!(queue.dropped(), dropped, "there is room again");
        assert!(queue.end());
        thread.join().unwrap();
    }
}
