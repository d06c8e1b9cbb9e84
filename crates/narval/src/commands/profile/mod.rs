//! Profiles: what is installed in them, upgraded, taken back and removed.

pub mod env;
pub mod gc;
pub mod history;
pub mod install;
pub mod list;
pub mod profiles;
pub mod remove;
pub mod rollback;
pub mod upgrade;
