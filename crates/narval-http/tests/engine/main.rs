//! The engine over real sockets. Every test runs on every driver that works here, or on the one that `NARVAL_DRIVER` names.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod bodies_in;
mod bodies_out;
#[cfg(feature = "tls")]
mod client_certificates;
mod connections;
mod deadlines;
mod departures;
mod drivers;
mod harness;
#[cfg(feature = "tls")]
mod http2;
mod late;
mod letter;
mod many_uploads;
mod memory;
mod observed;
mod output_memory;
mod overload;
mod panics;
mod proxies;
mod pushed;
mod shards;
mod site;
mod slow_bodies;
mod stopping;
mod websocket;
