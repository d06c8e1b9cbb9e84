//! Whether an install fits on the disk.

use narval_cache::TrustedNarInfo;
use parking_lot::Mutex;

use narval_transfer::{Destination, Error};

/// The overhead of file systems, as a share of the files' bytes: 1/16.
const OVERHEAD: u64 = 16;

/// With this much free space, NARs are fetched while the closure is walked: hardly any closure is larger. With less, no NAR is
/// requested before all of it is known to fit.
const AMPLE: u64 = 16 << 30;

/// What an install needs, and what is free.
pub(crate) struct Space<'a> {
    destination: &'a Destination,
    /// `None` if it is unknown here: the daemon decides.
    free: Option<u64>,
    needs: Mutex<Needs>,
}

#[derive(Default)]
struct Needs {
    bytes: u64,
    /// Whether an interrupted run has left some of the paths on disk.
    has_parts: bool,
    /// The largest NAR: its size, its path, and the cache that says so.
    largest: Option<(u64, String)>,
}

impl<'a> Space<'a> {
    /// The space of a store, of which this much is free.
    pub(crate) fn new(destination: &'a Destination, free: Option<u64>) -> Self {
        Self { destination, free, needs: Mutex::default() }
    }

    /// Whether anything may be fetched before the whole need is known.
    pub(crate) fn is_ample(&self) -> bool {
        self.free.is_none_or(|free| free >= AMPLE)
    }

    /// Adds a path that is not valid. Returns whether everything so far fits.
    pub(crate) fn add(&self, found: &TrustedNarInfo) -> bool {
        let (path, size) = (&found.info.path, found.info.nar_size);
        // An earlier run has completed it: its files take their space already.
        let is_part = self.destination.config().real_store_dir.join(path.base_name()).symlink_metadata().is_ok();
        let mut needs = self.needs.lock();
        if is_part {
            needs.has_parts = true;
            return true;
        }
        needs.bytes = needs.bytes.saturating_add(size).saturating_add(size / OVERHEAD);
        if needs.largest.as_ref().is_none_or(|(largest, _)| size > *largest) {
            needs.largest = Some((size, format!("{path} of {}", found.cache.url())));
        }
        self.free.is_none_or(|free| needs.bytes <= free)
    }

    /// # Errors
    /// [`Error::Space`], if not everything fits.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let needs = self.needs.lock();
        let Some(free) = self.free.filter(|free| needs.bytes > *free) else { return Ok(()) };
        let (folder, needed, has_parts) =
            (self.destination.config().real_store_dir.clone(), needs.bytes, needs.has_parts);
        let largest = needs.largest.clone().filter(|(size, _)| *size > free);
        Err(Error::Space { folder, needed, free, largest, has_parts })
    }
}
