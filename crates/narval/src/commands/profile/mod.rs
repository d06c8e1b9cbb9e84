//! Profiles: what is installed in them, upgraded, taken back and removed.

pub mod gc;
pub mod install;
pub mod profiles;
pub mod remove;
pub mod rollback;
pub mod upgrade;
