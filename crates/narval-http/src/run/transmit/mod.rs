//! How an answer gets into a socket: encoded, sent as far as it fits, and the rest kept until there is room again.
//!
//! Workers and shards both do it, whichever holds the connection's lease.

mod encode;
mod outgoing;
mod probes;

pub(crate) use encode::{Rest, encode};
pub(crate) use outgoing::{NOT_IN_TRAILERS, Outgoing, Step, Stream, wrong_length};
pub(crate) use probes::Probes;
