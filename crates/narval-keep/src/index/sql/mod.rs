//! What the index is asked, and what changes it, by statements that both databases run.

mod audit;
mod caches;
mod nars;
mod paths;
mod pins;
#[cfg(test)]
pub(super) mod plans;
pub(super) mod snapshot;
mod tokens;
