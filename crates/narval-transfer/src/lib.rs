//! Store paths on their way from one place to another: the walk that installing, copying and pushing share, and what
//! every part of such a command needs.
//!
//! - [`transfer`] and [`Transfer`]: from a `Source` to a `Sink` of `narval-store`, the largest NAR first, on several
//!   threads, in bounded memory. Each path becomes visible after its references; a path whose reference failed does
//!   not become visible.
//! - [`Destination`]: the local store that is written to or read from, which need not exist yet.
//! - [`Progress`]: counters for a display, and the flag that interrupts the work.
//! - [`Error`]: why a command failed, with what it failed on, what to do, and the exit code.
//!
//! Begin at `transfer.rs`, then `walk.rs`. Sources and sinks are elsewhere: a store in `narval-store`, caches to read
//! from in `narval-install`, caches to write to in `narval-push`.

#![forbid(unsafe_code)]

mod cores;
mod destination;
mod error;
mod in_order;
mod order;
mod progress;
mod size;
mod timeline;
mod transfer;
mod visible;
mod walk;
mod watched;

pub use cores::{Core, Cores, decoder_memory};
pub use destination::Destination;
pub use error::Error;
pub use order::find_cycle;
pub use progress::{Progress, Snapshot};
pub use size::human_bytes;
pub use timeline::TIMELINE;
pub use transfer::transfer;
pub use walk::Transfer;
pub use watched::Watched;
