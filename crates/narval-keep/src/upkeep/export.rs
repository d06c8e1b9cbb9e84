//! What is in no file but the index: settings, tokens (as hashes), pins, releases, machines and keys, saved and taken back.

use std::cell::RefCell;
use std::io::{self, Write};

use serde::ser::{Error as _, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};

use crate::access::grant::CachePatterns;
use crate::data::Data;
use crate::error::DataError;
use crate::index::{Index, IndexError};
use crate::name::CacheName;
use crate::records::machines::{MACHINES_MAX, Machine, MachineCursor};
use crate::records::paths::CacheId;
use crate::records::pins::Pin;
use crate::records::releases::{Listed, PAGE, ReleaseCursor, ReleaseRecord};
use crate::records::tokens::{SignKeyRecord, TokenRecord};
use crate::settings::CacheSettings;

/// The form of what is written.
const VERSION: u32 = 1;

/// All of it. `R`: releases, which are read a page at a time while they are written.
#[derive(Serialize, Deserialize)]
struct Saved<R> {
    version: u32,
    caches: Vec<SavedCache<R>>,
    tokens: Vec<TokenRecord>,
}

#[derive(Serialize, Deserialize)]
struct SavedCache<R> {
    name: String,
    settings: serde_json::Value,
    pins: Vec<Pin>,
    /// The id that its releases name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    releases: Option<R>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    machines: Vec<Machine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<SignKeyRecord>,
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
    /// Writes what the files do not have, as JSON: settings, tokens, pins and releases. Of tokens there are hashes only; they are no secrets, and
    /// still say who may write. Of releases, one page at a time is in memory.
    ///
    /// # Errors
    /// If the index cannot be read, or `out` fails.
    pub fn export(&self, out: &mut dyn Write) -> Result<(), DataError> {
        self.save(false, out)
    }

    /// The same, with the keys that caches sign with if they are wanted.
    pub(super) fn save(&self, with_keys: bool, out: &mut dyn Write) -> Result<(), DataError> {
        let (index, failed) = (&*self.shared().index, RefCell::new(None));
        let saved = self.saved(None, with_keys, |cache| Some(Releases { index, cache, failed: &failed }))?;
        let written = serde_json::to_writer_pretty(&mut *out, &saved);
        match (failed.into_inner(), written) {
            (Some(error), _) => Err(error.into()),
            (None, Err(error)) => Err(crate::error::io_error("export", self.path(), io::Error::from(error))),
            (None, Ok(())) => Ok(()),
        }
    }

    /// The same into another place, as [`Data::import`] takes it; of one cache only, with the tokens that are for it.
    pub(super) fn export_to(&self, to: &Self, only: Option<&CacheName>) -> Result<Imported, DataError> {
        // Without releases, which go a page at a time.
        let imported = to.take(self.saved::<Vec<ReleaseRecord>>(only, true, |_| None)?)?;
        for from in self.caches()?.into_iter().filter(|cache| only.is_none_or(|only| cache.name() == only)) {
            let (Some(cache), Some(id)) = (to.cache(from.name())?, self.shared().index.id_of_releases(from.id())?)
            else {
                continue;
            };
            pages(&*self.shared().index, from.id(), |page| {
                to.shared().index.restore_releases(cache.id(), id.clone(), page)
            })?;
        }
        Ok(imported)
    }

    fn saved<R>(
        &self,
        only: Option<&CacheName>,
        with_keys: bool,
        releases: impl Fn(CacheId) -> Option<R>,
    ) -> Result<Saved<R>, DataError> {
        let index = &self.shared().index;
        let mut tokens = index.tokens()?;
        if let Some(only) = only {
            let is_for = |caches: &str| {
                CachePatterns::new(&caches.split(' ').collect::<Vec<_>>()).is_ok_and(|caches| caches.matches(only))
            };
            tokens.retain(|token| is_for(&token.caches));
        }
        let mut saved = Saved { version: VERSION, caches: Vec::new(), tokens };
        for record in index.caches()?.into_iter().filter(|record| only.is_none_or(|only| record.name == *only)) {
            let mut pins = index.pins(record.id)?;
            // The oldest first, as they are made again.
            pins.reverse();
            // Settings are JSON.
            let settings = serde_json::from_str(&record.settings).unwrap_or_default();
            let (id, releases) = (index.id_of_releases(record.id)?, releases(record.id));
            let machines = index.machines(record.id, None, u32::try_from(MACHINES_MAX).unwrap_or(u32::MAX))?;
            let keys = if with_keys { index.sign_keys_of(record.id)? } else { Vec::new() };
            let name = record.name.to_string();
            saved.caches.push(SavedCache { name, settings, pins, id, releases, machines, keys });
        }
        Ok(saved)
    }

    /// Restores what [`Data::export`] has saved. Existing tokens are not changed, and pins of absent paths are skipped.
    ///
    /// # Errors
    /// If the text is no such export, or the index cannot be written.
    pub fn import(&self, text: &str) -> Result<Imported, DataError> {
        self.take(self.parsed(text)?)
    }

    /// The names and settings of the caches of an export.
    pub(super) fn caches_of_export(&self, text: &str) -> Result<Vec<(CacheName, CacheSettings)>, DataError> {
        let invalid = |reason: String| invalid(self, reason);
        let parsed = |saved: SavedCache<Vec<ReleaseRecord>>| {
            let name = CacheName::parse(&saved.name).map_err(|error| invalid(error.to_string()))?;
            let settings = CacheSettings::from_json(&saved.settings.to_string());
            Ok((name, settings.map_err(|error| invalid(error.to_string()))?))
        };
        self.parsed(text)?.caches.into_iter().map(parsed).collect()
    }

    fn parsed(&self, text: &str) -> Result<Saved<Vec<ReleaseRecord>>, DataError> {
        let invalid = |reason: String| invalid(self, reason);
        let saved: Saved<Vec<ReleaseRecord>> =
            serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if saved.version != VERSION {
            return Err(invalid(format!(
                "it has version {}, but this narval supports version {VERSION}",
                saved.version
            )));
        }
        Ok(saved)
    }

    fn take(&self, saved: Saved<Vec<ReleaseRecord>>) -> Result<Imported, DataError> {
        let invalid = |reason: String| invalid(self, reason);
        let index = &self.shared().index;
        let mut imported = Imported::default();
        for saved in saved.caches {
            let name = CacheName::parse(&saved.name).map_err(|error| invalid(error.to_string()))?;
            let settings =
                CacheSettings::from_json(&saved.settings.to_string()).map_err(|error| invalid(error.to_string()))?;
            let cache = self.create_cache(&name, &settings)?;
            cache.set_settings(&settings)?;
            if let Some(id) = saved.id {
                index.restore_releases(cache.id(), id, saved.releases.unwrap_or_default())?;
            }
            for key in saved.keys {
                index.restore_sign_key(cache.id(), key)?;
            }
            for Machine { name, seen, token, report } in saved.machines {
                let key = MachineCursor { name, release: report.release.clone() };
                let report = serde_json::to_string(&report).map_err(|error| invalid(error.to_string()))?;
                index.note_machine(cache.id(), key, (token, report), seen)?;
            }
            for pin in saved.pins {
                let part = pin.hash_part().ok_or_else(|| invalid(format!("'{}' is not a store path", pin.path)))?;
                if index.path(cache.id(), &part)?.is_some() {
                    index.pin(cache.id(), pin, false)?;
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

fn invalid(data: &Data, reason: String) -> DataError {
    crate::error::io_error("import into", data.path(), io::Error::new(io::ErrorKind::InvalidData, reason))
}

/// The releases of a cache, which are written without being in memory together.
struct Releases<'a> {
    index: &'a dyn Index,
    cache: CacheId,
    failed: &'a RefCell<Option<IndexError>>,
}

impl Serialize for Releases<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mut list, mut written) = (serializer.serialize_seq(None)?, Ok(()));
        let read = pages(self.index, self.cache, |page| {
            for record in page {
                written = std::mem::replace(&mut written, Ok(())).and_then(|()| list.serialize_element(&record));
            }
            Ok(())
        });
        if let Err(error) = read {
            let reported = S::Error::custom(&error);
            self.failed.replace(Some(error));
            return Err(reported);
        }
        written?;
        list.end()
    }
}

/// Passes on all releases of a cache, page by page.
fn pages(
    index: &dyn Index,
    cache: CacheId,
    mut take: impl FnMut(Vec<ReleaseRecord>) -> Result<(), IndexError>,
) -> Result<(), IndexError> {
    let (mut after, mut is_more) = (None, true);
    while is_more {
        let page;
        (page, is_more) = index.releases(cache, Listed::All, after.as_ref(), PAGE)?;
        after = page.last().and_then(ReleaseCursor::of);
        is_more &= after.is_some();
        take(page)?;
    }
    Ok(())
}
