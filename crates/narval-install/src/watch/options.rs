//! What is watched, and where it goes.

use std::path::PathBuf;
use std::sync::Arc;

use narval_client::{Client, Url};
use narval_store::StoreConfig;

use super::filter::Filter;
use crate::PushOptions;

/// What is watched, and where it goes.
pub struct WatchOptions {
    /// The store. Its database has to be readable.
    pub store: StoreConfig,
    /// The folder of the state, with the queue in it; made if it is missing.
    pub state: PathBuf,
    /// The caches to push to.
    pub targets: Vec<Url>,
    /// The client to reach them with.
    pub client: Arc<Client>,
    /// What is pushed.
    pub filter: Filter,
    /// How it is pushed.
    pub push: PushOptions,
    /// Whether only the queue is pushed, and what becomes valid besides is left out for good.
    pub queue_only: bool,
    /// Whether a cache that is new to the state also gets what is valid already.
    pub existing: bool,
    /// Whether to end once everything that is there now was delivered.
    pub once: bool,
}
