//! What a cache answers from.

use std::sync::Arc;

use narval_cache::upstream::Upstreams;
use narval_keep::{Cache, CacheName, Data, Redirect};
use narval_store::Store;

use crate::auth::Auth;
use crate::auth::oidc::OidcExchange;
use crate::metrics::Metrics;
use crate::routes::nar::Nars;
use crate::upload::receive::Uploads;

/// Where a cache has its paths from, and what is counted of it.
#[derive(Debug)]
pub(crate) struct Origins {
    pub(crate) live: Option<Live>,
    pub(crate) writable: Option<Writable>,
    pub(crate) upstream: Option<Upstreams>,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether it is the cache at `/`, whose `/metrics` shows the engine's counters, too.
    pub(crate) shows_engine: bool,
}

/// The live store.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) store: Arc<Store>,
    pub(crate) nars: Nars,
}

/// The writable cache.
#[derive(Debug)]
pub(crate) struct Writable {
    pub(crate) data: Data,
    pub(crate) cache: Cache,
    pub(crate) auth: Arc<Auth>,
    pub(crate) uploads: Arc<Uploads>,
    pub(crate) is_public: bool,
    pub(crate) exchange: Option<OidcExchange>,
    pub(crate) redirect: Redirect,
}

impl Origins {
    /// Begins to count what is in its data folder: that takes a while, and somebody will ask.
    pub(crate) fn begin_survey(&self) {
        if let Some(writable) = &self.writable {
            drop(writable.data.survey());
        }
    }

    /// The name of the cache.
    pub(crate) fn name(&self) -> CacheName {
        self.writable.as_ref().map(|writable| writable.cache.name().clone()).unwrap_or_default()
    }
}
