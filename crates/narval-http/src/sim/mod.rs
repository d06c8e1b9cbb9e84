//! The whole server on a simulated kernel (`io/sim/`): one thread at a time, no clock, no sockets, and every choice drawn
//! from a seed.
//!
//! Receives and sends are short, sockets fill up, operations complete in any order, workers run at any time, and clients
//! disconnect. Equal seeds make equal runs, so that a failure can be reproduced.
//!
//! Clients speak HTTP/1.1 and WebSocket, and in this crate's own tests also TLS and HTTP/2. TLS keys and nonces are random, but no
//! length depends on them, so equal seeds still have equal schedules, and so has everything that is checked.

mod client;
pub(crate) mod connection;
mod expected;
mod handler;
mod header_blocks;
mod http2;
#[cfg(all(test, feature = "tls"))]
mod http2_client;
mod layer;
mod run;
#[cfg(all(test, feature = "tls"))]
mod tls;
mod websocket;

pub use connection::connection;
pub use header_blocks::{Fields, RefusedBlock, header_lists};
pub use http2::{http2_connection, http2_conversation};
pub use run::{Report, conversation, garbage};

/// The body of a simulated response.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 253 + at) as u8).collect()
}
