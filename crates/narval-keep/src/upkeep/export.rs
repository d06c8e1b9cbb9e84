//! What is in no file but the index: settings, tokens (as hashes), pins and releases, saved and taken back.

use narval_nix::HashPart;
use serde::{Deserialize, Serialize};

use crate::index::{PinRecord, ReleaseRecord, TokenRecord};
use crate::{CacheName, CacheSettings, Data, DataError};

/// The form of what is written.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    caches: Vec<SavedCache>,
    tokens: Vec<TokenRecord>,
}

#[derive(Serialize, Deserialize)]
struct SavedCache {
    name: String,
    settings: serde_json::Value,
    pins: Vec<SavedPin>,
    /// The id that its releases name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default)]
    releases: Vec<ReleaseRecord>,
}

#[derive(Serialize, Deserialize)]
struct SavedPin {
    name: String,
    path: String,
    created: u64,
    until: Option<u64>,
    keep: Option<u32>,
}

/// What was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Imported {
    /// Tokens that were not there.
    pub tokens: usize,
    /// Pins of existing paths.
    pub pins: usize,
}

impl Data {
    /// What the files do not have, as JSON: settings, tokens and pins. Of tokens there are hashes only; they are no secrets, and
    /// still say who may write.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn export(&self) -> Result<String, DataError> {
        let index = &self.shared().index;
        let mut saved = Saved { version: VERSION, caches: Vec::new(), tokens: index.tokens()? };
        for record in index.caches()? {
            let pin = |pin: PinRecord| SavedPin {
                name: pin.name,
                path: pin.path,
                created: pin.created,
                until: pin.until,
                keep: pin.keep,
            };
            let mut pins: Vec<SavedPin> = index.pins(record.id)?.into_iter().map(pin).collect();
            // The oldest first, as they are made again.
            pins.reverse();
            // Settings are JSON.
            let settings = serde_json::from_str(&record.settings).unwrap_or_default();
            let (id, releases) = index.all_releases(record.id)?;
            saved.caches.push(SavedCache { name: record.name.to_string(), settings, pins, id, releases });
        }
        // Such a structure has nothing that JSON has not.
        Ok(serde_json::to_string_pretty(&saved).unwrap_or_default())
    }

    /// Restores what [`Data::export`] has saved. Existing tokens are not changed, and pins of absent paths are skipped.
    ///
    /// # Errors
    /// If the text is no such export, or the index cannot be written.
    pub fn import(&self, text: &str) -> Result<Imported, DataError> {
        let invalid = |reason: String| {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidData, reason);
            crate::error::io_error("import into", self.path(), source)
        };
        let saved: Saved = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if saved.version != VERSION {
            return Err(invalid(format!(
                "it has version {}, but this narval supports version {VERSION}",
                saved.version
            )));
        }
        let index = &self.shared().index;
        let mut imported = Imported::default();
        for saved in saved.caches {
            let name = CacheName::parse(&saved.name).map_err(|error| invalid(error.to_string()))?;
            let settings =
                CacheSettings::from_json(&saved.settings.to_string()).map_err(|error| invalid(error.to_string()))?;
            let cache = self.create_cache(&name, &settings)?;
            cache.set_settings(&settings)?;
            if let Some(id) = saved.id {
                index.restore_releases(cache.id(), id, saved.releases)?;
            }
            for SavedPin { name, path, created, until, keep } in saved.pins {
                let part = path.get(..32).and_then(|part| part.parse::<HashPart>().ok());
                let hash_part = part.ok_or_else(|| invalid(format!("'{path}' is not a store path")))?;
                if index.path(cache.id(), &hash_part)?.is_some() {
                    index.pin(cache.id(), PinRecord { name, hash_part, path, created, until, keep }, false)?;
                    imported.pins += 1;
                }
            }
        }
        for token in saved.tokens {
            if index.token(&token.id)?.is_none() {
                index.add_token(token)?;
                imported.tokens += 1;
            }
        }
        Ok(imported)
    }
}
