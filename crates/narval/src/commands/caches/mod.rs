//! Caches as a client sees them: using one, copying between them, pushing to one, and what is done to its contents.

mod change;
pub mod copy;
pub mod hook;
pub mod pin;
pub mod push;
pub mod release;
pub mod releases;
pub mod token;
pub mod use_cache;
mod use_near;
pub mod warm;
mod warm_near;
pub mod watch_store;
