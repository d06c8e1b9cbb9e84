//! The whole server on a simulated kernel (`io/sim/`): one thread at a time, no clock, no sockets, and every choice drawn
//! from a seed.
//!
//! Receives and sends are short, sockets fill up, operations complete in any order, workers run at any time, and clients
//! disconnect. Equal seeds make equal runs, so that a failure can be reproduced.
//!
//! Clients speak HTTP/1.1, HTTP/2 and WebSocket, and in this crate's own tests also TLS. TLS keys and nonces are random, but no
//! length depends on them, so equal seeds still have equal schedules, and so has everything that is checked.

mod client;
mod expected;
mod garbage;
mod handler;
mod header_blocks;
mod http2_client;
mod layer;
mod run;
#[cfg(all(test, feature = "tls"))]
mod tls;
mod websocket;

pub use garbage::{garbage, http1_connection, http2_connection};
pub use header_blocks::{Fields, RefusedBlock, header_lists};
pub use run::{Report, conversation};

/// The body of a simulated response.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 253 + at) as u8).collect()
}
