//! The figures of a cache that its administrators see, on its machine and over HTTP.

pub(crate) mod growth;
pub(crate) mod survey;

use serde::{Deserialize, Serialize};

use super::{Cache, Rejection};

pub use growth::SizeOfDay;
pub use survey::{CollectionStats, Fullness, Survey, TokenEnd};

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
