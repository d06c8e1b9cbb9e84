//! The user interface of commands: output, progress, logs, errors, signals.

pub(crate) mod failure;
pub(crate) mod finish;
mod journal;
pub(crate) mod json;
pub(crate) mod lacking;
pub mod log;
mod log_event;
pub(crate) mod output;
pub mod output_args;
pub(crate) mod progress;
pub(crate) mod signals;
pub(crate) mod timeline;
