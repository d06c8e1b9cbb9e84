//! The access log, written by a thread of its own, so that a slow disk does not delay responses.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use super::request_id::RequestId;
use crate::http1::head_parts::HeadRef;
use crate::peer::Peer;

/// Lines queued for the writer. Further ones are dropped, and counted.
const QUEUE_MAX: usize = 16 * 1024;

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
            knows_proxies: false,
            started: Instant::now(),
        }
    }

    /// The same for a server that was told which proxies to trust: what others say about their clients is left out.
    pub(crate) fn with_proxies(head: &HeadRef<'_>, id: RequestId) -> Self {
        let entry = Self { knows_proxies: true, ..Self::new(head, id) };
        if head.told().is_some() { entry } else { Self { forwarded_for: None, ..entry } }
    }
}

/// The start of a request, and its log entry if there is a log.
#[derive(Debug)]
pub(crate) struct Watch {
    /// When its head was complete.
    pub(crate) started: Instant,
    pub(crate) entry: Option<Box<Entry>>,
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
    dropped: Arc<AtomicU64>,
}

impl LogQueue {
    /// Starts the thread that writes to `log`. It ends when the queue is dropped, or earlier by [`end`](Self::end).
    pub(crate) fn start(log: Box<dyn AccessLog>) -> std::io::Result<(Self, std::thread::JoinHandle<()>)> {
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let thread = std::thread::Builder::new().name("access-log".into()).spawn(move || write_all(log, &receiver))?;
        Ok((Self { sender, dropped: Arc::default() }, thread))
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
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.sender.try_send(Some(entry)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A panic while writing one line must not lose all later ones.
fn guarded(method: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(method)).is_err() {
        tracing::error!("the access log panicked: lines may be missing");
    }
}

fn write_all(mut log: Box<dyn AccessLog>, entries: &Receiver<Option<Box<Entry>>>) {
    while let Ok(Some(entry)) = entries.recv() {
        guarded(|| log.write(&entry));
        let is_last = loop {
            match entries.try_recv() {
                Ok(Some(entry)) => guarded(|| log.write(&entry)),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        guarded(|| log.flush());
        if is_last {
            return;
        }
    }
}
