//! Limits of upstreams: what is remembered, fetched and waited for at most.

use std::time::Duration;

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
