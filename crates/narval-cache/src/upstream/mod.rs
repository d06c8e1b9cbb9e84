//! Upstreams: binary caches that are asked for what this one has not, and whose answers are kept while they pass.
//!
//! [`Upstreams`] are some of them, in order of priority, over one folder with a budget. What they promise:
//!
//! - A narinfo is verified against the keys of the upstream that it came from, each time it is taken up again from the disk.
//! - A NAR is fetched once however many ask for it: a [`Fill`] is a file that grows, and whoever wants the NAR reads behind the writer. It is
//!   verified meanwhile. If it is not what the narinfo says, the last byte is never given out, nothing is kept, and the log names the
//!   upstream.
//! - What no upstream has is remembered for [`ABSENT_FOR`]. A timeout is never an absence: then the answer is [`Unavailable`].
//! - While upstreams are away, what is kept is served, and the server starts.
//!
//! ```text
//! DIR/lock             one process at a time
//! DIR/narinfo/<hash>   "Upstream: <url>", an empty line, the narinfo as it came
//! DIR/nar/<hash>.nar*  a NAR's file by its FileHash (NarHash, if the narinfo has none): one file for all paths that share it
//! DIR/small/<name>     listings, build logs, realisations, debug information
//! ```
//! NARs get names of our own, `nar/<hash part>-<hash>.nar…`: a client that remembers one for weeks says by it which narinfo it belongs to.

mod ahead;
mod fetch;
mod fill;
mod kept;
mod lookup;
mod name;
mod options;
mod permits;
mod remote;
mod small;
mod walk;

use std::time::Duration;

pub use fill::{Fill, FillEnd, Progress};
pub use lookup::{Lookup, NarAnswer, Upstreams, UpstreamsError};
pub use options::{UpstreamOptions, UpstreamsOptions, Waiting};
pub use small::Small;

/// How long what no upstream has is remembered.
pub const ABSENT_FOR: Duration = Duration::from_secs(60);
/// The most absences that are remembered.
pub const ABSENT_MAX: usize = 100_000;
/// The most narinfos in memory; each takes 2 to 4 KB.
pub const NARINFOS_MAX: usize = 8192;
/// Threads of the server that may wait for upstreams at once. More are told that the upstreams are unavailable: the others must stay free
/// for what is kept.
pub const WAITING_MAX: usize = 64;
/// NARs that are fetched at once. Each has a thread, and a decoder's window.
pub const FETCHES_MAX: usize = 64;
/// Narinfos that wait to be fetched ahead. More are not.
pub const AHEAD_MAX: usize = 1024;
/// Threads that fetch narinfos ahead.
pub const AHEAD_THREADS: usize = 4;
/// NARs that wait to be fetched ahead. More are not.
pub const AHEAD_NARS_MAX: usize = 4096;
/// Threads that fetch NARs ahead, each one at a time.
pub const AHEAD_NAR_THREADS: usize = 4;
/// The most bytes of NARs that are fetched before a client asks for them; never more than a quarter of the budget.
pub const AHEAD_NAR_BYTES_MAX: u64 = 4 << 30;
/// The longest build log or listing, in bytes.
pub const SMALL_LEN_MAX: u64 = 32 * 1024 * 1024;

/// No upstream can be asked at the moment. It says nothing of whether they have what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no upstream can be asked at the moment ({reason}); try again in {} s", retry_after.as_secs())]
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
