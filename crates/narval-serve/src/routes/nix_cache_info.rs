//! `/nix-cache-info`: the store directory, the priority and the protocols of the cache.

use std::sync::Arc;

use narval_http::{Prepared, StatusCode};
use narval_nix::{CacheInfo, SecretKey};
use narval_store::Store;

use super::batch;
use crate::prepared::prepared;
use crate::{Config, Face};

/// The key of the lines that tell clients (`narval use`) what paths are signed with.
const PUBLIC_KEY: &str = "PublicKey";

/// The answer, which never changes while the service runs.
pub(crate) fn prepare(config: &Config, store: &Store) -> Arc<Prepared> {
    // Clients ignore unknown keys.
    let unknown = match config.face {
        Face::NixServe => Vec::new(),
        Face::Narval => {
            let batch = (batch::CACHE_INFO_KEY.to_owned(), batch::PATH.to_owned());
            let public_key = |key: &SecretKey| (PUBLIC_KEY.to_owned(), key.public_key().to_string());
            std::iter::once(batch).chain(config.sign_keys.iter().map(public_key)).collect()
        }
    };
    let info = CacheInfo {
        store_dir: store.store_dir().clone(),
        want_mass_query: true,
        priority: Some(config.priority.into()),
        unknown,
    };
    let content_type = match config.face {
        Face::NixServe => "text/plain",
        Face::Narval => "text/x-nix-cache-info",
    };
    Arc::new(prepared(StatusCode::OK, content_type, &[], info.to_string()))
}
