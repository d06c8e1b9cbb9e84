use std::time::Duration;

use super::codec::WsLimits;

/// What a WebSocket may cost, and when it is given up. The defaults suit a server with many mostly idle sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How large a message from the client may be.
    pub limits: WsLimits,
    /// How many bytes of messages may wait for the handler; above it nothing more is received.
    pub receive_queue_bytes: usize,
    /// How many bytes may wait to be sent before [`SendStatus::Backpressure`](super::SendStatus::Backpressure) says so.
    pub send_soft_bytes: usize,
    /// How many bytes may wait to be sent at all; what comes on top is dropped.
    pub send_hard_bytes: usize,
    /// Whether Pings are answered by the engine.
    pub auto_pong: bool,
    /// After how long without a byte from the client a Ping is sent; after as long again without an answer the connection
    /// is given up. `None`: never.
    pub ping_interval: Option<Duration>,
    /// How long a client may take nothing of what waits for it.
    pub write_timeout: Duration,
    /// How long the closing handshake may take.
    pub close_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: WsLimits::default(),
            receive_queue_bytes: 256 * 1024,
            send_soft_bytes: 256 * 1024,
            send_hard_bytes: 1024 * 1024,
            auto_pong: true,
            ping_interval: Some(Duration::from_secs(30)),
            write_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(10),
        }
    }
}

/// How messages are compressed where the client can decompress them (RFC 7692).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WsCompression {
    /// The level, 1 (fast) to 9 (small).
    pub level: u8,
    /// Messages below this many bytes are sent as they are.
    pub bytes_min: usize,
    /// Whether messages may refer to those before. Better compression of many small messages, at about 300 KiB of
    /// memory per connection; without it, a connection costs none.
    pub context_takeover: bool,
}

impl Default for WsCompression {
    fn default() -> Self {
        Self { level: 4, bytes_min: 256, context_takeover: false }
    }
}
