//! Installs packages from Nix binary caches, without Nix: finds the closure of store paths, fetches and verifies each
//! NAR, unpacks it under a temporary name in the store, renames it once every check has passed, and registers all paths
//! at the end.
//!
//! Installing, copying and pushing are a source, a sink, and the walk between them in `transfer/`. `fetch/` has the
//! source that reads from caches, `unpack/` the sink that writes to a local store, and `push/` the sinks that write to
//! caches; `resolve/` finds closures. `profile/` and `run/` use installed paths. The files beside them are the
//! operations.

#![forbid(unsafe_code)]

mod copy;
mod destination;
mod error;
mod fetch;
mod inspect;
mod install;
mod profile;
mod progress;
mod push;
mod repair;
mod resolve;
pub mod run;
pub mod settings;
mod trace;
mod transfer;
mod unpack;
mod verify;
pub mod watch;
mod watchers;

pub use copy::{copy_between_stores, copy_from_caches, copy_from_store};
pub use destination::Destination;
pub use error::Error;
pub use inspect::{cat, listing};
pub use install::{Options, Planned, Report, install, plan};
pub use narval_cache::{CacheError, Wanted};
pub use profile::{Profile, Removed};
pub use progress::{Progress, Snapshot};
pub use push::{PushOptions, Pushed, Target, UPLOADS_MAX, push};
pub use repair::repair;
pub use resolve::{Closure, LOOKUPS_MAX, Node};
pub use trace::Trace;
pub use unpack::DOWNLOADS_MAX;
pub use verify::{Fault, Faulty, verify};

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
