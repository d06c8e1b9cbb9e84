//! What a cache keeps, and for how long.
//!
//! A path is kept when a pin or a lease holds it, when it was pushed or asked for within the retention, or when a path that is
//! kept refers to it. What is not kept is forgotten in this order: referrers before what they refer to, so that every closure
//! that can be seen is whole; narinfos at once, NARs after a grace, because clients remember narinfos.

mod collect;
mod delete;
mod mark;
mod pins;
mod room;
mod shortage;
mod used;

pub use collect::{COLLECT_GRACE, CollectOptions, Collected, Forgotten, UNFINISHED_GRACE};
pub use delete::Deleted;
pub use mark::{Hold, Why};
pub use pins::{Pin, PinFor};
pub(super) use shortage::Shortage;
pub(super) use used::Uses;

/// How long a lease of a path lasts that a client was told exists, in seconds: a day.
pub const LEASE_SECONDS: u64 = 24 * 60 * 60;
