//! `/nix-cache-info`: the store directory, the priority and the protocols of the cache.

use std::sync::Arc;

use narval_http::{Prepared, StatusCode};
use narval_keep::Cache;
use narval_nix::{CacheInfo, SecretKey, StoreDir};

use super::table::{PRESENCE_PATH, PUSH_PATH};
use super::{batch, presence};
use crate::config::{Config, Dialect};
use crate::prepared::prepared;

/// The key that announces the push protocol; its value is the protocol's path.
const PUSH_KEY: &str = "NarvalPush";
/// The line that tells clients to send small NARs together: the key, and the URL.
const PUSH_NARS: (&str, &str) = ("NarvalPushNars", "_narval/v1/nars");

/// The key of the lines that tell clients (`narval use`) what paths are signed with.
const PUBLIC_KEY: &str = "PublicKey";
/// The line that tells clients that they may ask for deltas of NARs (`docs/deltas.md`): the key, and the content coding.
const DELTAS: (&str, &str) = ("NarDeltas", "dcz");

/// The answer, which never changes while the service runs.
pub(crate) fn prepare(
    config: &Config,
    store_dir: &StoreDir,
    writable: Option<&Cache>,
    has_filter: bool,
) -> Arc<Prepared> {
    // Clients ignore unknown keys.
    let mut unknown = Vec::new();
    if config.dialect == Dialect::Narval {
        unknown.push((batch::CACHE_INFO_KEY.to_owned(), batch::PATH.to_owned()));
        let public_key = |key: &SecretKey| (PUBLIC_KEY.to_owned(), key.public_key().to_string());
        unknown.extend(config.sign_keys.iter().map(public_key));
    }
    if config.sends_deltas() {
        unknown.push((DELTAS.0.to_owned(), DELTAS.1.to_owned()));
    }
    if has_filter {
        unknown.push((presence::CACHE_INFO_KEY.to_owned(), PRESENCE_PATH.to_owned()));
    }
    if let Some(cache) = writable {
        unknown.push((PUSH_KEY.to_owned(), PUSH_PATH.to_owned()));
        if cache.takes_many_nars() {
            unknown.push((PUSH_NARS.0.to_owned(), PUSH_NARS.1.to_owned()));
        }
    }
    let info = CacheInfo {
        store_dir: store_dir.clone(),
        want_mass_query: config.want_mass_query,
        priority: Some(config.priority.into()),
        unknown,
    };
    let content_type = match config.dialect {
        Dialect::NixServe => "text/plain",
        Dialect::Narval => "text/x-nix-cache-info",
    };
    Arc::new(prepared(StatusCode::OK, content_type, &[], info.to_string()))
}
