use bytes::Bytes;

use super::WebSocket;
use super::codec::{CloseCode, CloseFrame, Message, ProtocolError};

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

/// Why a connection ended without a closing handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WsError {
    /// The client violated the protocol, or sent a message that is too large.
    #[error("the client violated the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The connection ended without a Close frame.
    #[error("the connection was lost")]
    Lost,
    /// The client did not answer a Ping.
    #[error("the client did not answer a ping")]
    PingTimeout,
    /// The client did not read queued data in time.
    #[error("the client did not read what was sent")]
    WriteTimeout,
    /// The client did not complete the closing handshake.
    #[error("the client did not complete the closing handshake")]
    CloseTimeout,
    /// It held more than others for a client that does not read or sends too much, when memory was short
    /// ([`Limits::output_memory_max`](crate::Limits::output_memory_max)).
    #[error("the server ran out of memory for what its clients do not read")]
    TooSlow,
    /// The handler panicked.
    #[error("the handler panicked")]
    Panicked,
}

/// How a connection was closed; like the `CloseEvent` of browsers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseReason {
    /// The close code: the client's, or ours if we failed the connection; 1005 if the Close frame had none, 1006
    /// without a Close frame.
    pub code: u16,
    /// The reason in the Close frame.
    pub reason: String,
    /// Whether the closing handshake was completed.
    pub is_clean: bool,
}

impl CloseReason {
    /// A Close frame without a code (RFC 6455 section 7.1.5).
    pub const NO_CODE: u16 = 1005;
    /// No Close frame (RFC 6455 section 7.1.5).
    pub const ABNORMAL: u16 = 1006;

    pub(crate) fn clean(frame: Option<CloseFrame>) -> Self {
        match frame {
            Some(CloseFrame { code, reason }) => Self { code: code.get(), reason, is_clean: true },
            None => Self { code: Self::NO_CODE, reason: String::new(), is_clean: true },
        }
    }

    /// The connection was failed with `code`; `None`: it was lost.
    pub(crate) fn failed(code: Option<CloseCode>, error: WsError) -> Self {
        Self { code: code.map_or(Self::ABNORMAL, CloseCode::get), reason: error.to_string(), is_clean: false }
    }
}
