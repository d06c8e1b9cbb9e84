//! Installs packages from Nix binary caches, without Nix: finds the closure of store paths, fetches and verifies each
//! NAR, unpacks it beside the store and moves it in when every check has passed, and registers all of it at the end.

#![forbid(unsafe_code)]

mod between;
mod closure;
mod copy;
mod destination;
mod error;
mod inspect;
mod install;
mod pipeline;
mod profile;
mod repair;
mod resolve;
pub mod run;
mod trace;
mod verify;

pub use between::copy_between_stores;
pub use closure::{Closure, Node};
pub use copy::{copy_from_caches, copy_from_store};
pub use destination::Destination;
pub use error::Error;
pub use inspect::{cat, listing};
pub use install::{Options, Planned, Report, install, plan};
pub use narval_cache::{CacheError, Wanted};
pub use pipeline::{DOWNLOADS_MAX, Progress, Snapshot};
pub use profile::{Profile, Removed};
pub use repair::repair;
pub use resolve::LOOKUPS_MAX;
pub use trace::Trace;
pub use verify::{Fault, Faulty, verify};
