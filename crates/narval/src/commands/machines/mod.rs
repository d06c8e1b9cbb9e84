//! Machines that follow releases.

pub mod follow;
