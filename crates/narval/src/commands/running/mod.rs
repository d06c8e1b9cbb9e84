//! Programs that run from a store without being installed.

pub mod enter;
pub mod follow;
pub mod run;
pub mod shell;
