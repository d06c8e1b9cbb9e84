//! The command line of Narval: what its programs `narval` and `nix-serve` take, and how they wire the libraries.
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | the command line of `narval`: the commands and their groups |
//! | [`commands`] | the commands, one file each |
//! | [`config`] | the configuration file of `narval serve` |
//! | [`nix_serve`] | the command line of `nix-serve` |
//! | [`server`] | what all servers have in common from their options to their end |
//! | [`args`] | options that several commands take |
//! | [`ui`] | what people and programs see: output, progress, logs, errors, signals |

pub mod args;
pub mod cli;
pub mod commands;
pub mod config;
pub mod nix_serve;
pub mod server;
pub mod ui;

pub use ui::failure::Failure;
