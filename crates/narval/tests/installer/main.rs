//! `narval install` and what belongs to it, as a user has it: the real program, real Nix as the judge of every store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../support/mod.rs"]
mod support;

mod arguments;
mod beside_nix;
mod collections;
mod contents;
mod daemon;
mod disks;
mod lab;
mod looking;
mod named;
mod network;
#[path = "../../../narval-s3/tests/ports/mod.rs"]
mod ports;
mod profiles;
mod programs;
mod push;
mod races;
mod restarts;
mod space;
mod stores;
mod trees;
mod trouble;
mod unusual;
mod verify;
