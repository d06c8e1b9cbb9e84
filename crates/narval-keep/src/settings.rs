//! The settings of a cache.

use narval_nix::{CacheInfo, PublicKey, StoreDir};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

/// How many releases of a name and a system keep their paths, if nothing else is said.
pub const KEEP_RELEASES: u32 = 10;

/// A NAR larger than this is refused, if nothing else is said: 64 GiB. Decoding a hostile file costs at most as much.
pub const NAR_SIZE_MAX: u64 = 64 << 30;

/// The default retention in days: how long unused paths are kept.
pub const RETENTION_DAYS: u32 = 90;

/// How long Nix remembers that a cache has a path, in days: with a shorter retention, clients rely on paths that were
/// removed.
pub const RETENTION_DAYS_SAFE: u32 = 30;

/// The settings of a cache. Stored in the index, so that commands beside a server know them, too; secret keys are not
/// included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheSettings {
    /// The store directory of its paths.
    #[serde(with = "store_dir")]
    pub store_dir: StoreDir,
    /// `Priority` in `nix-cache-info`; the lowest wins.
    pub priority: u32,
    /// `WantMassQuery` in `nix-cache-info`: whether clients ask this cache for many paths at once.
    pub want_mass_query: bool,
    /// Whether reading needs no token.
    pub public: bool,
    /// The public keys of the signing keys, for `nix-cache-info`.
    #[serde(with = "keys")]
    pub public_keys: Vec<PublicKey>,
    /// Uploads signed by one of these are also signed by the cache.
    #[serde(with = "keys")]
    pub trusted_keys: Vec<PublicKey>,
    /// If set, uploads must be signed by one of these.
    #[serde(with = "keys")]
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
    /// Whether servers serve it below `/NAME` although their configuration file does not have it: it was created by the API for administration.
    pub managed: bool,
    /// Whether it was deleted: a job removes what is in it, and its name can be used again.
    pub deleted: bool,
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
            managed: false,
            deleted: false,
        }
    }
}

/// Stored settings cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("settings of a cache: {0}")]
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

    /// As JSON, with names such as `retentionDays`.
    pub fn to_value(&self) -> Value {
        let stored = serde_json::from_str(&self.to_json());
        let fields = stored.into_iter().flat_map(|fields: Map<String, Value>| fields);
        fields.map(|(name, value)| (camel_case(&name), value)).collect::<Map<_, _>>().into()
    }

    /// These with others in the form of [`to_value`](Self::to_value): what is not named stays, and `null` is the default.
    ///
    /// # Errors
    /// If a name is not known, or is that of the store directory or the public keys, which do not change like this; or a value is not possible.
    pub fn changed(&self, changes: &Map<String, Value>) -> Result<Self, SettingsError> {
        let stored: Map<String, Value> =
            serde_json::from_str(&self.to_json()).map_err(|error| SettingsError(error.to_string()))?;
        let mut fields = Map::new();
        for (name, value) in &stored {
            let changed = changes.get(&camel_case(name)).filter(|_| !FIXED.contains(&&**name));
            match changed {
                // The default: it has a value if it is not optional.
                Some(Value::Null) => {}
                Some(changed) => drop(fields.insert(name.clone(), changed.clone())),
                None => drop(fields.insert(name.clone(), value.clone())),
            }
        }
        let known = |name: &String| stored.keys().any(|key| camel_case(key) == *name && !FIXED.contains(&&**key));
        if let Some(unknown) = changes.keys().find(|name| !known(name)) {
            let names: Vec<_> =
                stored.keys().filter(|key| !FIXED.contains(&key.as_str())).map(|key| camel_case(key)).collect();
            return Err(SettingsError(format!(
                "there is no setting '{unknown}' to change; there are {}",
                names.join(", ")
            )));
        }
        // Of these, nothing is a value.
        let absent = |name: &str| changes.get(&camel_case(name)).is_some_and(Value::is_null);
        for name in ["retention_days", "size_max", "quota"].into_iter().filter(|name| absent(name)) {
            fields.insert(name.to_owned(), Value::Null);
        }
        let settings = Self::from_json(&Value::from(fields).to_string())?;
        if settings.retention_days == Some(0) || settings.keep_releases == 0 || settings.nar_size_max == 0 {
            return Err(SettingsError("'retentionDays', 'keepReleases' and 'narSizeMax' are at least 1".to_owned()));
        }
        Ok(settings)
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
        // Such a structure has nothing that JSON has not.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(super) fn from_json(json: &str) -> Result<Self, SettingsError> {
        serde_json::from_str(json).map_err(|error| SettingsError(error.to_string()))
    }
}

/// The store directory is that of all paths, and the public keys are those of the server's secret ones.
const FIXED: [&str; 4] = ["store_dir", "public_keys", "managed", "deleted"];

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| match word.split_at_checked(1) {
        Some((initial, rest)) => text + &initial.to_ascii_uppercase() + rest,
        None => text,
    })
}

/// The store directory, stored as its text.
mod store_dir {
    use narval_nix::StoreDir;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(dir: &StoreDir, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(dir)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(stored: D) -> Result<StoreDir, D::Error> {
        String::deserialize(stored)?.parse().map_err(D::Error::custom)
    }
}

/// Keys, stored as their texts.
mod keys {
    use narval_nix::PublicKey;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(keys: &[PublicKey], out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(keys.iter().map(ToString::to_string))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(stored: D) -> Result<Vec<PublicKey>, D::Error> {
        let texts = Vec::<String>::deserialize(stored)?;
        texts.iter().map(|key| key.parse().map_err(D::Error::custom)).collect()
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
    fn changes_by_name() {
        let changes = |json: &str| serde_json::from_str::<Map<String, Value>>(json).unwrap();
        let before = CacheSettings { quota: Some(5), priority: 30, ..CacheSettings::default() };
        let after = before
            .changed(&changes(r#"{"quota": null, "retentionDays": 7, "public": false, "priority": null}"#))
            .unwrap();
        assert_eq!((after.quota, after.retention_days, after.public, after.priority), (None, Some(7), false, 40));
        assert_eq!(before.changed(&Map::new()), Ok(before.clone()));
        for wrong in [
            r#"{"publicKeys": []}"#,
            r#"{"storeDir": "/x"}"#,
            r#"{"retention_days": 7}"#,
            r#"{"managed": true}"#,
            r#"{"retentionDays": 0}"#,
            r#"{"retentionDays": -1}"#,
            r#"{"public": 1}"#,
            r#"{"trustedKeys": ["x"]}"#,
        ] {
            assert!(before.changed(&changes(wrong)).is_err(), "{wrong}");
        }
        let value = before.to_value();
        assert_eq!((value["retentionDays"].as_u64(), value["narSizeMax"].as_u64()), (Some(90), Some(64 << 30)));
    }

    #[test]
    fn a_short_retention_is_warned_of() {
        let days = |days| CacheSettings { retention_days: Some(days), ..CacheSettings::default() };
        assert!(days(29).warning().unwrap().contains("--refresh"));
        assert_eq!((days(30).warning(), CacheSettings::default().warning()), (None, None));
    }
}
