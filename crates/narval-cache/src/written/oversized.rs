//! Caches that pushes have made larger than they may be are collected soon, and not with every push.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Cache, CacheName, Data};

/// A cache is collected for its size no sooner than this after the last time.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// When caches were collected for their size, and how large they were from then on at least.
#[derive(Debug, Default)]
pub(super) struct Oversized(HashMap<CacheName, (Instant, u64)>);

impl Oversized {
    /// Collects those that are over their size. What is forgotten keeps its bytes until its grace is over, so a cache is collected again only when
    /// it has grown since.
    pub(super) fn collect(&mut self, data: &Data) {
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
