//! Information about this server, for the lines that a visitor copies.

use serde::Serialize;

use super::Places;
use crate::error::ServeError;

/// The answer to `about`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct About {
    version: &'static str,
    store_dir: String,
    priority: u32,
    keys: Vec<String>,
    /// Whether it serves a live store.
    live: bool,
    /// The writable cache.
    written: Option<Written>,
    upstreams: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    name: String,
    public: bool,
    paths: u64,
    bytes: u64,
    /// When its paths were counted last: how many there were, and how many lacked a signature by each of the cache's keys.
    counted: Option<(u64, u64)>,
}

pub(super) fn about(places: &Places) -> Result<About, ServeError> {
    let written = places.written.as_ref().map(|cache| {
        let usage = cache.usage()?;
        let (name, public) = (cache.name().to_string(), cache.settings().public);
        let counted = cache.surveyed().and_then(|full| Some((full.paths, full.unsigned?)));
        Ok::<_, ServeError>(Written { name, public, paths: usage.paths, bytes: usage.bytes, counted })
    });
    Ok(About {
        version: env!("CARGO_PKG_VERSION"),
        store_dir: places.store_dir.to_string(),
        priority: places.priority,
        keys: places.sign_keys.iter().map(ToString::to_string).collect(),
        live: places.store.is_some(),
        written: written.transpose()?,
        upstreams: places.has_upstreams,
    })
}
