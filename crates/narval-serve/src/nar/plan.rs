//! PathNar NARs: the offset of every file in the NAR of a store path. Plans are cached.
//!
//! As with narinfos, the path info is read again whenever the database has changed. A plan stays valid as long as the NAR hash is the
//! same and the inode at the path's root is the one that was path_nar ([`NarStream::open`] checks that).

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use narval_nix::{HashPart, NarHash, PathInfo, StorePath};
use narval_store::{NarIoError, NarLayout, NarStream, ReadAhead, Stamp, Store};
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, Weighter};

use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::damaged::{DamagedPaths, NOT_AS_REGISTERED};

/// Memory for plans in bytes: 32 bytes and the name per file, so about 500,000 files.
const LAYOUTS_BYTES_MAX: u64 = 24 * 1024 * 1024;

/// The expected number of plans; the cache grows beyond that.
const LAYOUTS: usize = 4096;

/// A store path and its NAR.
#[derive(Debug)]
pub(crate) struct PathNar {
    /// The store path.
    pub(crate) path: StorePath,
    /// The location of its files.
    pub(crate) real_path: PathBuf,
    /// The NAR hash in the database.
    pub(crate) nar_hash: NarHash,
    /// The plan of its NAR; the size is the one in the database.
    pub(crate) layout: Arc<NarLayout>,
    /// How often the whole NAR was sent from the files.
    pub(crate) times_sent: AtomicU32,
}

impl PathNar {
    pub(crate) fn new(path: StorePath, real_path: PathBuf, nar_hash: NarHash, layout: Arc<NarLayout>) -> Self {
        Self { path, real_path, nar_hash, layout, times_sent: AtomicU32::new(0) }
    }

    /// The bytes of a range of the NAR.
    pub(crate) fn stream(&self, range: Range<u64>, ahead: &Arc<ReadAhead>) -> Result<NarStream, NarIoError> {
        // Reading ahead only pays off if there is something after the first batch.
        let ahead = (range.end - range.start > narval_store::WHOLE_FILE_MIN).then(|| Arc::clone(ahead));
        NarStream::open(Arc::clone(&self.layout), &self.real_path, range, ahead)
    }
}

/// The cached plans.
#[derive(Debug)]
pub(crate) struct Plans {
    entries: Cache<HashPart, (Option<Stamp>, Arc<PathNar>), ByBytes>,
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<HashPart, (Option<Stamp>, Arc<PathNar>)> for ByBytes {
    fn weight(&self, _: &HashPart, (_, path_nar): &(Option<Stamp>, Arc<PathNar>)) -> u64 {
        300 + path_nar.layout.memory_bytes() as u64
    }
}

impl Plans {
    pub(crate) fn new() -> Self {
        // One shard: with several, each would only get a share of the bytes, and no plan could be larger than that.
        let options = OptionsBuilder::new()
            .estimated_items_capacity(LAYOUTS)
            .weight_capacity(LAYOUTS_BYTES_MAX)
            .shards(1)
            .build();
        let entries = match options {
            Ok(options) => Cache::with_options(options, ByBytes, Default::default(), Default::default()),
            // Impossible: both capacities are given.
            Err(_) => Cache::with_weighter(LAYOUTS, LAYOUTS_BYTES_MAX, ByBytes),
        };
        Self { entries }
    }

    /// Forgets the plan of a path that turned out to be damaged.
    pub(crate) fn forget(&self, hash_part: &HashPart) {
        self.entries.remove(hash_part);
    }
}

/// Plans the NARs of a store's valid paths.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) store: Arc<Store>,
    pub(crate) plans: Arc<Plans>,
    /// Reads small files ahead, for all NARs together.
    pub(crate) ahead: Arc<ReadAhead>,
    pub(crate) damaged: Arc<DamagedPaths>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Planner {
    /// The plan of the valid path with this hash part, and the open stream of its whole NAR.
    pub(crate) fn plan(&self, hash_part: HashPart) -> Result<(Arc<PathNar>, NarStream), ServeError> {
        // Before the database is read: cached entries can only be newer than their stamp.
        let stamp = self.store.stamp();
        let known = self.plans.entries.get(&hash_part);
        if let Some((of, path_nar)) = &known
            && of.is_some()
            && *of == stamp
            && let Ok(stream) = path_nar.stream(0..path_nar.layout.size_bytes(), &self.ahead)
        {
            self.metrics.layout_hits.inc();
            return Ok((Arc::clone(path_nar), stream));
        }
        let info = self.store.path_info_by_hash_part(&hash_part)?.ok_or(ServeError::NoPath)?;
        let same = |path_nar: &&Arc<PathNar>| path_nar.nar_hash == info.nar_hash && path_nar.path == info.path;
        let reused = known.as_ref().map(|(_, path_nar)| path_nar).filter(same).and_then(|path_nar| {
            let stream = path_nar.stream(0..path_nar.layout.size_bytes(), &self.ahead).ok()?;
            Some((Arc::clone(path_nar), stream))
        });
        let (path_nar, stream) = match reused {
            Some(reused) => {
                self.metrics.layout_hits.inc();
                reused
            }
            None => self.plan_anew(&info)?,
        };
        self.plans.entries.insert(hash_part, (stamp, Arc::clone(&path_nar)));
        // Another thread may have recorded the damage since it was looked for above; the plan would stay remembered.
        if self.damaged.has(hash_part, &path_nar.nar_hash, &path_nar.real_path) {
            self.plans.forget(&hash_part);
            return Err(not_as_registered(&path_nar.path));
        }
        Ok((path_nar, stream))
    }

    fn plan_anew(&self, info: &PathInfo) -> Result<(Arc<PathNar>, NarStream), ServeError> {
        self.metrics.layout_misses.inc();
        let real_path = self.store.real_path(&info.path);
        if self.damaged.has(info.path.hash_part(), &info.nar_hash, &real_path) {
            return Err(not_as_registered(&info.path));
        }
        let layout = NarLayout::scan(&real_path).map_err(|error| {
            if error.is_not_a_nar() {
                // Its narinfo would promise what is never served.
                self.damaged.add(info.path.hash_part(), &info.nar_hash, &real_path);
            }
            ServeError::of_files(&info.path, &error)
        })?;
        let size = layout.size_bytes();
        if size != info.nar_size {
            self.damaged.add(info.path.hash_part(), &info.nar_hash, &real_path);
            let reason = format!("its NAR has {size} bytes, the database says {}", info.nar_size);
            return Err(ServeError::damaged(&info.path, reason));
        }
        let path_nar = PathNar::new(info.path.clone(), real_path, info.nar_hash, layout.into());
        let stream = path_nar.stream(0..size, &self.ahead).map_err(|error| ServeError::of_files(&info.path, &error))?;
        Ok((Arc::new(path_nar), stream))
    }
}

fn not_as_registered(path: &StorePath) -> ServeError {
    ServeError::damaged(path, NOT_AS_REGISTERED)
}
