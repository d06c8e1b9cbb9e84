//! The commands of `narval`, one file each: its arguments, and a function that runs it. A folder holds what belongs together.

pub mod cache;
pub mod caches;
pub mod ci;
pub mod completions;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod key;
pub mod login;
pub mod machines;
pub mod man;
pub mod oidc;
pub mod packages;
pub mod paths;
pub mod profile;
pub mod running;
pub mod serve;
pub mod static_site;
pub mod top;
