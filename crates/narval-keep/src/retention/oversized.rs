//! Collects caches that pushes have made too large soon, but not at every push.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::cache::Cache;
use crate::data::Data;
use crate::name::CacheName;

/// The minimum time between two collections of a cache because of its size.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// When caches were collected because of their size, and their smallest size since.
#[derive(Debug, Default)]
pub(crate) struct Oversized(HashMap<CacheName, (Instant, u64)>);

impl Oversized {
    /// Collects those that are too large. Removed paths keep their bytes during the grace period, so a cache is only
    /// collected again if it has grown since.
    pub(crate) fn collect(&mut self, data: &Data) {
        match data.caches() {
            Ok(caches) => caches.iter().for_each(|cache| self.collect_one(cache)),
            Err(error) => tracing::error!("cannot collect garbage: {error}"),
        }
    }

    fn collect_one(&mut self, cache: &Cache) {
        let Some(size_max) = cache.settings().size_max else { return };
        let bytes = |cache: &Cache| match cache.usage() {
            Ok(usage) => Some(usage.bytes.saturating_add(usage.small_bytes)),
            Err(error) => {
                tracing::error!("cache '{}': {error}", cache.name());
                None
            }
        };
        let Some(now) = bytes(cache) else { return };
        if let Some((since, before)) = self.0.get_mut(cache.name()) {
            *before = now.min(*before);
            if since.elapsed() < AGAIN_AFTER || now <= *before {
                return;
            }
        }
        if now > size_max {
            cache.collect_in_background();
            let after = bytes(cache).unwrap_or(now);
            self.0.insert(cache.name().clone(), (Instant::now(), after));
        }
    }
}
