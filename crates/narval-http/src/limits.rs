//! The maximum of every queue, buffer, timer and loop of the engine.

use std::time::Duration;

/// Limits and timeouts of a server. Every field can be changed before the server is built; the defaults suit a cache
/// with many clients on good and bad networks.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Size and syntax of request heads.
    pub head: HeadLimits,
    /// Backlog of each listener; the kernel caps it at `net.core.somaxconn`. Inherited sockets keep theirs.
    pub backlog: u32,
    /// Open connections. For a further one, an idle connection is closed; if there is none, it is answered 503 and closed.
    pub connections_max: usize,
    /// Open connections of one client, an IPv4 address or an IPv6 network of 64 bits. Further ones are answered 503 and
    /// closed. Unix sockets and trusted proxies have no such limit. `None`: an eighth of
    /// [`connections_max`](Self::connections_max), but at least 16.
    pub connections_per_ip_max: Option<usize>,
    /// Requests queued for a worker; further ones are answered 503. Clients take turns, and one may have no more requests
    /// there than there are free places, or 16: one client alone half of them.
    pub queue_max: usize,
    /// `Retry-After` of these 503 responses, in seconds.
    pub retry_after_seconds: u32,

    /// From the first byte of a request (for the first request: from accepting the connection) to the end of its head.
    pub head_timeout: Duration,
    /// From accepting a connection to the end of its TLS handshake.
    pub handshake_timeout: Duration,
    /// TLS handshakes that are queued or running. Further connections are closed.
    pub handshakes_max: usize,
    /// Between two requests on a connection.
    pub keep_alive_timeout: Duration,
    /// The window in which a client must send [`body_progress_min`](Self::body_progress_min) bytes of a request body.
    /// Time that a body waits for its handler does not count.
    pub body_stall_timeout: Duration,
    /// Bytes of a request body that a client must send per window.
    pub body_progress_min: u64,
    /// The window for a body that holds a thread, or more than 64 KiB of memory, while other bodies wait for a thread
    /// or half of the memory for bodies is in use.
    pub body_busy_timeout: Duration,
    /// Bytes of such a body that a client must send per window.
    pub body_busy_progress_min: u64,
    /// The window in which a client must read [`write_progress_min`](Self::write_progress_min) bytes of a response. It
    /// is long because a Nix client that unpacks to a slow disk stops reading for minutes.
    pub write_stall_timeout: Duration,
    /// Bytes of a response that a client must read per window; a slower client is disconnected.
    pub write_progress_min: u64,
    /// How long the client's remaining input is discarded after a response that closes the connection.
    pub linger_timeout: Duration,
    /// Bytes discarded in that time. The rest of an unread body is received anyway, as fast as bodies must arrive.
    pub linger_bytes_max: usize,

    /// Request bodies up to this size are complete in memory before their handler runs on a worker. The handler of a
    /// larger one runs once this much has arrived, on a thread beside the workers, and reads the rest as it arrives.
    pub body_buffer_max: usize,
    /// Memory for the request bodies of all connections, in bytes. A body that is being received may use 1/64 of what
    /// is left of three quarters of it; the last quarter is reserved for bodies with an announced length up to 16 KiB. A body that needs more is
    /// streamed, and not received further until a thread is free. What clients send before they can be stopped is
    /// stored in any case; only when twice the memory is in use are bodies answered 503.
    pub body_memory_max: usize,
    /// Streamed bodies whose handlers run at the same time. Each has a thread of its own, which a slow client may hold;
    /// more wait in order. At least one.
    pub streamed_bodies_max: usize,
    /// Streamed bodies that wait for a thread. Nothing more is received of them while half of the memory for bodies is
    /// in use, and no deadline counts meanwhile. Further ones are answered 503.
    pub bodies_waiting_max: usize,
    /// Bytes of a streamed request body that may be buffered for its handler; beyond that nothing is received.
    pub body_window: usize,
    /// Memory, in bytes, for what all connections hold for their clients: answers that wait to be sent, and messages of
    /// WebSockets in both directions. Beyond it, larger answers that need more are 503, and the connections that hold
    /// most are closed.
    pub output_memory_max: usize,
    /// The largest request body; a larger one is answered 413. The default is a size that a handler may read into
    /// memory; raise it for uploads that are read piece by piece.
    pub body_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            backlog: 4096,
            connections_max: 16 * 1024,
            connections_per_ip_max: None,
            queue_max: 1024,
            retry_after_seconds: 1,
            head_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 1024,
            keep_alive_timeout: Duration::from_secs(75),
            body_stall_timeout: Duration::from_secs(30),
            body_progress_min: 4 * 1024,
            body_busy_timeout: Duration::from_secs(5),
            body_busy_progress_min: 32 * 1024,
            write_stall_timeout: Duration::from_secs(300),
            write_progress_min: 16 * 1024,
            linger_timeout: Duration::from_secs(2),
            linger_bytes_max: 16 * 1024 * 1024,
            body_buffer_max: 1024 * 1024,
            body_memory_max: 128 * 1024 * 1024,
            streamed_bodies_max: 64,
            bodies_waiting_max: 8192,
            body_window: 256 * 1024,
            output_memory_max: 256 * 1024 * 1024,
            body_max: 16 * 1024 * 1024,
        }
    }
}

/// The most field lines that [`HeadLimits::fields_max`] can allow.
pub const FIELDS_MAX: usize = 128;

/// Limits on request heads, and which unusual targets are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Most bytes in the head, including the empty line. More is answered 431 (or 414, if the request line alone is too
    /// long).
    pub bytes_max: usize,
    /// Most bytes in the request line. More is answered 414.
    pub request_line_bytes_max: usize,
    /// Most field lines, at most [`FIELDS_MAX`]. More is answered 431.
    pub fields_max: usize,
    /// Whether `CONNECT host:port` is passed to the handler; otherwise it is answered 501.
    pub connect_allowed: bool,
    /// Whether `OPTIONS *` is passed to the handler; otherwise the engine answers it 204.
    pub asterisk_allowed: bool,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self {
            bytes_max: 16 * 1024,
            request_line_bytes_max: 8 * 1024,
            fields_max: 100,
            connect_allowed: false,
            asterisk_allowed: false,
        }
    }
}

/// Size of a shard's receive buffer, shared by all its connections. It also bounds pipelining: a connection whose
/// requests wait for an answer receives no more than this once.
pub(crate) const RECEIVE_BUFFER: usize = 64 * 1024;

/// Bytes that a connection receives at once while less than a quarter of the memory for request bodies is left. Without
/// this, the start of a body, which clients send along with its head, would fill the receive buffer.
pub(crate) const RECEIVE_TIGHT: usize = 4 * 1024;

/// The handler of a streamed request body receives it from the socket itself once the connection has received this much
/// without a pause, if at least this much remains. It is more than any deadline requires of a body
/// ([`Limits::body_busy_progress_min`]), so a slow client gains no time.
pub(crate) const HANDLER_RECEIVES_MIN: usize = 32 * 1024;

/// How long such a handler waits for its client before the wait is handed back to the connection.
pub(crate) const HANDLER_WAIT: Duration = Duration::from_millis(10);

/// A piece smaller than this after a wait means that the client is slow: the connection, not the handler, waits for the next one.
pub(crate) const HANDLER_SLOW: usize = 4 * 1024;

/// A request body up to this size costs little while it is received, however slowly it arrives.
pub(crate) const BODY_SMALL: usize = 64 * 1024;

/// What part of all connections one client may have by default.
pub(crate) const CLIENT_CONNECTIONS_PART: usize = 8;

/// The minimum of that.
pub(crate) const CLIENT_CONNECTIONS_MIN: usize = 16;

/// How long a connection must have been idle before it is closed to make room for another one. A client that asks again
/// sooner is using it.
pub(crate) const IDLE_MIN: Duration = Duration::from_secs(1);

/// Connections that are looked at for an idle one when there is no room for another one.
pub(crate) const IDLE_LOOKS: usize = 256;

/// Requests that one client may have in a queue, however short it is.
pub(crate) const QUEUE_SHARE_MIN: usize = 16;

/// How often the log complains about one client.
pub(crate) const COMPLAINTS_EVERY: Duration = Duration::from_secs(60);

/// Clients about which the log complains in that time.
pub(crate) const COMPLAINTS_MAX: usize = 64;

/// How long the first bytes of a request body are waited for. After that its handler starts without them, if threads for
/// streamed bodies are free: it may not need the body for its answer.
pub(crate) const BODY_AWAITED: Duration = Duration::from_millis(100);

/// Clients that a [`RateLimit`](crate::RateLimit) tells apart at a time.
pub(crate) const RATE_KEYS_MAX: usize = 65_536;
/// How often those that may ask again are forgotten, when there are so many.
pub(crate) const RATE_TIDY: Duration = Duration::from_secs(1);

/// The longest response that a server without room has ready, in bytes.
pub(crate) const PREPARED_MAX: usize = 64 << 10;

/// Requests for [paths of checks](crate::Builder::checks) that wait for their thread. Further ones are answered 503.
pub(crate) const CHECKS_MAX: usize = 64;

/// Bytes of a header of the PROXY protocol, with its extensions. Version 1 has 107 at most.
pub(crate) const PROXY_HEADER_MAX: usize = 4 * 1024;

/// Entries of `X-Forwarded-For` or `Forwarded` that are read: a chain of trusted proxies is shorter.
pub(crate) const FORWARDED_HOPS_MAX: usize = 32;

/// Readiness events taken from the kernel per call.
pub(crate) const EVENTS_PER_POLL: usize = 256;

/// Connections accepted from one listener before other events are handled.
pub(crate) const ACCEPTS_PER_EVENT: usize = 64;

/// How often a connection is looked at whose request is being answered while nothing is received from it: its client may
/// have left.
pub(crate) const DEPARTURE_LOOK: Duration = Duration::from_millis(250);

/// The look at which a client that has ended its side is sent `100 Continue`, which shows whether it is there.
pub(crate) const DEPARTURE_LOOKS: u8 = 2;

/// How long sending is retried for a response that seems to stall.
pub(crate) const LAST_TRY: Duration = Duration::from_secs(1);

/// How long a listener pauses after accepting failed for lack of descriptors or memory.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Inline responses are gathered up to this many bytes before they are sent.
pub(crate) const INLINE_BATCH_MAX: usize = 128 * 1024;

/// Bodies in memory up to this size are copied after their head, so that one plain `send` takes both.
pub(crate) const COPY_BODY_MAX: usize = 16 * 1024;

/// What a connection may hold of [`Limits::output_memory_max`] even if nothing is left: heads, and answers of a few
/// lines, such as those of health checks.
pub(crate) const OUTPUT_SMALL: usize = 32 * 1024;

/// How much is produced or sealed at once when more than three quarters of [`Limits::output_memory_max`] are in use: what fits into
/// one full record, as one HTTP/2 frame. With it, the largest number of connections fits into the default.
pub(crate) const OUTPUT_TIGHT: usize = HTTP2_QUANTUM_MIN;

/// If this much was held, and half of it is free again, the allocator gives it back to the system.
pub(crate) const OUTPUT_TRIM_MIN: usize = 8 * 1024 * 1024;

/// Files below this size are read into memory and sent with their head: `sendfile(2)` costs more than the copy.
pub(crate) const SENDFILE_MIN: u64 = 128 * 1024;

/// Bytes that a [`BodyWriter`](crate::BodyWriter) may be ahead of the connection.
pub(crate) const WRITER_BUFFER_MAX: usize = 64 * 1024;

/// Bytes that a [`BodyWriter`](crate::BodyWriter) gathers before it hands them over.
pub(crate) const WRITER_GATHER: usize = 8 * 1024;

/// How long a [`BodyWriter`](crate::BodyWriter) with a full buffer waits for its response to be returned.
pub(crate) const WRITER_ATTACH: Duration = Duration::from_secs(10);

/// The longest wait of a connection for a source that has no data.
pub(crate) const SOURCE_WAIT_MAX: Duration = Duration::from_secs(3600);

/// Bytes of the file of an inline response that the shard sends itself at once if they seem to be in the page cache;
/// the rest follows after its other connections have had their turn.
pub(crate) const SHARD_FILE_MAX: u64 = 1024 * 1024;

/// Bytes of files that a shard sends itself for one connection per turn; less than half a millisecond.
pub(crate) const SHARD_FILE_BYTES_PER_TURN: u64 = 1024 * 1024;

/// Bytes that a shard sends itself per turn for all its connections together, of files over HTTP/1 and of anything over
/// HTTP/2: more than some milliseconds would delay small requests. Workers send the rest over HTTP/1; over HTTP/2 it is
/// the first of the next turn.
pub(crate) const SHARD_BYTES_PER_TURN: u64 = 4 * 1024 * 1024;

/// The number of consecutive turns in which a shard that has more input than it handles per turn may postpone deadlines.
pub(crate) const EXPIRY_POSTPONED_MAX: u32 = 64;

/// How often a connection is checked whose large last response may not have arrived yet.
pub(crate) const LINGER_LOOK: Duration = Duration::from_millis(250);

/// How long a page cache probe is reused, in milliseconds.
pub(crate) const PROBE_BELIEVED_MS: u64 = 1000;

/// Page cache probes that a shard keeps; 40 bytes each.
pub(crate) const PROBES_KEPT: usize = 1024;

/// Bytes of a larger file that a shard sends itself when the socket has room again, if they seem to be in the page
/// cache: a worker would cost one wake-up per filling of the socket's buffer.
pub(crate) const SHARD_DRAIN_MAX: u64 = 2 * 1024 * 1024;

/// Bytes of a response that the TLS library seals at once: four full records.
pub(crate) const SEAL_QUANTUM: usize = 64 * 1024;

/// Bytes of a response that are sealed in place at once: eight full records, which a slow client holds.
pub(crate) const SEAL_IN_PLACE_QUANTUM: usize = 128 * 1024;

/// Remaining bytes from which a response is sealed in place: setting the key up costs some microseconds, once per
/// connection.
#[cfg(feature = "tls")]
pub(crate) const SEAL_IN_PLACE_MIN: u64 = 16 * 1024;

/// Bytes buffered while a worker handles earlier bytes of a TLS handshake; beyond that nothing is received.
pub(crate) const HANDSHAKE_INPUT_MAX: usize = 256 * 1024;

/// Remaining bytes of a file range from which the kernel takes over a TLS connection: below it the setup costs more
/// than `sendfile(2)` saves.
#[cfg(feature = "tls")]
pub(crate) const KTLS_FILE_MIN: u64 = 1024 * 1024;

/// Bytes of a file passed to one `sendfile(2)`: as many as the socket's buffer takes, because each call ends with a
/// partial packet. Half a millisecond of work at most.
pub(crate) const SENDFILE_QUANTUM: usize = 2 * 1024 * 1024;

/// The same if the client runs on this processor: with smaller pieces it starts earlier.
pub(crate) const SENDFILE_QUANTUM_NEAR: usize = 256 * 1024;

/// A response with more bytes left than this is sent in full packets only, files included. Otherwise every
/// acknowledgement that arrives meanwhile pushes out a partial packet, and so does the end of each `sendfile(2)`: files
/// of 0.5 to 10 MB took 1.2 to 1.5 times as long.
pub(crate) const CORK_MIN: u64 = 256 * 1024;

/// Bytes of one response that a worker sends before it takes the next job if one waits: one `sendfile(2)`, or the sealed
/// records of about a millisecond. A request waits for two such turns of one of the workers.
pub(crate) const BYTES_PER_TURN: u64 = 2 * 1024 * 1024;

/// Responses larger than this may still be in the kernel's send buffer when the connection would be closed for
/// idleness.
pub(crate) const LARGE_ANSWER: u64 = 64 * 1024;

/// After a last response of no more than this, the connection is closed at once if the client has no unread input: the
/// kernel sends the rest of its buffer without the socket's owner, unless the client pauses for minutes. Waiting for
/// the client's end costs a wake-up and three system calls.
pub(crate) const CLOSE_AT_ONCE_MAX: u64 = 1024 * 1024;

/// Operations queued in a shard's ring before they are submitted; the completion queue is four times as large.
pub(crate) const URING_ENTRIES: u32 = 1024;

/// Number of receive buffers of a shard's ring.
pub(crate) const URING_BUFFERS: u16 = 128;
/// Size of one of them in bytes.
pub(crate) const URING_BUFFER: usize = 16 * 1024;

/// How long a shard pauses when the kernel has no memory for an operation of its ring.
pub(crate) const URING_PAUSE: Duration = Duration::from_millis(1);

/// Streams of one HTTP/2 connection at a time. A stream counts until its job has ended, even if the client has reset it: a client that
/// opens and resets streams gets no more work done than one that waits (Rapid Reset, CVE-2023-44487).
pub(crate) const HTTP2_STREAMS_MAX: usize = 128;

/// Streams of one HTTP/2 connection that may be reset in a burst, by the client (CVE-2023-44487) or because of what it sent
/// (MadeYouReset, CVE-2025-8671). Then the connection ends.
pub(crate) const HTTP2_RESETS_MAX: u32 = 256;

/// How many of these are allowed again per second.
pub(crate) const HTTP2_RESETS_PER_SECOND: u32 = 32;

/// Frames of one HTTP/2 connection, in a burst, that do nothing for a request: PING (CVE-2019-9512), SETTINGS (CVE-2019-9515),
/// PRIORITY (CVE-2019-9513), empty DATA (CVE-2019-9518), small window updates (CVE-2019-9511), and unknown types. Then the connection
/// ends.
pub(crate) const HTTP2_IDLE_FRAMES_MAX: u32 = 1024;

/// How many of these are allowed again per second.
pub(crate) const HTTP2_IDLE_FRAMES_PER_SECOND: u32 = 128;

/// WINDOW_UPDATE frames below this size are counted among them: each may cause a DATA frame just as small.
pub(crate) const HTTP2_SMALL_INCREMENT: u32 = 256;

/// CONTINUATION frames of one header block (CVE-2024-27316).
pub(crate) const HTTP2_CONTINUATIONS_MAX: usize = 8;

/// Bytes of one header block as sent, which are held until it is complete.
pub(crate) const HTTP2_HEADER_BLOCK_MAX: usize = 64 * 1024;

/// Bytes that a client may send on a WebSocket before it is accepted. Clients wait for that (RFC 6455 section 4.1), so one
/// frame is enough.
pub(crate) const HTTP2_AHEAD_MAX: usize = 16 * 1024;

/// The initial window of a stream: how much of a request body a client may send before the server has seen its head.
pub(crate) const HTTP2_STREAM_WINDOW: u32 = 64 * 1024;

/// The window after the head has arrived, unless memory for bodies is short: how much of a request body a client may
/// send before the handler reads it.
pub(crate) const HTTP2_BODY_WINDOW: u32 = 256 * 1024;

/// The largest window of a stream: its body arrives with 320 MB/s at a round trip of 50 ms.
pub(crate) const HTTP2_STREAM_WINDOW_MAX: u32 = 16 * 1024 * 1024;

/// The total by which all streams of one connection may exceed their initial windows. It bounds what a client can make
/// the server hold by uploads whose handlers stop reading.
pub(crate) const HTTP2_WINDOW_GROWTH_MAX: u32 = 32 * 1024 * 1024;

/// A window grows if a client whose handler keeps up uses half of it within this time: it holds less than what would arrive in a
/// round trip of half a second.
pub(crate) const HTTP2_WINDOW_HALF: Duration = Duration::from_millis(250);

/// The factor by which a window grows at most in one step. Three steps reach the maximum.
pub(crate) const HTTP2_WINDOW_FACTOR_MAX: u32 = 4;

/// The window of an HTTP/2 connection: twice [`HTTP2_STREAM_WINDOW_MAX`], because it is reopened by halves. It does not bound memory;
/// the windows of the streams do, so that no stream has to wait for another.
pub(crate) const HTTP2_CONNECTION_WINDOW: u32 = 32 * 1024 * 1024;

/// Bytes of frames other than DATA (and of small bodies) that wait to be sent on one connection. Beyond that nothing is
/// received; otherwise a client that sends PING or SETTINGS and never reads could make it grow.
pub(crate) const HTTP2_QUEUED_MAX: usize = 64 * 1024;

/// Bodies up to this size are sent with their head, before those of other streams.
pub(crate) const HTTP2_COPY_MAX: usize = 16 * 1024;

/// Bodies with at most this much left take turns among themselves, so that they overtake larger ones.
pub(crate) const HTTP2_SMALL_BODY: u64 = 64 * 1024;

/// Bytes of a body that are produced at a time.
pub(crate) const HTTP2_QUANTUM: usize = 256 * 1024;

/// The minimum of that, however small the client's window is: with the frame's header of 9 bytes, it fills one record, so that nothing of
/// it is left.
pub(crate) const HTTP2_QUANTUM_MIN: usize = 16 * 1024 - 9;

/// The next piece of a body is produced when less than this is left of the last one.
pub(crate) const HTTP2_PREFETCH_BELOW: u64 = 64 * 1024;

/// Bytes of bodies that are produced but not sent, per connection. A slow reader with 128 streams holds this, the
/// [queued](HTTP2_QUEUED_MAX) bytes, one batch of records and a header block: less than 2 MB.
pub(crate) const HTTP2_HELD_MAX: usize = 1024 * 1024;

/// Bytes sent on one HTTP/2 connection before the shard's other HTTP/2 connections have their turn.
pub(crate) const HTTP2_BYTES_PER_TURN: usize = 256 * 1024;

/// Bytes sent at once when something happens on an HTTP/2 connection that has sent everything before: enough for small
/// answers. The rest is sent in turn with the other connections.
pub(crate) const HTTP2_BYTES_AT_ONCE: usize = 64 * 1024;

/// With more open connections than this, new ones with HTTP/2 are limited to [`HTTP2_UNSENT_CROWDED`].
pub(crate) const CONNECTIONS_CROWDED: usize = 256;

/// Unsent bytes that the kernel buffers for such a connection (`TCP_NOTSENT_LOWAT`). By default it buffers up to 4 MiB for
/// a slow client. A thousand of these reach the limit for all TCP connections of the machine (`net.ipv4.tcp_mem`), and the
/// kernel then drops packets of every connection.
pub(crate) const HTTP2_UNSENT_CROWDED: u32 = 128 * 1024;

/// How long a connection without any request so far may send its first one when the server stops, including the TLS
/// handshake. Its client would take a close for a failure.
pub(crate) const FIRST_REQUEST_GRACE: Duration = Duration::from_millis(250);

/// How long new streams are accepted after the first GOAWAY.
pub(crate) const HTTP2_GOAWAY_GRACE: Duration = Duration::from_secs(1);
