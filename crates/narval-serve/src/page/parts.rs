//! What views are made of.

use std::sync::Arc;

use narval_keep::CacheName;

use super::catalog::Catalog;
use super::inside::Frames;
use super::places::Places;
use crate::origins::Origins;
use crate::state::ServerState;

/// What views are made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) places: Arc<Places>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) frames: Arc<Frames>,
    /// Of the whole server.
    pub(super) state: ServerState,
}

impl Parts {
    /// The service of a cache as it answers now; `None` while the server starts.
    pub(super) fn service(&self, cache: &CacheName) -> Option<Arc<Origins>> {
        self.state.service(cache)
    }
}
