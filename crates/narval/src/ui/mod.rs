//! What people and programs see of a command: output, progress, logs, errors; and the signals they send.

pub(crate) mod failure;
pub mod log;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod signals;
