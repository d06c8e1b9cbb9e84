//! Compressed NARs, kept on disk: made once, while the first client is served, and sent from the file ever after.
//!
//! One compression at a time for each NAR, however many ask (a [`Flight`]). There is no thread for it: whoever needs
//! bytes that are not there yet makes the next piece, for all. A slow client holds up nobody, and when all have gone,
//! so has the flight. What was made is checked against the NAR hash before its last piece is given to anybody.

mod folder;
mod in_flight;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use narval_nix::{NarHash, Sha256, Sha256Hasher};
use narval_store::ReadAhead;
use quick_cache::sync::Cache;

use crate::metrics::Metrics;
use crate::nar::damaged::Corrupt;
use crate::nar::plan::Planned;
use folder::Folder;
pub(crate) use folder::Stored;
use folder::encoding;
use in_flight::Place;
pub(crate) use in_flight::{Flight, FlightSource, Outcome};
use writer::Writer;

/// Files whose names are remembered, so that finding them costs no look into a folder.
const NAMES_MAX: usize = 16 * 1024;
/// How long a file is taken to be what its name says: disks and cables change bits. It is checked before it is sent for the
/// first time, and again when it is sent after this time.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Larger files are checked while they are sent, by a thread: it may take long.
const CHECK_FIRST_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes that are read at once to be checked.
const PIECE_BYTES: usize = 256 * 1024;

/// Where compressed NARs are kept, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NarCacheConfig {
    /// The folder; made if it is not there.
    pub folder: PathBuf,
    /// What it may hold, in bytes. It may be over that for a moment, by what is being written.
    pub bytes_max: u64,
    /// zstd's level, 1 to 19. Another level makes other files: those of the old one go by and by.
    pub level: i32,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct NarCache {
    folder: Arc<Folder>,
    writer: Arc<Writer>,
    /// Checks large files.
    checking: Arc<Writer>,
    level: i32,
    names: Arc<Cache<NarHash, Known>>,
    flights: Mutex<HashMap<NarHash, Weak<Flight>>>,
    corrupt: Arc<Corrupt>,
    metrics: Arc<Metrics>,
}

/// A file whose name is remembered.
#[derive(Clone, Debug)]
struct Known {
    stored: Stored,
    /// When its contents were checked, or that was begun.
    checked_at: Option<Instant>,
}

/// A compressed NAR, or one in the making.
pub(crate) enum Found {
    /// Here it is.
    File(Stored, Arc<File>),
    /// Being made.
    Flight(Arc<Flight>),
}

impl NarCache {
    /// Opens the folder.
    ///
    /// # Errors
    /// It can't be made or written to.
    pub(crate) fn open(config: &NarCacheConfig, corrupt: Arc<Corrupt>, metrics: Arc<Metrics>) -> io::Result<Self> {
        Ok(Self {
            folder: Arc::new(Folder::open(&config.folder, config.level, config.bytes_max)?),
            writer: Arc::default(),
            checking: Arc::default(),
            level: config.level,
            names: Arc::new(Cache::new(NAMES_MAX)),
            flights: Mutex::default(),
            corrupt,
            metrics,
        })
    }

    /// The compressed NAR with this hash, if it is there and what it should be, to be sent.
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

    /// What is known of the compressed NAR with this hash, by its name alone.
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

    /// An entity tag for what this process would make of the NAR with this hash.
    pub(crate) fn etag(&self, nar_hash: &str) -> String {
        etag(nar_hash, &encoding(self.level))
    }

    /// Whether this process knows already of a compressed NAR with this hash. Others may have made one.
    pub(crate) fn knows(&self, nar_hash: &NarHash) -> bool {
        self.names.get(nar_hash).is_some()
    }

    /// The compressed NAR with this hash, if it is still this file and can be had at once; for the shard, which waits for
    /// no disk.
    pub(crate) fn find_inline(&self, nar_hash: &NarHash, file_hash: &Sha256) -> Option<File> {
        let known = self.names.get(nar_hash).filter(|known| known.stored.file_hash == *file_hash)?;
        known.checked_at.filter(|at| at.elapsed() < CHECK_AGAIN_AFTER)?;
        self.folder.open_cached(&known.stored)
    }

    /// The compressed NAR of a path: from the folder, or being made now. `stored` is called when it was made and is
    /// in the folder.
    pub(crate) fn get(
        &self,
        planned: &Arc<Planned>,
        ahead: &Arc<ReadAhead>,
        stored: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Found> {
        if let Some((stored, file)) = self.find(&planned.nar_hash) {
            return Ok(Found::File(stored, file));
        }
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let flying = flights.get(&planned.nar_hash).and_then(Weak::upgrade);
        if let Some(flight) = flying.filter(|flight| !flight.has_failed()) {
            self.metrics.single_flight_waits.inc();
            return Ok(Found::Flight(flight));
        }
        // Finished between the look above and the lock.
        if let Some((stored, file)) = self.find(&planned.nar_hash) {
            return Ok(Found::File(stored, file));
        }
        self.metrics.nar_cache_misses.inc();
        let place = if self.folder.is_paused() { None } else { self.begin() };
        let has_place = place.is_some();
        let flight = Arc::new(Flight::begin(planned, ahead, place, self.level, Arc::clone(&self.corrupt), stored)?);
        flights.retain(|_, flight| flight.strong_count() > 0);
        if has_place {
            flights.insert(planned.nar_hash, Arc::downgrade(&flight));
        }
        Ok(Found::Flight(flight))
    }

    fn begin(&self) -> Option<Place> {
        let begun = self.folder.begin().inspect_err(|error| self.folder.pause(error));
        Some(Place { folder: Arc::clone(&self.folder), filling: begun.ok()?, writer: Arc::clone(&self.writer) })
    }
}

/// An entity tag of a compressed NAR: what is compressed, and by what.
pub(crate) fn etag(nar_hash: &str, encoding: &str) -> String {
    format!("\"{nar_hash}.{encoding}\"")
}

/// Whether a file's contents are what its name says.
fn is_as_named(file: &File, stored: &Stored) -> bool {
    let mut hasher = Sha256Hasher::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    loop {
        match file.read_at(&mut piece, at) {
            Ok(0) => return hasher.finish() == stored.file_hash,
            Ok(got) => {
                hasher.update(piece.get(..got).unwrap_or_default());
                at += got as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What can't be read can't be sent.
            Err(_) => return false,
        }
    }
}

/// Compresses a NAR for one client alone, where nothing is kept: URLs of compressed NARs are remembered for longer than
/// a server's options.
pub(crate) fn compress_alone(
    planned: &Arc<Planned>,
    ahead: &Arc<ReadAhead>,
    corrupt: &Arc<Corrupt>,
) -> io::Result<Arc<Flight>> {
    Flight::begin(planned, ahead, None, LEVEL_ALONE, Arc::clone(corrupt), || {}).map(Arc::new)
}

/// The level of [`compress_alone`].
const LEVEL_ALONE: i32 = 1;

/// The entity tag of what [`compress_alone`] makes.
pub(crate) fn etag_alone(nar_hash: &str) -> String {
    etag(nar_hash, &encoding(LEVEL_ALONE))
}
