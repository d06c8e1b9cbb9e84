//! Every queue, buffer, timer and loop of the engine, with its maximum.

use std::time::Duration;

use crate::http1::head::HeadLimits;

/// What a server spends at most on its clients. Every field can be changed before the server is built; the defaults suit
/// a cache that is asked by many clients over good and bad lines.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Size and form of request heads.
    pub head: HeadLimits,
    /// Connections that may wait to be accepted, at each listener; the kernel cuts it to `net.core.somaxconn`. Sockets
    /// that were handed over keep theirs.
    pub backlog: u32,
    /// Open connections. More are answered 503 and closed.
    pub connections_max: usize,
    /// Open connections from one IP address; `None` for no limit. More are answered 503 and closed.
    pub connections_per_ip_max: Option<usize>,
    /// Requests that wait for a worker. More are answered 503.
    pub queue_max: usize,
    /// What `Retry-After` says in these 503 answers, in seconds.
    pub retry_after_seconds: u32,

    /// From the first byte of a request (or from accepting the connection) to the end of its head.
    pub head_timeout: Duration,
    /// From accepting a connection to the end of its TLS handshake.
    pub handshake_timeout: Duration,
    /// TLS handshakes that wait for a worker or are worked on. Connections that would be more are closed.
    pub handshakes_max: usize,
    /// Between two requests on a connection.
    pub keep_alive_timeout: Duration,
    /// The window in which a client must send [`body_progress_min`](Self::body_progress_min) bytes of a request body. The
    /// time that a body waits for its handler does not count.
    pub body_stall_timeout: Duration,
    /// Bytes of a request body to be sent per window.
    pub body_progress_min: u64,
    /// The window for a body that has a thread, or more than 64 KiB of memory, while others wait for a thread or half of the memory for
    /// bodies is in use.
    pub body_busy_timeout: Duration,
    /// Bytes of it to be sent in such a window.
    pub body_busy_progress_min: u64,
    /// The window in which a client must take [`write_progress_min`](Self::write_progress_min) bytes of an answer. Long:
    /// a Nix client that unpacks to a slow disk stops reading for minutes.
    pub write_stall_timeout: Duration,
    /// Bytes of an answer to be taken per window; a client that takes less is disconnected.
    pub write_progress_min: u64,
    /// After an answer that closes the connection: how long the client's remaining input is discarded.
    pub linger_timeout: Duration,
    /// Bytes discarded in that time. The rest of a body that nobody read is received anyhow, as fast as bodies have to come.
    pub linger_bytes_max: usize,

    /// Request bodies up to this size are complete in memory before the handler runs, on a worker. The handler of a larger one runs when
    /// this much of it is there, on a thread beside the workers, and reads the rest while it comes.
    pub body_buffer_max: usize,
    /// The memory for request bodies, of all connections together, in bytes. A body that is being received may have one part in 64 of
    /// what is left of three quarters of it; the last quarter is for bodies of up to 16 KiB. One that needs more is streamed where a
    /// thread is free, and answered 503 otherwise.
    pub body_memory_max: usize,
    /// Streamed bodies whose handlers run at once. Each has a thread of its own, which a slow client may hold; more wait in a queue
    /// of [`queue_max`](Self::queue_max). At least one.
    pub streamed_bodies_max: usize,
    /// How much of a streamed request body may wait for the handler; above it nothing is received.
    pub body_window: usize,
    /// The longest request body; more is answered 413. The default is one that a handler may read into memory; raise it for uploads that
    /// are read piece by piece.
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
            body_window: 256 * 1024,
            body_max: 16 * 1024 * 1024,
        }
    }
}

/// Size of the buffer that a shard receives into: one for all its connections. It also bounds pipelining: a connection
/// whose requests wait for an answer receives no more than this once.
pub(crate) const RECEIVE_BUFFER: usize = 64 * 1024;

/// A request body of no more than this costs little while it is received, however slowly it comes.
pub(crate) const BODY_SMALL: usize = 64 * 1024;

/// Readiness events taken from the kernel at once.
pub(crate) const EVENTS_PER_POLL: usize = 256;

/// Connections accepted from one listener before other events get their turn.
pub(crate) const ACCEPTS_PER_EVENT: usize = 64;

/// How long an answer that seems to stall is given to show that it does not.
pub(crate) const LAST_TRY: Duration = Duration::from_secs(1);

/// How long a listener rests after accepting failed for want of descriptors or memory.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers made inline are gathered up to this many bytes before they are sent.
pub(crate) const INLINE_BATCH_MAX: usize = 128 * 1024;

/// Bodies in memory up to this size are copied behind their head, so that both go out in one plain `send`.
pub(crate) const COPY_BODY_MAX: usize = 16 * 1024;

/// Files below this size are read into memory and sent with their head: `sendfile(2)` costs more than the copy.
pub(crate) const SENDFILE_MIN: u64 = 128 * 1024;

/// Bytes of a response body that a [`BodyWriter`](crate::BodyWriter) is ahead of the connection.
pub(crate) const WRITER_BUFFER_MAX: usize = 64 * 1024;

/// Bytes that it gathers before it hands them on.
pub(crate) const WRITER_GATHER: usize = 8 * 1024;

/// How long it waits with a full buffer for its response to be returned.
pub(crate) const WRITER_ATTACH: Duration = Duration::from_secs(10);

/// How long a connection at most waits for a source that has no more for now before it is asked anyhow.
pub(crate) const SOURCE_WAIT_MAX: Duration = Duration::from_secs(3600);

/// Bytes of the file of an inline answer that the shard sends itself at once, where the kernel seems to have them in memory; the
/// rest when its other connections have had their turn.
pub(crate) const SHARD_FILE_MAX: u64 = 1024 * 1024;

/// Bytes of files that a shard sends itself for one connection before others get their turn; less than half a millisecond.
pub(crate) const SHARD_FILE_BYTES_PER_TURN: u64 = 1024 * 1024;

/// The same for all its connections together: more than about two milliseconds would keep those waiting that want little. Workers send
/// the rest.
pub(crate) const SHARD_FILE_BYTES_IN_ALL: u64 = 4 * 1024 * 1024;

/// Turns in a row in which a shard with more input than it takes in one leaves deadlines to the next.
pub(crate) const EXPIRY_POSTPONED_MAX: u32 = 64;

/// How often a connection is looked at whose large last answer may not have arrived yet.
pub(crate) const LINGER_LOOK: Duration = Duration::from_millis(250);

/// How long the kernel is trusted to still have in memory what it had, in milliseconds.
pub(crate) const PROBE_BELIEVED_MS: u64 = 1000;

/// Files of which a shard remembers that; 40 bytes each.
pub(crate) const PROBES_KEPT: usize = 1024;

/// Bytes of a larger file that a shard sends itself once the socket has room again, where the kernel seems to have them in
/// memory: a worker would cost a wake-up for each filling of the socket's buffer.
pub(crate) const SHARD_DRAIN_MAX: u64 = 2 * 1024 * 1024;

/// Bytes of an answer that are sealed at once on a TLS connection by the TLS library: four full records.
pub(crate) const SEAL_QUANTUM: usize = 64 * 1024;

/// Bytes of an answer that are sealed in place at once: eight full records. A client that is slow to take them costs that.
pub(crate) const SEAL_IN_PLACE_QUANTUM: usize = 128 * 1024;

/// What is left of an answer for it to be sealed in place: setting the key up costs some microseconds, once per connection.
#[cfg(feature = "tls")]
pub(crate) const SEAL_IN_PLACE_MIN: u64 = 16 * 1024;

/// Bytes kept while a worker works on what came before of a TLS handshake; above it nothing is received.
pub(crate) const HANDSHAKE_INPUT_MAX: usize = 256 * 1024;

/// What is left of a file's range for the kernel to take over a TLS connection: below it the setting up costs more than
/// `sendfile(2)` saves.
#[cfg(feature = "tls")]
pub(crate) const KTLS_FILE_MIN: u64 = 1024 * 1024;

/// Bytes of a file given to one `sendfile(2)`: as many as the socket's buffer takes, for each call ends with a packet that is
/// not full. Half a millisecond of work at most.
pub(crate) const SENDFILE_QUANTUM: usize = 2 * 1024 * 1024;

/// The same where the client runs on this processor: it begins earlier with what it is given in smaller pieces.
pub(crate) const SENDFILE_QUANTUM_NEAR: usize = 256 * 1024;

/// An answer of which more is left than this is sent in full packets only, files included. Otherwise every acknowledgement
/// that comes in meanwhile pushes out a packet that is not full, and so does the end of each `sendfile(2)`: files of 0.5 to
/// 10 MB took 1.2 to 1.5 times as long.
pub(crate) const CORK_MIN: u64 = 256 * 1024;

/// Bytes that a worker sends of one answer before others get their turn.
pub(crate) const BYTES_PER_TURN: u64 = 8 * 1024 * 1024;

/// Answers of more than this may still be in the kernel's send buffer when the connection would be closed for idleness.
pub(crate) const LARGE_ANSWER: u64 = 64 * 1024;

/// After an answer that ends the connection, and of no more than this, the connection is closed at once, where the client has
/// sent nothing that was not read: what is still in the kernel's send buffer goes out without its owner, to a client that does
/// not pause for minutes. Waiting for the client's end costs a wake-up and three system calls.
pub(crate) const CLOSE_AT_ONCE_MAX: u64 = 1024 * 1024;

/// Operations queued in a shard's ring before they are submitted; completions have four times the room.
pub(crate) const URING_ENTRIES: u32 = 1024;

/// Buffers that a shard's ring receives into, and their size in bytes.
pub(crate) const URING_BUFFERS: u16 = 128;
/// Size of one of them.
pub(crate) const URING_BUFFER: usize = 16 * 1024;

/// How long a shard pauses when the kernel has no memory for an operation of its ring.
pub(crate) const URING_PAUSE: Duration = Duration::from_millis(1);
