//! A deterministic simulation of several nodes over one database and one bucket.
//!
//! The code of the nodes is the real one: uploads, commits, collections, deletions and what ends interrupted ones, with the index's SQL and
//! the bucket's storage. Simulated are the time, the threads (one runs at a time; a seed decides which), the database's connection
//! and the object store. At every request, a node can be paused or killed, a request can be lost, its answer can be lost, and it can take
//! effect later, as long as the real ones could. Clocks differ. In one seed of four, clients record [`releases`], too. After every effect, the invariants are checked ([`checks`]).
//!
//! The database is SQLite in memory, whose transactions are requests, or a real PostgreSQL, where each statement is one ([`statements`]).
//!
//! `NARVAL_SIMULATION_STEPS` is the number of steps in all; `NARVAL_SIMULATION_SEED` runs one seed and prints what happened.

mod bucket;
mod checks;
mod clients;
mod failover;
mod history;
mod node;
mod releases;
pub(crate) mod rule;
mod run;
mod state;
#[cfg(feature = "postgres")]
mod statements;
mod task;
mod tests;

use std::rc::Rc;

use rusqlite::Connection;

pub(crate) use self::task::Task;

/// Two caches, to which clients push the same NARs: with what the keys of their objects begin.
const CACHES: [&str; 2] = ["", "other/"];

/// A transaction.
pub(crate) type Transaction = Box<dyn FnOnce(&Connection) + Send>;

/// A random number, in a simulation.
pub(crate) fn random() -> Option<u64> {
    current().map(|task| task.random())
}

/// The simulated task that is running on this thread.
pub(crate) fn current() -> Option<Rc<Task>> {
    task::CURRENT.with_borrow(Option::clone)
}
