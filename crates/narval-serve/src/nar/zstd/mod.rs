//! Compressed NARs on disk: compressed while the first client is served, and sent from the file from then on.
//!
//! Each NAR is compressed once at a time, however many clients request it (an [`InFlight`] compression). It has no thread: the request
//! that needs the next piece makes it, for all. A slow client delays nobody, and when all clients have disconnected, the compression
//! ends. The NAR hash is verified before the last piece is sent to anybody.

mod folder;
mod in_flight;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use narval_files::{Background, FileAt};
use narval_nix::{NarHash, Sha256};
use narval_store::{ReadAhead, hash_of};
use parking_lot::Mutex;
use quick_cache::sync::Cache;

use crate::metrics::Metrics;
use crate::nar::damaged::DamagedPaths;
use crate::nar::delta_mode::DeltaMode;
use crate::nar::plan::PathNar;
use folder::encoding;
pub(crate) use folder::{Folder, Stored};
use in_flight::FillTarget;
pub(crate) use in_flight::{InFlight, InFlightSource, Outcome};

/// The most files whose names are remembered, so that finding them needs no directory scan.
const NAMES_MAX: usize = 16 * 1024;
/// How long a verified file is trusted: disks and cables flip bits. It is verified before it is sent for the first time, and again
/// when it is sent after this time.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Larger files are verified by a thread while they are sent: it may take long.
const CHECK_FIRST_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The most threads that sync files: they only wait, and a journal commits several files at once.
const THREADS_MAX: usize = 4;
/// The most files that wait for a thread; each is open.
const WAITING_MAX: usize = 64;

/// Where compressed NARs are kept, and their total size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NarCacheConfig {
    /// The folder; created if it does not exist.
    pub folder: PathBuf,
    /// The maximum size of the folder, in bytes. Files that are being written may exceed it for a moment.
    pub bytes_max: u64,
    /// The zstd level, 1 to 19. Files of another level are evicted over time.
    pub level: i32,
    /// Whether deltas of NARs are sent; they are kept in the same folder.
    pub deltas: DeltaMode,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct NarCache {
    folder: Arc<Folder>,
    writer: Arc<Background>,
    /// Verifies large files.
    checking: Arc<Background>,
    level: i32,
    names: Arc<Cache<NarHash, Known>>,
    in_flight: Mutex<HashMap<NarHash, Weak<InFlight>>>,
    damaged: Arc<DamagedPaths>,
    metrics: Arc<Metrics>,
}

/// A file whose name is remembered.
#[derive(Clone, Debug)]
struct Known {
    stored: Stored,
    /// When verification of its contents started.
    checked_at: Option<Instant>,
}

/// A compressed NAR, complete or in flight.
pub(crate) enum CompressedNar {
    /// Complete.
    File(Stored, Arc<File>),
    /// Being compressed.
    InFlight(Arc<InFlight>),
}

impl NarCache {
    /// Opens the folder.
    ///
    /// # Errors
    /// It cannot be created or written to.
    pub(crate) fn open(config: &NarCacheConfig, damaged: Arc<DamagedPaths>, metrics: Arc<Metrics>) -> io::Result<Self> {
        Ok(Self {
            folder: Arc::new(Folder::open(&config.folder, config.level, config.bytes_max)?),
            writer: Background::new("nar-cache", THREADS_MAX, WAITING_MAX),
            checking: Background::new("nar-cache", THREADS_MAX, WAITING_MAX),
            level: config.level,
            names: Arc::new(Cache::new(NAMES_MAX)),
            in_flight: Mutex::default(),
            damaged,
            metrics,
        })
    }

    /// Bytes of all files, and how many there may be.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        self.folder.bytes()
    }

    /// The folder.
    pub(crate) fn root(&self) -> &Path {
        self.folder.root()
    }

    /// The compressed NAR with this hash, verified, to be sent.
    pub(crate) fn find(&self, nar_hash: &NarHash) -> Option<(Stored, Arc<File>)> {
        let (Known { stored, checked_at }, file) = self.look_up(nar_hash)?;
        if checked_at.is_some_and(|at| at.elapsed() < CHECK_AGAIN_AFTER) {
            return Some((stored, file));
        }
        if stored.file_size <= CHECK_FIRST_BYTES_MAX {
            if !is_as_named(&file, &stored) {
                self.discard(nar_hash, &stored);
                return None;
            }
        } else {
            self.check_later(*nar_hash, &stored, &file);
        }
        self.names.insert(*nar_hash, Known { stored: stored.clone(), checked_at: Some(Instant::now()) });
        Some((stored, file))
    }

    /// The name of the compressed NAR with this hash; its contents are not verified.
    pub(crate) fn find_name(&self, nar_hash: &NarHash) -> Option<Stored> {
        Some(self.look_up(nar_hash)?.0.stored)
    }

    fn look_up(&self, nar_hash: &NarHash) -> Option<(Known, Arc<File>)> {
        if let Some(known) = self.names.get(nar_hash)
            && let Some(file) = self.folder.open_file(&known.stored)
        {
            return Some((known, Arc::new(file)));
        }
        let stored = self.folder.find(nar_hash)?;
        let file = self.folder.open_file(&stored)?;
        let known = Known { stored, checked_at: None };
        self.names.insert(*nar_hash, known.clone());
        Some((known, Arc::new(file)))
    }

    fn check_later(&self, nar_hash: NarHash, stored: &Stored, file: &Arc<File>) {
        let (stored, file, folder) = (stored.clone(), Arc::clone(file), Arc::clone(&self.folder));
        let (names, metrics) = (Arc::clone(&self.names), Arc::clone(&self.metrics));
        self.checking.run(Box::new(move || {
            if !is_as_named(&file, &stored) {
                metrics.nar_cache_damaged.inc();
                folder.discard(&stored);
                names.remove(&nar_hash);
            }
        }));
    }

    fn discard(&self, nar_hash: &NarHash, stored: &Stored) {
        self.metrics.nar_cache_damaged.inc();
        self.folder.discard(stored);
        self.names.remove(nar_hash);
    }

    /// The entity tag of the NAR with this hash if this process compressed it.
    pub(crate) fn etag(&self, nar_hash: &str) -> String {
        etag(nar_hash, &encoding(self.level))
    }

    /// Whether this process knows of a compressed NAR with this hash. Another process may have made one.
    pub(crate) fn knows(&self, nar_hash: &NarHash) -> bool {
        self.names.get(nar_hash).is_some()
    }

    /// The compressed NAR with this hash, if it is still this file and can be opened without I/O: the shard must not wait.
    pub(crate) fn find_inline(&self, nar_hash: &NarHash, file_hash: &Sha256) -> Option<File> {
        let known = self.names.get(nar_hash).filter(|known| known.stored.file_hash == *file_hash)?;
        known.checked_at.filter(|at| at.elapsed() < CHECK_AGAIN_AFTER)?;
        self.folder.open_cached(&known.stored)
    }

    /// The compressed NAR of a path: from the folder, or an in-flight compression. `stored` is called when the file is in the folder.
    pub(crate) fn get(
        &self,
        path_nar: &Arc<PathNar>,
        ahead: &Arc<ReadAhead>,
        stored: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<CompressedNar> {
        if let Some((stored, file)) = self.find(&path_nar.nar_hash) {
            return Ok(CompressedNar::File(stored, file));
        }
        let mut in_flight = self.in_flight.lock();
        let flying = in_flight.get(&path_nar.nar_hash).and_then(Weak::upgrade);
        if let Some(flight) = flying.filter(|flight| !flight.has_failed()) {
            self.metrics.single_flight_waits.inc();
            return Ok(CompressedNar::InFlight(flight));
        }
        // Finished between the look above and the lock.
        if let Some((stored, file)) = self.find(&path_nar.nar_hash) {
            return Ok(CompressedNar::File(stored, file));
        }
        self.metrics.nar_cache_misses.inc();
        let place = if self.folder.is_paused() { None } else { self.begin() };
        let has_place = place.is_some();
        let flight = Arc::new(InFlight::begin(path_nar, ahead, place, self.level, Arc::clone(&self.damaged), stored)?);
        in_flight.retain(|_, flight| flight.strong_count() > 0);
        if has_place {
            in_flight.insert(path_nar.nar_hash, Arc::downgrade(&flight));
        }
        Ok(CompressedNar::InFlight(flight))
    }

    fn begin(&self) -> Option<FillTarget> {
        let begun = self.folder.begin().inspect_err(|error| self.folder.pause(error));
        let (folder, writer) = (Arc::clone(&self.folder), Arc::clone(&self.writer));
        Some(FillTarget { folder, filling: begun.ok()?, writer, under_way: self.metrics.compressions.begin() })
    }
}

/// The entity tag of a compressed NAR: its hash and the encoder.
pub(crate) fn etag(nar_hash: &str, encoding: &str) -> String {
    format!("\"{nar_hash}.{encoding}\"")
}

/// Whether a file's contents match its name.
pub(crate) fn is_as_named(file: &File, stored: &Stored) -> bool {
    // Unreadable data cannot be sent.
    hash_of(&mut FileAt::new(file, 0)).is_ok_and(|hash| hash == stored.file_hash)
}

/// Compresses a NAR for one client alone, without a folder: clients remember URLs of compressed NARs for longer than a server keeps its
/// options.
pub(crate) fn compress_alone(
    path_nar: &Arc<PathNar>,
    ahead: &Arc<ReadAhead>,
    damaged: &Arc<DamagedPaths>,
) -> io::Result<Arc<InFlight>> {
    InFlight::begin(path_nar, ahead, None, LEVEL_ALONE, Arc::clone(damaged), || {}).map(Arc::new)
}

/// The level of [`compress_alone`].
const LEVEL_ALONE: i32 = 1;

/// The entity tag of what [`compress_alone`] makes.
pub(crate) fn etag_alone(nar_hash: &str) -> String {
    etag(nar_hash, &encoding(LEVEL_ALONE))
}
