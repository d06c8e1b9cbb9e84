//! What is watched, and where it goes.

use std::path::PathBuf;
use std::sync::Arc;

use narval_client::{Client, Url};
use narval_store::StoreConfig;

use crate::push::{PushOptions, Selection};

/// The maximum number of paths that a report lists.
pub const DELIVERED_MAX: usize = 10_000;

/// What is watched, and where it goes.
pub struct WatchOptions {
    /// The store. Unless only the queue is pushed, its database must be readable.
    pub store: StoreConfig,
    /// The folder of the state, which contains the queue; created if it does not exist.
    pub state: PathBuf,
    /// The caches to push to.
    pub targets: Vec<Url>,
    /// The client for reaching them.
    pub client: Arc<Client>,
    /// Which paths are pushed.
    pub selection: Selection,
    /// Whether the caches are only asked what they lack. Paths count as delivered nevertheless: give it a copy of the state.
    pub is_dry: bool,
    /// How they are pushed.
    pub push: PushOptions,
    /// Whether only the queue is pushed, and other paths that become valid are skipped for good.
    pub queue_only: bool,
    /// Whether each cache also gets the paths that are already valid, once.
    pub existing: bool,
    /// Whether to end once everything pending now is delivered.
    pub once: bool,
}
