//! Retention: what a cache keeps, and for how long.
//!
//! A path is kept if it is pinned or leased, if it was pushed or requested within the retention, or if a kept path
//! refers to it. Other paths are removed: referrers before their references, so that every visible closure is complete;
//! narinfos immediately, NARs after a grace period, because clients remember narinfos. Any server may collect, one at a time ([`lease`]).

mod collect;
mod delete;
mod grace;
mod lease;
mod leftovers;
mod mark;
pub(crate) mod oversized;
mod pins;
mod room;
mod steps;
mod sweep;

pub use collect::{CollectOptions, Collected, Forgotten};
pub use delete::Deleted;
pub use grace::{COLLECT_GRACE, UNFINISHED_GRACE};
pub(super) use leftovers::nar_of;
pub use mark::{Hold, Why};
pub use pins::PinSize;

/// The duration of the lease of a path that a client was told exists, in seconds: a day.
pub const LEASE_SECONDS: u64 = 24 * 60 * 60;
