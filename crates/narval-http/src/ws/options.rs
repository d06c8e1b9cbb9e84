use std::time::Duration;

use super::codec::WsLimits;

/// Limits and timeouts of a WebSocket. The defaults suit a server with many mostly idle sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The limits for messages from the client.
    pub limits: WsLimits,
    /// How many bytes of messages may be queued for the handler; beyond that nothing is received.
    pub receive_queue_bytes: usize,
    /// How many bytes may be queued for sending before [`SendStatus::Backpressure`](super::SendStatus::Backpressure) is
    /// returned.
    pub send_soft_bytes: usize,
    /// How many bytes may be queued for sending at all; further messages are dropped.
    pub send_hard_bytes: usize,
    /// Whether the engine answers Pings.
    pub auto_pong: bool,
    /// A Ping is sent after this time without a byte from the client, and the connection is closed after the same time
    /// without an answer. `None`: never.
    pub ping_interval: Option<Duration>,
    /// How long a client may go without reading any of the queued data.
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

/// How messages are compressed for clients that support it (RFC 7692).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WsCompression {
    /// The level, 1 (fast) to 9 (small).
    pub level: u8,
    /// Messages below this size in bytes are not compressed.
    pub bytes_min: usize,
    /// Whether messages may refer to earlier ones. Compresses many small messages better, at about 300 KiB of memory
    /// per connection; without it, a connection needs none.
    pub context_takeover: bool,
}

impl Default for WsCompression {
    fn default() -> Self {
        Self { level: 4, bytes_min: 256, context_takeover: false }
    }
}
