//! Upstreams: binary caches that are queried for missing paths, and whose files are stored while they are passed on.
//!
//! [`Upstreams`] are several of them, in order of priority, with one folder and budget. Guarantees:
//!
//! - A narinfo is verified against the keys of its upstream, also each time it is read from disk again.
//! - A NAR is fetched once, however many clients request it: into a [`GrowingFile`], whose readers follow its
//!   writer. It is verified meanwhile. If it does not match the narinfo, the last byte is never sent, nothing is
//!   stored, and the log names the upstream.
//! - Absences are remembered for [`ABSENT_FOR`]. What was not answered in time is never remembered: it counts as absent for one
//!   request of a client at most ([`Deadline`]), and is unknown to pushes.
//! - While upstreams are down, stored files are served, and the server can start.
//!
//! ```text
//! DIR/lock             one process at a time
//! DIR/narinfo/<hash>   "Upstream: <url>", an empty line, the narinfo as it came
//! DIR/nar/<hash>.nar*  a NAR's file by its FileHash (NarHash, if the narinfo has none): one file for all paths that share it
//! DIR/small/<name>     listings, build logs, realisations, debug information
//! ```
//! NARs get our own names, `nar/<hash part>-<hash>.nar…`: even weeks later, a name tells which narinfo it belongs to.

mod ahead;
mod answer;
mod asking;
mod known;
mod lookup;
mod nar;
mod narinfos;
mod neighbours;
mod options;
mod question;
mod race;
mod remote;
mod shared;
mod small;
mod standing;
mod walk;

use std::time::Duration;

pub use lookup::{Lookup, NarAnswer, Upstreams, UpstreamsError};
pub use narval_files::{FillEnd, GrowingFile, Progress, Waits};
pub use neighbours::counts::{NeighbourCounts, NeighbourStats};
pub use neighbours::list::NEIGHBOURS_MAX;
pub use neighbours::offers::Offer;
pub use options::{Deadline, NamePattern, UpstreamOptions, UpstreamsOptions, Waiting, WhenDown};
pub use race::trace::{Event, Happened, Trace, TraceEnd};
pub use small::Small;
pub use standing::counts::{SECONDS, UpstreamStats, UpstreamsStats};

/// How long absences are remembered.
pub const ABSENT_FOR: Duration = Duration::from_secs(60);
/// The maximum number of remembered absences.
pub const ABSENT_MAX: usize = 100_000;
/// The maximum number of remembered names that an upstream is not asked for.
pub const NAMES_MAX: usize = 1 << 16;
/// The maximum number of narinfos in memory; each takes 2 to 4 KB.
pub const NARINFOS_MAX: usize = 8192;
/// The maximum number of server threads that wait for upstreams. Further requests fail as unavailable: the other
/// threads must stay free for stored files.
pub const WAITING_MAX: usize = 128;
/// The maximum number of them that wait for one client.
pub const WAITING_OF_ONE_MAX: usize = 64;
/// The maximum number of requests for narinfos and small files that one upstream has not answered. Further ones fail.
pub const ASKED_MAX: usize = 256;
/// The share of requests that are made twice, because an upstream takes longer than usual.
pub const HEDGES_SHARE: f64 = 0.05;
/// The share of the requests to one upstream that may be retries of failed ones: more would keep one that is overloaded from recovering.
pub const RETRIES_SHARE: f64 = 0.1;
/// The maximum number of concurrent fetches of NARs. Each has a thread, and a decoder's window.
pub const FETCHES_MAX: usize = 64;
/// The maximum number of them that one client has begun: Nix asks for 25 files at a time by default.
pub const FETCHES_OF_ONE_MAX: usize = 48;
/// The maximum number of narinfos queued for prefetching; more are skipped.
pub const AHEAD_MAX: usize = 1024;
/// Threads that prefetch narinfos.
pub const AHEAD_THREADS: usize = 4;
/// The maximum number of NARs queued for prefetching; more are skipped.
pub const AHEAD_NARS_MAX: usize = 4096;
/// Threads that prefetch NARs, one at a time each.
pub const AHEAD_NAR_THREADS: usize = 4;
/// The maximum size of prefetched NARs that no client has requested yet, in bytes; never more than a quarter of the
/// budget.
pub const AHEAD_NAR_BYTES_MAX: u64 = 4 << 30;
/// The maximum size of a build log or listing, in bytes.
pub const SMALL_LEN_MAX: u64 = 32 * 1024 * 1024;

/// No upstream can be queried at the moment. It is unknown whether they have the path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no upstream is available at the moment ({reason}); try again in {} s", retry_after.as_secs())]
pub struct Unavailable {
    /// When a client should try again.
    pub retry_after: Duration,
    /// Why, for the log.
    pub reason: String,
}

impl Unavailable {
    pub(crate) fn new(retry_after_seconds: u64, reason: impl Into<String>) -> Self {
        Self { retry_after: Duration::from_secs(retry_after_seconds), reason: reason.into() }
    }
}
