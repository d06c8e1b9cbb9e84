//! Live figures, sent once a second over a WebSocket. Nothing is sampled while no client is connected.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_http::ws::{CloseCode, SharedMessage, Upgrade, WebSocket, WsEvent};
use narval_http::{Request, Response};
use parking_lot::Mutex;

use crate::error::ServeError;

/// The interval between two samples.
const EVERY: Duration = Duration::from_secs(1);
/// The maximum number of viewers.
const VIEWERS_MAX: usize = 256;

/// A source of counters.
pub(crate) trait Counted: Send + Sync {
    /// All counters as one JSON object; `uptime` is in milliseconds.
    fn sample(&self, uptime: u64) -> String;
}

/// Whether a viewer may still see the figures.
pub(crate) type Permit = Box<dyn Fn() -> bool + Send + Sync>;

struct Viewer {
    socket: WebSocket,
    /// `None`: everybody may.
    permit: Option<Permit>,
}

/// See the module's description.
pub(super) struct Now {
    counted: Arc<dyn Counted>,
    since: Instant,
    viewers: Mutex<Viewers>,
}

#[derive(Default)]
struct Viewers {
    list: Vec<Viewer>,
    /// The number of those that the thread is sending to: it does not hold the lock meanwhile, because it asks the database whether they may
    /// still see the figures.
    away: usize,
    /// Whether the thread runs.
    is_sending: bool,
}

impl fmt::Debug for Now {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Now")
    }
}

impl Now {
    pub(super) fn new(counted: Arc<dyn Counted>) -> Self {
        Self { counted, since: Instant::now(), viewers: Mutex::default() }
    }

    /// Upgrades a request to a WebSocket. Only pages of this server may connect.
    pub(super) fn join(this: &Arc<Self>, request: &Request, permit: Option<Permit>) -> Result<Response, ServeError> {
        let upgrade = Upgrade::new(request).and_then(Upgrade::same_origin);
        let upgrade =
            upgrade.map_err(|_| ServeError::Upload("this WebSocket is only for the page of this server".into()))?;
        let this = Arc::clone(this);
        let permit = Mutex::new(permit);
        Ok(upgrade.accept(move |socket: &WebSocket, event| {
            if matches!(event, WsEvent::Open) {
                let permit = permit.lock().take();
                this.open(socket, permit);
            }
        }))
    }

    fn open(self: &Arc<Self>, socket: &WebSocket, permit: Option<Permit>) {
        let mut viewers = self.viewers.lock();
        if viewers.list.len() + viewers.away >= VIEWERS_MAX {
            drop(viewers);
            socket.close(CloseCode::POLICY_VIOLATION, "too many viewers");
            return;
        }
        viewers.list.push(Viewer { socket: socket.clone(), permit });
        let is_sending = std::mem::replace(&mut viewers.is_sending, true);
        drop(viewers);
        if !is_sending {
            let this = Arc::clone(self);
            let spawned = std::thread::Builder::new().name("page".into()).spawn(move || this.send());
            if let Err(error) = spawned {
                tracing::warn!("cannot send live figures: {error}");
                for viewer in std::mem::take(&mut *self.viewers.lock()).list {
                    viewer.socket.close(CloseCode::INTERNAL_ERROR, "no thread can be started");
                }
            }
        }
    }

    /// Sends samples until the last client has disconnected.
    fn send(&self) {
        loop {
            let uptime = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            let message = SharedMessage::new(self.counted.sample(uptime));
            let mut viewers = self.viewers.lock();
            let mut list = std::mem::take(&mut viewers.list);
            viewers.away = list.len();
            drop(viewers);
            list.retain(|viewer| viewer.send(&message));
            let mut viewers = self.viewers.lock();
            viewers.away = 0;
            viewers.list.append(&mut list);
            viewers.is_sending = !viewers.list.is_empty();
            if !viewers.is_sending {
                return;
            }
            drop(viewers);
            std::thread::sleep(EVERY);
        }
    }
}

impl Viewer {
    /// Sends a sample. Returns `false` if there is nobody any more.
    fn send(&self, message: &SharedMessage) -> bool {
        let Self { socket, permit } = self;
        if permit.as_ref().is_some_and(|permit| !permit()) {
            socket.close(CloseCode::POLICY_VIOLATION, "the token or the session has ended");
            return false;
        }
        // A viewer that does not keep up misses samples, until the connection's limit disconnects it.
        socket.is_open() && (socket.queued_bytes() > 0 || socket.send_shared(message).is_accepted())
    }
}
