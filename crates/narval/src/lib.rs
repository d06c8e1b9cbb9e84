//! The command line of Narval: what its programs `narval` and `nix-serve` take, and how they wire the libraries.

pub mod access_log;
pub mod bench;
pub mod cli;
pub mod client;
pub mod copy;
mod count;
pub mod demo;
pub mod doctor;
mod failure;
pub mod inspect;
pub mod install;
pub mod key;
pub mod listen;
pub mod log;
pub mod maintain;
pub mod manual;
pub mod nar;
pub mod nar_cache;
pub mod nix_serve;
mod output;
mod progress;
pub mod run;
pub mod serve;
pub mod server;
mod signals;
pub mod static_site;
pub mod tls;
pub mod warm;

pub use failure::Failure;
