//! Pushes what a store builds: a queue that Nix's post-build hook fills, and a watcher that empties it and follows the
//! store's database.
//!
//! ```text
//! hook ── a file per build ──▶ queue/ ─┐
//!                                      ├─▶ state.sqlite: what each cache still gets ─▶ one thread for each cache: push
//! Nix ── ValidPaths.id ──▶ database ───┘
//! ```
//!
//! Paths are recorded per cache before they are removed from the queue, so nothing is lost at any moment. inotify only
//! makes it faster.

mod deliver;
mod options;
mod queue;
mod state;
mod stop;
mod wake;
mod watcher;

pub use options::{DELIVERED_MAX, WatchOptions};
pub use queue::Queue;
pub use stop::Stop;
pub use watcher::{WatchReport, watch};
