//! A simulated kernel: one thread at a time, no clock, no sockets, and every choice drawn from a seed. `sim/` runs the
//! whole server on it.

mod baton;
pub(crate) mod network;
mod random;

pub(crate) use baton::{Baton, is_participant, yield_now};
pub(crate) use network::{Network, SimSocket, Speaks, Wire};
pub(crate) use random::Random;
