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
}

pub(super) fn about(places: &Places) -> Result<About, ServeError> {
    let written = places.written.as_ref().map(|cache| {
        let usage = cache.usage()?;
        let (name, public) = (cache.name().to_string(), cache.settings().public);
        Ok::<_, ServeError>(Written { name, public, paths: usage.paths, bytes: usage.bytes })
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
