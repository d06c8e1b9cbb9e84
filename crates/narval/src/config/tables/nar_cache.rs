//! `[nar-cache]`: the compressed NARs of the live store.

use std::path::PathBuf;

use narval_serve::{DeltaMode, NarCacheConfig};

use crate::config::error::ConfigError;
use crate::config::field::{Nested, table};
use crate::config::key::At;
use crate::config::kinds::{boolean, choice, integer, path, size};
use crate::values::folders::user_folder;

/// Whether clients get a NAR as the difference to one that they have.
const DELTAS: [(&str, &str, DeltaMode); 3] = [
    ("off", "Never", DeltaMode::Off),
    ("kept", "Only differences that `narval warm --deltas-from` has made", DeltaMode::Kept),
    ("on", "Also those that are made on request", DeltaMode::On),
];

table! {
    /// Compressed NARs of the live store.
    NarCache {
        /// Where they are.
        store: NarFolder = Nested::Here(None),
        /// Whether clients that have another version of a path get the difference; made differences are kept with the compressed NARs
        /// (docs/deltas.md)
        deltas: At<DeltaMode> = choice(&DELTAS).or("on").option("deltas", "WHEN"),
    }
}

table! {
    /// The folder of compressed NARs.
    NarFolder {
        /// Folder for compressed NARs
        folder: Option<At<PathBuf>> = path().or_else("$XDG_CACHE_HOME/narval/nars, or ~/.cache/narval/nars").option("nar-cache", "DIR").nix("cacheFolder"),
        /// Maximum size of that folder; the least recently used NARs are removed first
        size: u64 = size().or("10G").option("nar-cache-size", "SIZE"),
        /// zstd compression level, 1 (fast) to 19 (small)
        level: i32 = integer(1..=19).or("1").option("nar-cache-level", "LEVEL"),
        /// Whether compressed NARs are made and kept
        enabled: bool = boolean().or("true").flag("no-nar-cache", "false", |arg| arg.help("Send NARs uncompressed, and store none").conflicts_with("nar-cache")),
    }
}

table! {
    /// The settings of `narval warm`.
    Warming {
        /// Where compressed NARs are.
        nar_cache: NarFolder = Nested::Table(None),
    }
}

impl NarCache {
    /// The configuration; `None` if there is no cache.
    ///
    /// # Errors
    /// Deltas are asked for, and there is no folder for them.
    pub fn config(&self) -> Result<Option<NarCacheConfig>, ConfigError> {
        let config = self.store.config(self.deltas.value);
        if config.is_none() && self.deltas.origin.is_option() && self.deltas.value != DeltaMode::Off {
            return Err(self
                .deltas
                .origin
                .error("nar-cache.deltas", "needs a folder for compressed NARs: give --nar-cache DIR"));
        }
        Ok(config)
    }
}

impl NarFolder {
    /// The configuration. Without a folder (a service without a home directory) there is no cache.
    pub fn config(&self, deltas: DeltaMode) -> Option<NarCacheConfig> {
        // A folder on the command line is meant to be used.
        if !self.enabled && !self.folder.as_ref().is_some_and(|folder| folder.origin.is_option()) {
            return None;
        }
        let folder = self.folder.as_ref().map(|at| at.value.clone()).or_else(usable_default)?;
        Some(NarCacheConfig { folder, bytes_max: self.size, level: self.level, deltas })
    }
}

/// The default folder, if it is writable; a server continues without it, since it was not requested by name.
fn usable_default() -> Option<PathBuf> {
    let Some(folder) = default_folder() else {
        tracing::warn!("compressed NARs are not stored: CACHE_DIRECTORY, XDG_CACHE_HOME and HOME are not set");
        return None;
    };
    let usable = std::fs::create_dir_all(&folder).and_then(|()| tempfile::tempfile_in(&folder));
    match usable {
        Ok(_) => Some(folder),
        Err(error) => {
            tracing::warn!("compressed NARs are not stored: cannot write to '{}': {error}", folder.display());
            None
        }
    }
}

/// systemd provides services with a folder if they have `CacheDirectory=`.
fn default_folder() -> Option<PathBuf> {
    let of_service = std::env::var_os("CACHE_DIRECTORY").map(PathBuf::from);
    if let Some(folder) = of_service.filter(|path| path.is_absolute()) {
        return Some(folder.join("nars"));
    }
    Some(user_folder("XDG_CACHE_HOME", ".cache")?.join("narval/nars"))
}
