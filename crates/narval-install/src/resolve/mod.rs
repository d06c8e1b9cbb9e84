//! Resolving: finds the closure of requested paths, from the narinfos of caches or from a store.

mod closure;
mod walk;

pub use closure::{Closure, Node};
pub use walk::{CLOSURE_PATHS_MAX, CLOSURE_REFERENCES_MAX, LOOKUPS_MAX};
pub(crate) use walk::{Walk, check_cycles, closure};
