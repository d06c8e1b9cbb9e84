//! What a cache has, as a filter: clients that know it need not ask for what it does not have.
//!
//! A [`Snapshot`] is a filter of all paths of a cache at one moment, and [`Changes`] are those that it got since. Both are signed by the
//! cache's keys. A path that was removed since is still present in them: "present" only means that it is worth asking.

mod filter;
mod wire;

#[cfg(test)]
mod tests;

pub use filter::{FILTER_LEN_MAX, Filter, FilterError, PATHS_MAX, key};
pub use wire::{CHANGES_MAX, Changes, HEAD_LEN_MAX, PresenceError, Snapshot};
