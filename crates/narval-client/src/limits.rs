//! How long a client waits, and how much it takes.

use std::time::Duration;

/// How long a TCP connection and the TLS handshake may each take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for a server's first response once another server has responded. Slower servers are skipped.
pub const OPEN_PATIENCE: Duration = Duration::from_secs(3);
/// How long a single read or write may wait without progress.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A wait for a server is mentioned after this time, once per server.
pub const MENTIONED_AFTER: Duration = Duration::from_secs(3);
/// The lowest rate of a response that is read whole, in bytes per second, after the time that a single read may take.
pub const SMALL_RATE_MIN: u64 = 1024;
/// A connection that was idle for longer is not reused: load balancers silently drop idle ones.
pub const IDLE_AGE_MAX: Duration = Duration::from_secs(15);
/// Open connections per origin, both in use and idle.
pub const CONNECTIONS_PER_ORIGIN_MAX: usize = 64;
/// The longest response head.
pub const HEAD_LEN_MAX: usize = 64 * 1024;
/// The most field lines in a response head.
pub const FIELDS_MAX: usize = 128;
/// Redirects followed for one request.
pub const REDIRECTS_MAX: usize = 10;
/// How much of an unwanted body is read to keep its connection. If more is left, the connection is closed.
pub const DRAIN_LEN_MAX: u64 = 64 * 1024;
/// The largest response that is read whole, after its content coding is decoded.
pub const METADATA_LEN_MAX: u64 = 64 * 1024 * 1024;
