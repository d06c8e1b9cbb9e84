//! Values that are written alike in options and in configuration files.

pub mod delta_choice;
pub mod ktls_mode;
pub mod listen;
pub mod log_form;
pub mod redirect_choice;
pub(crate) mod size;
pub(crate) mod time;
