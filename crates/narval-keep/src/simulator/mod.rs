//! What a simulation runs on: the time, tasks that take turns, a database and an object store, what fails, and what must never be.
//!
//! It knows nothing of the code that is simulated: the [`simulation`](crate::simulation) has nodes and their clients.

pub(crate) mod bucket;
mod checks;
mod failover;
pub(crate) mod history;
pub(crate) mod releases;
pub(crate) mod rule;
#[cfg(feature = "postgres")]
pub(crate) mod server;
pub(crate) mod state;
#[cfg(feature = "postgres")]
mod statements;
pub(crate) mod task;
