//! Values that are written alike in options and in configuration files.

pub(crate) mod folders;
pub mod listen;
pub(crate) mod size;
pub(crate) mod time;
