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
mod limits;
mod lookup;
mod nar;
mod narinfos;
mod neighbours;
mod options;
mod race;
mod remote;
mod shared;
mod small;
mod standing;

pub use answer::{Lookup, NarAnswer, Unavailable};
pub use limits::{
    ABSENT_FOR, ABSENT_MAX, AHEAD_MAX, AHEAD_NAR_BYTES_MAX, AHEAD_NAR_THREADS, AHEAD_NARS_MAX, AHEAD_THREADS,
    ASKED_MAX, FETCHES_MAX, FETCHES_OF_ONE_MAX, HEDGES_SHARE, NAMES_MAX, NARINFOS_MAX, RETRIES_SHARE, SMALL_LEN_MAX,
    WAITING_MAX, WAITING_OF_ONE_MAX,
};
pub use lookup::{Upstreams, UpstreamsError};
pub use narval_files::{FillEnd, GrowingFile, Progress, Waits};
pub use neighbours::offers::Offer;
pub use options::{Deadline, NamePattern, UpstreamOptions, UpstreamsOptions, Waiting, WhenDown};
pub use race::trace::{Event, Happened, Trace, TraceEnd};
pub use shared::neighbours::NEIGHBOURS_MAX;
pub use small::Small;
pub use standing::counts::{SECONDS, UpstreamStats, UpstreamsStats};
pub use standing::neighbour_counts::{NeighbourCounts, NeighbourStats};
