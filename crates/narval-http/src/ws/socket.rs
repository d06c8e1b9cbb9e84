//! The handle of a WebSocket, its handler, which is called with it, and what its threads share.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::codec::deflate::{self, Settings};
use super::codec::extension::Agreement;
use super::codec::frame::{CONTROL_PAYLOAD_MAX, Opcode};
use super::codec::{CloseCode, Frame, Message, close};
use super::error::{CloseReason, WsError};
use super::inbox::Inbox;
use super::options::{Options, WsCompression};
use super::outbox::{Encoded, Outbox, SendStatus};
use crate::io::output_memory::Share;
use crate::io::sync::Mutex;
use crate::peer::Peer;

/// The largest window, as a power of two.
const WINDOW_BITS_FULL: u8 = 15;

/// A handle to a WebSocket: cheap to clone, and usable from any thread, even after the connection has ended. Handles of the same connection are
/// equal.
///
/// Sending never blocks; data that the connection does not take at once is queued, within the limits of
/// [`Options`](super::Options). Messages sent before the handshake is answered are sent after the response. After the
/// end of the connection they are discarded, and the [`SendStatus`] says so.
#[derive(Clone)]
pub struct WebSocket {
    pub(crate) shared: Arc<Shared>,
}

impl WebSocket {
    /// Sends a message: text from `String` and `&str`, binary from `Bytes` and `Vec<u8>`.
    pub fn send(&self, message: impl Into<Message>) -> SendStatus {
        let message = message.into();
        let opcode = message.opcode();
        let payload = message.into_bytes();
        let Some(deflate) = self.shared.deflate.filter(|deflate| payload.len() >= deflate.bytes_min) else {
            return self.shared.out.send(Encoded::data(opcode, false, payload), &self.shared.options);
        };
        if !deflate.by_itself {
            return self.shared.out.send_compressed(opcode, &payload, deflate.settings, &self.shared.options);
        }
        let compressed = deflate::compress(deflate.settings, &payload);
        let is_smaller = compressed.len() < payload.len();
        let frame = Encoded::data(opcode, is_smaller, if is_smaller { compressed } else { payload });
        self.shared.out.send(frame, &self.shared.options)
    }

    /// Sends a message to one of many sockets; it is encoded, and compressed, only once.
    pub fn send_shared(&self, message: &SharedMessage) -> SendStatus {
        let frame = match &self.shared.deflate {
            // Messages may be uncompressed even with context takeover: the compressor has not seen them.
            Some(deflate) if deflate.can_share() && message.len >= deflate.bytes_min => {
                message.compressed(deflate.settings)
            }
            _ => None,
        };
        self.shared.out.send(frame.unwrap_or(&message.plain).clone().into(), &self.shared.options)
    }

    /// Sends a Ping. The payload is truncated to 125 bytes.
    pub fn ping(&self, payload: &[u8]) -> SendStatus {
        self.control(Opcode::Ping, payload)
    }

    /// Sends a Pong. The payload is truncated to 125 bytes. The engine answers Pings itself, unless
    /// [`Options::auto_pong`](super::Options::auto_pong) is off.
    pub fn pong(&self, payload: &[u8]) -> SendStatus {
        self.control(Opcode::Pong, payload)
    }

    /// Starts the closing handshake, after everything that was sent. [`WsHandler::close`] is called when the client has
    /// answered, or [`Options::close_timeout`](super::Options::close_timeout) has passed. The reason is truncated to
    /// 123 bytes.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.shared.out.close(close::encode(code, reason));
    }

    /// Whether messages can be sent.
    pub fn is_open(&self) -> bool {
        self.shared.out.state().is_open()
    }

    /// The number of bytes queued for the client.
    pub fn queued_bytes(&self) -> usize {
        self.shared.out.state().queued_bytes
    }

    /// The client's address.
    pub fn peer(&self) -> &Peer {
        &self.shared.peer
    }

    /// A number that is unique among the WebSockets of this process.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    fn control(&self, opcode: Opcode, payload: &[u8]) -> SendStatus {
        let payload = payload.get(..payload.len().min(CONTROL_PAYLOAD_MAX)).unwrap_or_default();
        self.shared.out.control(Frame::control(opcode, payload), &self.shared.options)
    }
}

impl PartialEq for WebSocket {
    fn eq(&self, other: &Self) -> bool {
        self.shared.id == other.shared.id
    }
}

impl Eq for WebSocket {}

impl Hash for WebSocket {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.shared.id.hash(state);
    }
}

impl fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket")
            .field("id", &self.shared.id)
            .field("peer", &self.shared.peer)
            .finish_non_exhaustive()
    }
}

/// A message to many sockets. Its bytes are encoded once and shared by all.
///
/// ```
/// use narval_http::ws::{SharedMessage, WebSocket};
///
/// fn announce(sockets: &[WebSocket], text: &str) -> usize {
///     let message = SharedMessage::new(text);
///     sockets.iter().filter(|socket| socket.send_shared(&message).is_accepted()).count()
/// }
/// ```
#[derive(Debug)]
pub struct SharedMessage {
    len: usize,
    opcode: Opcode,
    payload: Bytes,
    plain: Frame,
    compressed: OnceLock<(Settings, Option<Frame>)>,
}

impl SharedMessage {
    /// Encodes a message.
    pub fn new(message: impl Into<Message>) -> Self {
        let message = message.into();
        let plain = Frame::from(&message);
        // The payload is at the end of its frame.
        let payload = plain.bytes().slice(plain.bytes().len() - message.len()..);
        Self { len: message.len(), opcode: message.opcode(), payload, plain, compressed: OnceLock::new() }
    }

    /// The compressed frame, if it is smaller, and was not made with other settings.
    fn compressed(&self, settings: Settings) -> Option<&Frame> {
        let (made_with, frame) = self.compressed.get_or_init(|| {
            let payload = deflate::compress(settings, &self.payload);
            let is_smaller = payload.len() < self.len;
            (settings, is_smaller.then(|| Frame::data(self.opcode, true, &payload)))
        });
        frame.as_ref().filter(|_| *made_with == settings)
    }
}

/// Handles the events of a WebSocket.
///
/// The events of one socket are serial, on worker threads: `open` first, `close` last. Events of different sockets may
/// run concurrently. A method may block; meanwhile further events of that socket are queued, and when the queue is full
/// nothing more is received from its client.
///
/// Every `Fn(&WebSocket, WsEvent) + Send + Sync` is a handler.
pub trait WsHandler: Send + Sync + 'static {
    /// The connection is open.
    fn open(&self, socket: &WebSocket) {
        let _ = socket;
    }

    /// The client sent a message.
    fn message(&self, socket: &WebSocket, message: Message);

    /// The client sent a Ping. It has been answered already, unless [`Options::auto_pong`](super::Options::auto_pong)
    /// is off.
    fn ping(&self, socket: &WebSocket, payload: Bytes) {
        let _ = (socket, payload);
    }

    /// The client sent a Pong.
    fn pong(&self, socket: &WebSocket, payload: Bytes) {
        let _ = (socket, payload);
    }

    /// The client has caught up, after [`SendStatus::Backpressure`](super::SendStatus::Backpressure) or `Dropped`.
    fn drained(&self, socket: &WebSocket) {
        let _ = socket;
    }

    /// The connection failed, without a closing handshake. [`close`](Self::close) follows.
    fn error(&self, socket: &WebSocket, error: WsError) {
        let _ = (socket, error);
    }

    /// The connection is closed: the last event.
    fn close(&self, socket: &WebSocket, reason: CloseReason) {
        let _ = (socket, reason);
    }
}

/// An event, for handlers that are closures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WsEvent {
    /// See [`WsHandler::open`].
    Open,
    /// See [`WsHandler::message`].
    Message(Message),
    /// See [`WsHandler::ping`].
    Ping(Bytes),
    /// See [`WsHandler::pong`].
    Pong(Bytes),
    /// See [`WsHandler::drained`].
    Drained,
    /// See [`WsHandler::error`].
    Error(WsError),
    /// See [`WsHandler::close`].
    Close(CloseReason),
}

impl<F> WsHandler for F
where
    F: Fn(&WebSocket, WsEvent) + Send + Sync + 'static,
{
    fn open(&self, socket: &WebSocket) {
        self(socket, WsEvent::Open);
    }

    fn message(&self, socket: &WebSocket, message: Message) {
        self(socket, WsEvent::Message(message));
    }

    fn ping(&self, socket: &WebSocket, payload: Bytes) {
        self(socket, WsEvent::Ping(payload));
    }

    fn pong(&self, socket: &WebSocket, payload: Bytes) {
        self(socket, WsEvent::Pong(payload));
    }

    fn drained(&self, socket: &WebSocket) {
        self(socket, WsEvent::Drained);
    }

    fn error(&self, socket: &WebSocket, error: WsError) {
        self(socket, WsEvent::Error(error));
    }

    fn close(&self, socket: &WebSocket, reason: CloseReason) {
        self(socket, WsEvent::Close(reason));
    }
}

/// How this connection compresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deflate {
    settings: Settings,
    bytes_min: usize,
    /// Each message is compressed separately.
    by_itself: bool,
    /// The client compresses each message separately, too.
    pub(super) client_by_itself: bool,
}

impl Deflate {
    pub(super) fn new(agreed: Agreement, compression: WsCompression) -> Self {
        let settings = Settings { level: compression.level.clamp(1, 9), window_bits: agreed.server_window_bits() };
        Self {
            settings,
            bytes_min: compression.bytes_min,
            by_itself: agreed.server_no_context_takeover,
            client_by_itself: agreed.client_no_context_takeover,
        }
    }

    fn can_share(&self) -> bool {
        self.by_itself && self.settings.window_bits == WINDOW_BITS_FULL
    }
}

/// Shared by all handles of a WebSocket, its shard and its workers.
pub(crate) struct Shared {
    id: u64,
    peer: Peer,
    pub(super) options: Options,
    pub(super) handler: Box<dyn WsHandler>,
    pub(super) deflate: Option<Deflate>,
    pub(super) out: Outbox,
    pub(super) inbox: Mutex<Inbox>,
}

impl Shared {
    pub(super) fn new(
        peer: Peer,
        options: Options,
        deflate: Option<Deflate>,
        handler: Box<dyn WsHandler>,
    ) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let takeover = deflate.is_some_and(|deflate| !deflate.client_by_itself);
        let inbox = Inbox::new(takeover.then(Box::default));
        Arc::new(Self { id, peer, options, handler, deflate, out: Outbox::default(), inbox: Mutex::new(inbox) })
    }

    /// A share of the memory of its connection.
    pub(super) fn share(&self) -> Share {
        self.inbox.lock().share()
    }
}

/// Often dropped on a shard's thread, which a panic would end.
impl Drop for Shared {
    fn drop(&mut self) {
        let handler = std::mem::replace(&mut self.handler, Box::new(|_: &WebSocket, _: WsEvent| {}));
        if catch_unwind(AssertUnwindSafe(|| drop(handler))).is_err() {
            tracing::error!(id = self.id, "a WebSocket handler panicked when it was dropped");
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("id", &self.id).finish_non_exhaustive()
    }
}
