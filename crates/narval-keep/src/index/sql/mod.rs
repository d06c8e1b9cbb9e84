//! What the index is asked, and what changes it, by statements that both databases run.

mod audit;
mod caches;
mod commit;
mod lost;
mod nars;
mod paths;
mod pending;
mod pins;
#[cfg(test)]
pub(super) mod plans;
mod retention;
pub(super) mod snapshot;
mod tokens;
mod uploads;
pub(super) mod work;
mod writers;
