//! The cache that is written, over HTTP: real Nix, the newest and 2.8, as clients that push.

#![allow(dead_code, unreachable_pub, reason = "each file uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod administration;
mod api;
mod caches;
mod client;
mod complaints;
mod contract;
mod databases;
mod durable;
mod expiry;
mod failover;
mod figures;
mod full_disk;
mod in_bucket;
mod interrupted;
mod job_kills;
mod job_pauses;
mod jobs;
mod killed;
mod lab;
mod limits;
mod machines;
mod migrating;
mod nix;
mod nodes;
mod page_work;
#[path = "../../../narval-s3/tests/ports/mod.rs"]
mod ports;
#[path = "../../../narval-keep/tests/postgres/mod.rs"]
mod postgres;
mod power_loss;
mod protocol;
mod release_nodes;
mod releases;
mod rights;
#[path = "../../../narval-s3/tests/s3/mod.rs"]
mod s3;
mod signing;
mod sources;
#[path = "../support/mod.rs"]
mod support;
mod trust;
mod upgrades;
mod versions;
mod windows;
mod writers;
