//! The sources that the page shows.

use std::sync::Arc;

use narval_keep::{Cache, Data};
use narval_nix::{PublicKey, StoreDir};
use narval_store::Store;

use crate::nar::plan::Planner;
use crate::narinfo::sources::Narinfos;

/// The sources that the page shows.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) store_dir: StoreDir,
    pub(crate) priority: u32,
    pub(crate) sign_keys: Vec<PublicKey>,
    pub(crate) narinfos: Arc<Narinfos>,
    /// The live store, and the planner of its NARs.
    pub(crate) store: Option<Arc<Store>>,
    pub(crate) planner: Option<Arc<Planner>>,
    pub(crate) writable: Option<Cache>,
    /// The folder of the cache, which has the tokens.
    pub(crate) data: Option<Data>,
    /// What its operator says about it.
    pub(crate) description: Option<String>,
    /// Whether there are upstreams.
    pub(crate) has_upstreams: bool,
}
