//! The command line of Narval: the arguments of its programs `narval` and `nix-serve`, and how they use the libraries.
//!
//! | module | contents |
//! |---|---|
//! | [`cli`] | the command line of `narval`: the commands and their groups |
//! | [`commands`] | the commands, one file each |
//! | [`config`] | the configuration file of `narval serve` |
//! | [`project`] | folders with `narval.toml` and `narval.lock` |
//! | [`nix_serve`] | the command line of `nix-serve` |
//! | [`server`] | the life of a server, from its options to its end |
//! | [`args`] | options that several commands take |
//! | [`values`] | values that are written alike in options and in configuration files |
//! | [`ui`] | output, progress, logs, errors, signals |
//!
//! ```
//! let arguments = ["narval", "serve", "--sign-key", "cache.sec", "--listen", "127.0.0.1:8080"];
//! let parsed = narval::cli::definition().try_get_matches_from(arguments)?;
//! assert_eq!(parsed.subcommand_name(), Some("serve"));
//! # Ok::<_, clap::Error>(())
//! ```

pub mod args;
pub mod cli;
pub mod commands;
pub mod config;
pub mod nix_serve;
mod otlp;
pub mod project;
pub mod server;
pub mod ui;
pub mod values;

pub use ui::failure::Failure;

/// The programs of the guide compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/narval-http.md")]
mod guide {}

/// And those of the page on HTTPS.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tls.md")]
mod https {}
