//! The installer against caches over real sockets: those that stumble, and those that mean harm.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod copies;
mod hostile;
mod races;
mod support;
mod traps;
