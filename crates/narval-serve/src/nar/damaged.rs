//! Paths whose files turned out not to be what the database says. They are not there for anybody until they change.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use narval_nix::{HashPart, NarHash};
use quick_cache::sync::Cache;

use crate::metrics::Metrics;
use crate::nar::plan::Layouts;
use crate::narinfo::memo::Memo;

/// Paths that are remembered at most; one that is forgotten is found out again.
const PATHS_MAX: usize = 10_000;

/// What is wrong with them.
pub(crate) const NOT_AS_REGISTERED: &str = "its contents are not what the database says";

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Corrupt {
    paths: Cache<HashPart, (NarHash, RootState)>,
    memo: Arc<Memo>,
    layouts: Arc<Layouts>,
    metrics: Arc<Metrics>,
}

/// What was at the root of the path: repairing it puts another one there.
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

impl Corrupt {
    /// `memo` and `layouts` forget what turns out to be corrupt.
    pub(crate) fn new(memo: Arc<Memo>, layouts: Arc<Layouts>, metrics: Arc<Metrics>) -> Self {
        Self { paths: Cache::new(PATHS_MAX), memo, layouts, metrics }
    }

    /// Takes down a path. Several may find it out at the same time: it counts once.
    pub(crate) fn add(&self, hash_part: HashPart, nar_hash: &NarHash, real_path: &Path) {
        if !self.has(hash_part, nar_hash, real_path) {
            self.metrics.corrupt_paths.inc();
        }
        if let Some(state) = RootState::of(real_path) {
            self.paths.insert(hash_part, (*nar_hash, state));
        }
        self.memo.forget(&hash_part);
        self.layouts.forget(&hash_part);
    }

    /// Whether a path was taken down, and is still what it was then.
    pub(crate) fn has(&self, hash_part: HashPart, nar_hash: &NarHash, real_path: &Path) -> bool {
        let Some((of, state)) = self.paths.get(&hash_part) else { return false };
        of == *nar_hash && Some(state) == RootState::of(real_path)
    }
}
