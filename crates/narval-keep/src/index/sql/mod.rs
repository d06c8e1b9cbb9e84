//! What the index is asked, and what changes it, by statements that both databases run.

mod audit;
mod caches;
pub(super) mod jobs;
mod machines;
pub(in crate::index) mod nars;
mod paths;
mod pending;
mod retention;
mod sign_keys;
pub(super) mod snapshot;
#[cfg(test)]
pub(super) mod tests;
mod tokens;
pub(super) mod work;
