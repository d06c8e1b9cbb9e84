//! Planned NARs that are remembered: where every file lies in the NAR of a store path.
//!
//! As with narinfos, what the database says is taken anew whenever it changed; a plan outlives that as long as it is
//! of the same NAR, and the files at its root are the ones that were planned ([`NarStream::open`] looks).

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use narval_nix::{HashPart, NarHash, PathInfo, StorePath};
use narval_store::{NarIoError, NarLayout, NarStream, ReadAhead};
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, Weighter};

use crate::error::ServeError;
use crate::nar::damaged::NOT_AS_REGISTERED;
use crate::narinfo::memo::Generation;
use crate::service::Shared;

/// The memory that plans may take, in bytes: 32 and its name for each file, so about 500,000 files.
const LAYOUTS_BYTES_MAX: u64 = 24 * 1024 * 1024;

/// Plans that are expected; there may be more.
const LAYOUTS: usize = 4096;

/// A store path and its NAR.
#[derive(Debug)]
pub(crate) struct Planned {
    /// The store path.
    pub(crate) path: StorePath,
    /// Its files.
    pub(crate) real_path: PathBuf,
    /// The hash that the database has.
    pub(crate) nar_hash: NarHash,
    /// Its NAR; of the size that the database has.
    pub(crate) layout: Arc<NarLayout>,
    /// How often it was sent whole from its files.
    pub(crate) times_sent: AtomicU32,
}

impl Planned {
    pub(crate) fn new(path: StorePath, real_path: PathBuf, nar_hash: NarHash, layout: Arc<NarLayout>) -> Self {
        Self { path, real_path, nar_hash, layout, times_sent: AtomicU32::new(0) }
    }

    /// The bytes of a range of the NAR.
    pub(crate) fn stream(&self, range: Range<u64>, ahead: &Arc<ReadAhead>) -> Result<NarStream, NarIoError> {
        // Reading ahead pays only where there is something behind the first batch.
        let ahead = (range.end - range.start > narval_store::WHOLE_FILE_MIN).then(|| Arc::clone(ahead));
        NarStream::open(Arc::clone(&self.layout), &self.real_path, range, ahead)
    }
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Layouts {
    entries: Cache<HashPart, (Option<Generation>, Arc<Planned>), ByBytes>,
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<HashPart, (Option<Generation>, Arc<Planned>)> for ByBytes {
    fn weight(&self, _: &HashPart, (_, planned): &(Option<Generation>, Arc<Planned>)) -> u64 {
        300 + planned.layout.memory_bytes() as u64
    }
}

impl Layouts {
    pub(crate) fn new() -> Self {
        // One shard: each of several would take only its part of the bytes, and no plan larger than that.
        let options = OptionsBuilder::new()
            .estimated_items_capacity(LAYOUTS)
            .weight_capacity(LAYOUTS_BYTES_MAX)
            .shards(1)
            .build();
        let entries = match options {
            Ok(options) => Cache::with_options(options, ByBytes, Default::default(), Default::default()),
            // Never: both capacities are given.
            Err(_) => Cache::with_weighter(LAYOUTS, LAYOUTS_BYTES_MAX, ByBytes),
        };
        Self { entries }
    }

    /// Forgets a plan: its path turned out to be corrupt.
    pub(crate) fn forget(&self, hash_part: &HashPart) {
        self.entries.remove(hash_part);
    }
}

impl Shared {
    /// The plan of the valid path with this hash part, and the stream of its whole NAR, open.
    pub(crate) fn plan(&self, hash_part: HashPart) -> Result<(Arc<Planned>, NarStream), ServeError> {
        // Before the store is read: see the memo's description.
        let generation = self.store.stamp();
        let known = self.layouts.entries.get(&hash_part);
        if let Some((of, planned)) = &known
            && of.is_some()
            && *of == generation
            && let Ok(stream) = planned.stream(0..planned.layout.size_bytes(), &self.ahead)
        {
            self.metrics.layout_hits.inc();
            return Ok((Arc::clone(planned), stream));
        }
        let info = self.store.path_info_by_hash_part(&hash_part)?.ok_or(ServeError::NoPath)?;
        let same = |planned: &&Arc<Planned>| planned.nar_hash == info.nar_hash && planned.path == info.path;
        let reused = known.as_ref().map(|(_, planned)| planned).filter(same).and_then(|planned| {
            let stream = planned.stream(0..planned.layout.size_bytes(), &self.ahead).ok()?;
            Some((Arc::clone(planned), stream))
        });
        let (planned, stream) = match reused {
            Some(reused) => {
                self.metrics.layout_hits.inc();
                reused
            }
            None => self.plan_anew(&info)?,
        };
        self.layouts.entries.insert(hash_part, (generation, Arc::clone(&planned)));
        // Found out by another one since it was looked at above: it would be remembered for good.
        if self.corrupt.has(hash_part, &planned.nar_hash, &planned.real_path) {
            self.layouts.forget(&hash_part);
            return Err(not_as_registered(&planned.path));
        }
        Ok((planned, stream))
    }

    fn plan_anew(&self, info: &PathInfo) -> Result<(Arc<Planned>, NarStream), ServeError> {
        self.metrics.layout_misses.inc();
        let real_path = self.store.real_path(&info.path);
        if self.corrupt.has(info.path.hash_part(), &info.nar_hash, &real_path) {
            return Err(not_as_registered(&info.path));
        }
        let damaged = |reason: String| ServeError::Damaged { path: info.path.base_name().to_owned(), reason };
        let layout = NarLayout::plan(&real_path).map_err(|error| ServeError::of_files(&info.path, &error))?;
        let size = layout.size_bytes();
        if size != info.nar_size {
            self.corrupt.add(info.path.hash_part(), &info.nar_hash, &real_path);
            return Err(damaged(format!("its NAR has {size} bytes, the database says {}", info.nar_size)));
        }
        let planned = Planned::new(info.path.clone(), real_path, info.nar_hash, layout.into());
        let stream = planned.stream(0..size, &self.ahead).map_err(|error| ServeError::of_files(&info.path, &error))?;
        Ok((Arc::new(planned), stream))
    }
}

fn not_as_registered(path: &StorePath) -> ServeError {
    ServeError::Damaged { path: path.base_name().to_owned(), reason: NOT_AS_REGISTERED.to_owned() }
}
