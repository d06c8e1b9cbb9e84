//! Writes responses to sockets: encodes them, sends as much as fits, and keeps the rest until the socket is writable
//! again.
//!
//! Done by whichever of worker and shard holds the connection's lease.

mod encode;
mod outgoing;
mod probes;

pub(crate) use encode::{Encoded, Rest, encode};
pub(crate) use outgoing::Outgoing;
pub(crate) use probes::Probes;
