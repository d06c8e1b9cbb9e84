//! Names of packages, as a user has them: a channel, a cache and build records over HTTP, and the real program.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../support/mod.rs"]
mod support;

mod channels;
mod exact;
mod place;
mod profile;
mod programs;
mod project;
mod resolving;
