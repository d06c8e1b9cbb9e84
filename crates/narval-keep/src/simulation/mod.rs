//! A deterministic simulation of several nodes over one database and one bucket.
//!
//! The code of the nodes is the real one: uploads, commits, collections, deletions and what ends interrupted ones, with the index's SQL and
//! the bucket's storage. Simulated are the time, the threads (one runs at a time; a seed decides which), the database's connection
//! and the object store: the [`simulator`](crate::simulator) has them. At every request, a node can be paused or killed, a request can be lost,
//! its answer can be lost, and it can take effect later, as long as the real ones could. Clocks differ. In one seed of four, clients record
//! [`releases`], too. After every effect, the invariants are checked.
//!
//! The database is SQLite in memory, whose transactions are requests, or a real PostgreSQL, where each statement is one.
//!
//! `NARVAL_SIMULATION_STEPS` is the number of steps in all; `NARVAL_SIMULATION_SEED` runs one seed and prints what happened.

mod clients;
#[cfg(feature = "postgres")]
mod database;
mod node;
mod releases;
mod run;
mod tests;
