//! The options of the NAR cache, shared by `serve` and `warm`.

use std::path::PathBuf;

use narval_serve::NarCacheConfig;

use super::user_folder;
use crate::config::NarCacheSection;
use crate::values::size::parse_size;

/// The default size of the folder, in bytes.
const SIZE_DEFAULT: u64 = 10 << 30;
/// The default level.
const LEVEL_DEFAULT: i32 = 1;

/// The cache of compressed NARs.
#[derive(Debug, clap::Args)]
pub struct NarCacheArgs {
    /// Folder for compressed NARs [default: $XDG_CACHE_HOME/narval/nars, or ~/.cache/narval/nars]
    #[arg(long, value_name = "DIR")]
    nar_cache: Option<PathBuf>,
    /// Maximum size of that folder; the least recently used NARs are removed first [default: 10G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    nar_cache_size: Option<u64>,
    /// zstd compression level, 1 (fast) to 19 (small) [default: 1]
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(i32).range(1..=19))]
    nar_cache_level: Option<i32>,
    /// Send NARs uncompressed, and store none
    #[arg(long, conflicts_with = "nar_cache")]
    no_nar_cache: bool,
}

impl NarCacheArgs {
    /// The configuration. Without a folder (a service without a home directory) there is no cache.
    pub fn config(&self) -> Option<NarCacheConfig> {
        self.config_over(&NarCacheSection::default())
    }

    /// The configuration, from the options or else from a configuration file.
    pub fn config_over(&self, file: &NarCacheSection) -> Option<NarCacheConfig> {
        let enabled = file.enabled.unwrap_or(true) || self.nar_cache.is_some();
        if self.no_nar_cache || !enabled {
            return None;
        }
        let folder = self.nar_cache.clone().or_else(|| file.folder.clone()).or_else(usable_default)?;
        let bytes_max = self.nar_cache_size.or(file.size).unwrap_or(SIZE_DEFAULT);
        let level = self.nar_cache_level.or(file.level).unwrap_or(LEVEL_DEFAULT);
        Some(NarCacheConfig { folder, bytes_max, level, deltas: file.deltas.unwrap_or_default().into() })
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
