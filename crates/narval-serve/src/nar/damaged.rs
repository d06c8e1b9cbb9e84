//! Store paths whose files do not match the database. They are answered 404 until their files change.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use narval_nix::{HashPart, NarHash};
use quick_cache::sync::Cache;

use crate::metrics::Metrics;

/// The maximum number of remembered damaged paths; the damage of an evicted one is detected again.
const PATHS_MAX: usize = 10_000;

/// Why a damaged path is not served.
pub(crate) const NOT_AS_REGISTERED: &str = "its contents do not match the NAR hash in the database";

/// See the module's description.
pub(crate) struct DamagedPaths {
    paths: Cache<HashPart, (NarHash, RootState)>,
    forget: Box<dyn Fn(&HashPart) + Send + Sync>,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for DamagedPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DamagedPaths({})", self.paths.len())
    }
}

/// The inode at the root of the path. Repairing a path replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RootState {
    inode: u64,
    changed: (i64, i64),
}

impl RootState {
    fn of(real_path: &Path) -> Option<Self> {
        let metadata = std::fs::symlink_metadata(real_path).ok()?;
        Some(Self { inode: metadata.ino(), changed: (metadata.ctime(), metadata.ctime_nsec()) })
    }
}

impl DamagedPaths {
    /// `forget` is called for each path that turns out to be damaged, to drop everything cached for it.
    pub(crate) fn new(forget: impl Fn(&HashPart) + Send + Sync + 'static, metrics: Arc<Metrics>) -> Self {
        Self { paths: Cache::new(PATHS_MAX), forget: Box::new(forget), metrics }
    }

    /// Records a damaged path. Several threads may find the damage at the same time: it counts once.
    pub(crate) fn add(&self, hash_part: HashPart, nar_hash: &NarHash, real_path: &Path) {
        if !self.has(hash_part, nar_hash, real_path) {
            self.metrics.corrupt_paths.inc();
        }
        if let Some(state) = RootState::of(real_path) {
            self.paths.insert(hash_part, (*nar_hash, state));
        }
        (self.forget)(&hash_part);
    }

    /// Whether a path was recorded as damaged and has not changed since.
    pub(crate) fn has(&self, hash_part: HashPart, nar_hash: &NarHash, real_path: &Path) -> bool {
        let Some((of, state)) = self.paths.get(&hash_part) else { return false };
        of == *nar_hash && Some(state) == RootState::of(real_path)
    }
}
