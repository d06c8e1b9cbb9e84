//! Resolving: finds the closure of requested paths, from the narinfos of caches or from a store.

mod closure;
mod order;
mod walk;

pub use closure::{Closure, Node};
pub(crate) use order::in_order;
pub use walk::LOOKUPS_MAX;
pub(crate) use walk::{Walk, closure};
