//! Compressed NARs, kept on disk: made once, while the first client is served, and sent from the file ever after.
//!
//! One compression at a time for each NAR, however many ask (a [`Flight`]). There is no thread for it: whoever needs
//! bytes that are not there yet makes the next piece, for all. A slow client holds up nobody, and when all have gone,
//! so has the flight. What was made is checked against the NAR hash before its last piece is given to anybody.

mod flight;
mod folder;
mod frames;
mod storing;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use narval_nix::NarHash;
use narval_store::ReadAhead;
use quick_cache::sync::Cache;

use crate::corrupt::Corrupt;
use crate::layouts::Planned;
use crate::metrics::Metrics;
use flight::Place;
pub(crate) use flight::{Flight, FlightSource, Outcome};
use folder::Folder;
pub(crate) use folder::Stored;
use storing::Storing;

/// Files whose names are remembered, so that finding them costs no look into a folder.
const NAMES_MAX: usize = 16 * 1024;

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
    storing: Arc<Storing>,
    level: i32,
    names: Cache<NarHash, Stored>,
    flights: Mutex<HashMap<NarHash, Weak<Flight>>>,
    corrupt: Arc<Corrupt>,
    metrics: Arc<Metrics>,
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
            storing: Arc::default(),
            level: config.level,
            names: Cache::new(NAMES_MAX),
            flights: Mutex::default(),
            corrupt,
            metrics,
        })
    }

    /// The compressed NAR with this hash, if it is there.
    pub(crate) fn find(&self, nar_hash: &NarHash) -> Option<(Stored, Arc<File>)> {
        if let Some(known) = self.names.get(nar_hash)
            && let Some(file) = self.folder.open_file(&known)
        {
            return Some((known, Arc::new(file)));
        }
        let found = self.folder.find(nar_hash)?;
        let file = self.folder.open_file(&found)?;
        self.names.insert(*nar_hash, found.clone());
        Some((found, Arc::new(file)))
    }

    /// Whether this process knows already of a compressed NAR with this hash. Others may have made one.
    pub(crate) fn knows(&self, nar_hash: &NarHash) -> bool {
        self.names.get(nar_hash).is_some()
    }

    /// The compressed NAR with this hash and of this size, if it can be had at once; for the shard, which waits for no
    /// disk.
    pub(crate) fn find_inline(&self, nar_hash: &NarHash, size: u64) -> Option<File> {
        let known = self.names.get(nar_hash).filter(|known| known.file_size == size)?;
        self.folder.open_cached(&known)
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
        Some(Place { folder: Arc::clone(&self.folder), filling: begun.ok()?, storing: Arc::clone(&self.storing) })
    }
}
