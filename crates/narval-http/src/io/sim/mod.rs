//! A simulated kernel that the whole server runs on: one thread at a time, no clock, no sockets, and every choice drawn
//! from a seed.
//!
//! Receives and sends are short, sockets fill up, operations complete in any order, workers run at any time, and clients
//! disconnect. Equal seeds make equal runs, so that a failure can be reproduced.
//!
//! Clients speak HTTP/1.1 and WebSocket, and in this crate's own tests also TLS and HTTP/2. TLS keys and nonces are random, but no
//! length depends on them, so equal seeds still have equal schedules, and so has everything that is checked.

mod baton;
mod client;
pub(crate) mod connection;
mod expected;
mod handler;
mod header_blocks;
mod http2;
#[cfg(all(test, feature = "tls"))]
mod http2_client;
mod layer;
mod network;
mod run;
#[cfg(all(test, feature = "tls"))]
mod tls;
mod websocket;

pub use connection::connection;
pub use header_blocks::{Fields, RefusedBlock, header_lists};
pub use http2::{http2_connection, http2_conversation};
pub use run::{Report, conversation, garbage};

pub(crate) use baton::{is_participant, yield_now};
pub(crate) use network::{Network, SimSocket};

/// The random number generator behind all choices (SplitMix64).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, or 0 if that is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % (bound.max(1) as u64)) as usize
    }

    /// Returns `true` once in `n` times on average.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The body of a simulated response.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 253 + at) as u8).collect()
}
