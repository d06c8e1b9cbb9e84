//! Machines that follow releases.

pub mod follow;
pub mod list;
mod report;
