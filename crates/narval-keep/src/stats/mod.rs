//! The figures of a cache that its administrators see, on its machine and over HTTP.

mod survey;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::data::Data;
use crate::rejection::Rejection;
use crate::shared::growth::SizeOfDay;

/// How large a cache is, and what its settings allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CacheStats {
    /// The cache's name.
    pub cache: String,
    /// Paths.
    pub paths: u64,
    /// Those of them without a signature by each of the cache's keys; `None` if it has no key.
    pub unsigned: Option<u64>,
    /// Names of NARs.
    pub files: u64,
    /// Bytes of NARs and their listings, as they are stored.
    pub bytes: u64,
    /// Bytes of logs, realisations and the like.
    pub small_bytes: u64,
    /// Pins.
    pub pins: u64,
    /// For how many days unused paths are kept; `None`: forever.
    pub retention_days: Option<u32>,
    /// The size in bytes to which it is collected.
    pub size_max: Option<u64>,
    /// The size in bytes from which uploads are refused.
    pub quota: Option<u64>,
    /// Whether everybody may read it.
    pub public: bool,
}

impl Cache {
    /// Its figures.
    ///
    /// # Errors
    /// If the index fails, or the small files cannot be listed.
    pub fn stats(&self) -> Result<CacheStats, Rejection> {
        let (full, settings) = (self.fullness()?, self.settings());
        Ok(CacheStats {
            cache: self.name().to_string(),
            paths: full.paths,
            unsigned: full.unsigned,
            files: full.files,
            bytes: full.nar_bytes + full.listing_bytes,
            small_bytes: full.log_bytes + full.other_bytes,
            pins: full.pins,
            retention_days: settings.retention_days,
            size_max: settings.size_max,
            quota: settings.quota,
            public: settings.public,
        })
    }
}

impl Data {
    /// Records how large its caches are today; for servers, now and then.
    pub(crate) fn note_sizes(&self) {
        let caches = match self.caches() {
            Ok(caches) => caches,
            Err(error) => return tracing::debug!("sizes are not recorded: {error}"),
        };
        let size = |cache: &Cache| {
            let usage = cache.usage().inspect_err(|error| tracing::debug!("sizes are not recorded: {error}")).ok()?;
            Some(usage.bytes.saturating_add(usage.small_bytes))
        };
        // With one that cannot be counted, the others would be forgotten.
        let today: Option<BTreeMap<_, _>> = caches.iter().map(|cache| Some((cache.name(), size(cache)?))).collect();
        if let Some(today) = today {
            self.shared().growth.note(self.shared().index.now(), &today);
        }
    }
}

impl Cache {
    /// How large it was on the last days, the oldest first. A server records it once an hour.
    pub fn sizes_by_day(&self) -> Vec<SizeOfDay> {
        self.data().shared().growth.of(self.name())
    }
}
