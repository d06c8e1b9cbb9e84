//! The settings of a cache.

use narval_nix::{CacheInfo, PublicKey, StoreDir};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::releases::KEEP_RELEASES;

/// A NAR larger than this is refused, if nothing else is said: 64 GiB. Decoding a hostile file costs at most as much.
pub const NAR_SIZE_MAX: u64 = 64 << 30;

/// The default retention in days: how long unused paths are kept.
pub const RETENTION_DAYS: u32 = 90;

/// How long Nix remembers that a cache has a path, in days: with a shorter retention, clients rely on paths that were
/// removed.
pub const RETENTION_DAYS_SAFE: u32 = 30;

/// The settings of a cache. Stored in the index, so that commands beside a server know them, too; secret keys are not
/// included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// The store directory of its paths.
    pub store_dir: StoreDir,
    /// `Priority` in `nix-cache-info`; the lowest wins.
    pub priority: u32,
    /// `WantMassQuery` in `nix-cache-info`: whether clients ask this cache for many paths at once.
    pub want_mass_query: bool,
    /// Whether reading needs no token.
    pub public: bool,
    /// The public keys of the signing keys, for `nix-cache-info`.
    pub public_keys: Vec<PublicKey>,
    /// Uploads signed by one of these are also signed by the cache.
    pub trusted_keys: Vec<PublicKey>,
    /// If set, uploads must be signed by one of these.
    pub required_keys: Vec<PublicKey>,
    /// Whether a path is refused when its contents refer to a path of this cache that its narinfo does not name. Nix itself
    /// makes such paths (sources that mention store paths, `unsafeDiscardReferences`), so they are reported only by default.
    pub strict_references: bool,
    /// Paths that were not used for so many days are collected. `None`: never.
    pub retention_days: Option<u32>,
    /// The maximum size in bytes: the least recently used paths are removed first. Logs and other small files may use
    /// at most a quarter of it.
    pub size_max: Option<u64>,
    /// The size in bytes of NARs, listings, logs and other small files above which uploads are refused.
    pub quota: Option<u64>,
    /// The largest accepted NAR in bytes, uncompressed.
    pub nar_size_max: u64,
    /// How many releases of a name and a system keep their paths.
    pub keep_releases: u32,
    /// Whether NARs that are not zstd are recompressed in the background.
    pub recompress: bool,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            store_dir: StoreDir::default(),
            priority: 40,
            want_mass_query: true,
            public: true,
            public_keys: Vec::new(),
            trusted_keys: Vec::new(),
            required_keys: Vec::new(),
            strict_references: false,
            retention_days: Some(RETENTION_DAYS),
            size_max: None,
            quota: None,
            nar_size_max: NAR_SIZE_MAX,
            keep_releases: KEEP_RELEASES,
            recompress: false,
        }
    }
}

/// Stored settings cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the settings in the index cannot be read: {0}")]
pub struct SettingsError(String);

impl CacheSettings {
    /// The contents of `nix-cache-info`.
    pub fn cache_info(&self) -> CacheInfo {
        CacheInfo {
            store_dir: self.store_dir.clone(),
            want_mass_query: self.want_mass_query,
            priority: Some(self.priority.into()),
            // Clients ignore keys that they do not know; `narval use` reads this one.
            unknown: self.public_keys.iter().map(|key| ("PublicKey".to_owned(), key.to_string())).collect(),
        }
    }

    /// A warning about these settings, if any.
    pub fn warning(&self) -> Option<String> {
        let days = self.retention_days.filter(|days| *days < RETENTION_DAYS_SAFE)?;
        Some(format!(
            "a retention of {days} days is shorter than Nix's memory of {RETENTION_DAYS_SAFE} days: \
             clients will ask for paths that are gone, until 'nix copy --refresh'"
        ))
    }

    pub(super) fn to_json(&self) -> String {
        let keys = |keys: &[PublicKey]| keys.iter().map(ToString::to_string).collect();
        let record = Record {
            store_dir: self.store_dir.to_string(),
            priority: self.priority,
            want_mass_query: self.want_mass_query,
            public: self.public,
            public_keys: keys(&self.public_keys),
            trusted_keys: keys(&self.trusted_keys),
            required_keys: keys(&self.required_keys),
            strict_references: self.strict_references,
            retention_days: self.retention_days,
            size_max: self.size_max,
            quota: self.quota,
            nar_size_max: self.nar_size_max,
            keep_releases: self.keep_releases,
            recompress: self.recompress,
        };
        // Such a structure has nothing that JSON has not.
        serde_json::to_string(&record).unwrap_or_default()
    }

    pub(super) fn from_json(json: &str) -> Result<Self, SettingsError> {
        fn failed(error: impl ToString) -> SettingsError {
            SettingsError(error.to_string())
        }
        let record: Record = serde_json::from_str(json).map_err(failed)?;
        let keys = |keys: Vec<String>| -> Result<Vec<PublicKey>, SettingsError> {
            keys.iter().map(|key| key.parse().map_err(failed)).collect()
        };
        Ok(Self {
            store_dir: record.store_dir.parse().map_err(failed)?,
            priority: record.priority,
            want_mass_query: record.want_mass_query,
            public: record.public,
            public_keys: keys(record.public_keys)?,
            trusted_keys: keys(record.trusted_keys)?,
            required_keys: keys(record.required_keys)?,
            strict_references: record.strict_references,
            retention_days: record.retention_days,
            size_max: record.size_max,
            quota: record.quota,
            nar_size_max: record.nar_size_max,
            keep_releases: record.keep_releases,
            recompress: record.recompress,
        })
    }
}

/// The stored settings.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct Record {
    store_dir: String,
    priority: u32,
    want_mass_query: bool,
    public: bool,
    public_keys: Vec<String>,
    trusted_keys: Vec<String>,
    required_keys: Vec<String>,
    strict_references: bool,
    retention_days: Option<u32>,
    size_max: Option<u64>,
    quota: Option<u64>,
    nar_size_max: u64,
    keep_releases: u32,
    recompress: bool,
}

impl Default for Record {
    fn default() -> Self {
        let settings = CacheSettings::default();
        Self {
            store_dir: settings.store_dir.to_string(),
            priority: settings.priority,
            want_mass_query: settings.want_mass_query,
            public: settings.public,
            public_keys: Vec::new(),
            trusted_keys: Vec::new(),
            required_keys: Vec::new(),
            strict_references: settings.strict_references,
            retention_days: settings.retention_days,
            size_max: None,
            quota: None,
            nar_size_max: settings.nar_size_max,
            keep_releases: settings.keep_releases,
            recompress: settings.recompress,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_and_read_again() {
        let key = "cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=";
        let settings = CacheSettings {
            public: false,
            want_mass_query: false,
            public_keys: vec![key.parse().unwrap()],
            trusted_keys: vec![key.parse().unwrap()],
            retention_days: None,
            size_max: Some(1 << 40),
            ..CacheSettings::default()
        };
        assert_eq!(CacheSettings::from_json(&settings.to_json()), Ok(settings));
        assert_eq!(CacheSettings::from_json("{}"), Ok(CacheSettings::default()));
        assert!(CacheSettings::from_json("{").is_err());
    }

    #[test]
    fn a_short_retention_is_warned_of() {
        let days = |days| CacheSettings { retention_days: Some(days), ..CacheSettings::default() };
        assert!(days(29).warning().unwrap().contains("--refresh"));
        assert_eq!((days(30).warning(), CacheSettings::default().warning()), (None, None));
    }
}
