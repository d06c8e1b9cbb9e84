//! `[limits]`: what clients may cost.

use std::time::Duration;

use narval_http::Limits as EngineLimits;

use crate::config::field::table;
use crate::config::kinds::{duration, integer, size, size_from};
use narval_codec::decode::DECODE_MEMORY_MIN;

/// The maximum of a timeout.
pub(in crate::config) const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

fn timeout() -> crate::config::key::Key<Duration> {
    duration(Duration::from_millis(100)..=TIMEOUT_MAX)
}

table! {
    /// What clients may cost.
    Limits {
        /// Open connections; for a further one an idle connection is closed, and if there is none it gets 503. Fewer if the limit on open
        /// files requires it
        connections: usize = integer(1..=1_000_000).or("16384").restart(),
        /// Open connections of one client: an IPv4 address, or an IPv6 network of 64 bits; further ones get 503. Unix sockets and
        /// `trusted-proxies` have no such limit
        connections_per_address: Option<usize> = integer::<usize>(1..=1_000_000).or_else("an eighth of `limits.connections`, at least 16").restart(),
        /// Requests that wait for a worker; further ones get 503. Clients take turns. One may have no more requests there than there are
        /// free places, so alone half of them, or 16
        queue: usize = integer(1..=1_000_000).or("1024").restart(),
        /// Connections that wait to be accepted, for each listener
        backlog: u32 = integer(1..=65_535).or("4096").restart(),
        /// Timeout for receiving a request's head
        head_timeout: Duration = timeout().or("10s").restart(),
        /// Idle time between two requests on a connection
        keep_alive_timeout: Duration = timeout().or("75s").restart(),
        /// Time after which a client that reads nothing is disconnected
        ///
        /// The default is long because Nix stops reading while its disk is slow, and cannot resume a NAR sent with `Content-Encoding`.
        stall_timeout: Duration = timeout().or("1h").option("stall-timeout", "TIME").restart(),
        /// How long requests that are under way may take after the signal to stop; `TimeoutStopSec=` of the unit must be longer
        shutdown_grace: Duration = timeout().or("30s").restart(),
        /// Memory for answers that clients have yet to read, and for messages of WebSockets
        ///
        /// Beyond it, larger answers from memory are refused with 503, and the connections that hold most are closed. Files and NARs are read
        /// as their clients take them, and hardly count.
        output_memory: u64 = size().or("256M").option("output-memory", "SIZE").restart(),
        /// Memory for remembered narinfos, per cache
        narinfo_memory: u64 = size().or("32M"),
        /// Memory for the windows of all uploads that are being decoded; see docs/security.md#shared-resources
        decode_memory: u64 = size_from(DECODE_MEMORY_MIN).or("256M"),
    }
}

/// A size of memory.
pub fn saturated(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Limits {
    /// Those of the engine.
    pub fn of_engine(&self) -> EngineLimits {
        EngineLimits {
            connections_max: self.connections,
            connections_per_ip_max: self.connections_per_address,
            queue_max: self.queue,
            backlog: self.backlog,
            head_timeout: self.head_timeout,
            keep_alive_timeout: self.keep_alive_timeout,
            write_stall_timeout: self.stall_timeout,
            output_memory_max: saturated(self.output_memory),
            ..EngineLimits::default()
        }
    }
}
