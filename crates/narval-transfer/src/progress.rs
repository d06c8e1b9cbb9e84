//! Progress for display: cheap counters, read ten times a second.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use narval_nix::StorePath;
use parking_lot::Mutex;

/// Counters of one install.
#[derive(Default)]
pub struct Progress {
    paths_found: AtomicU64,
    paths_done: AtomicU64,
    nar_bytes_found: AtomicU64,
    nar_bytes_done: AtomicU64,
    file_bytes_found: AtomicU64,
    file_bytes_done: AtomicU64,
    file_bytes_saved: AtomicU64,
    deltas_done: AtomicU64,
    walk_done: AtomicBool,
    interrupted: AtomicBool,
    active: Mutex<Vec<StorePath>>,
    finished: Mutex<Vec<(StorePath, u64)>>,
    resumed: Mutex<Vec<(StorePath, u64)>>,
}

/// The counters at one moment. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Paths to install, as far as known.
    pub paths_found: u64,
    /// Paths unpacked and verified.
    pub paths_done: u64,
    /// NAR sizes of the paths found.
    pub nar_bytes_found: u64,
    /// Bytes unpacked.
    pub nar_bytes_done: u64,
    /// Bytes to download, as far as the caches provide them.
    pub file_bytes_found: u64,
    /// Bytes downloaded.
    pub file_bytes_done: u64,
    /// Bytes that deltas saved, compared with the files of the caches.
    pub file_bytes_saved: u64,
    /// Paths fetched as deltas.
    pub deltas_done: u64,
    /// Whether the whole closure is known.
    pub walk_done: bool,
}

impl Progress {
    /// Requests the work to stop.
    pub fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }

    /// Whether it should stop.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Counts a path to transfer.
    pub fn found(&self, nar_size: u64, file_size: Option<u64>) {
        self.paths_found.fetch_add(1, Ordering::Relaxed);
        self.nar_bytes_found.fetch_add(nar_size, Ordering::Relaxed);
        self.file_bytes_found.fetch_add(file_size.unwrap_or(nar_size), Ordering::Relaxed);
    }

    /// The whole closure is known.
    pub fn walk_done(&self) {
        self.walk_done.store(true, Ordering::Relaxed);
    }

    /// Counts bytes of a file, as a cache has it.
    pub fn downloaded(&self, len: u64) {
        self.file_bytes_done.fetch_add(len, Ordering::Relaxed);
    }

    /// Counts a delta of this length, in place of a file.
    pub fn saved(&self, file_size: u64, delta_len: u64) {
        self.deltas_done.fetch_add(1, Ordering::Relaxed);
        self.file_bytes_saved.fetch_add(file_size.saturating_sub(delta_len), Ordering::Relaxed);
    }

    /// Counts bytes of a NAR.
    pub fn unpacked(&self, len: u64) {
        self.nar_bytes_done.fetch_add(len, Ordering::Relaxed);
    }

    /// Work on a path starts.
    pub fn started(&self, path: &StorePath) {
        self.active.lock().push(path.clone());
    }

    /// It has ended; with its NAR size if it is done.
    pub fn ended(&self, path: &StorePath, nar_size: Option<u64>) {
        self.active.lock().retain(|other| other != path);
        if let Some(nar_size) = nar_size {
            self.paths_done.fetch_add(1, Ordering::Relaxed);
            self.finished.lock().push((path.clone(), nar_size));
        }
    }

    /// A NAR continues where an earlier run was interrupted.
    pub fn resumed(&self, path: &StorePath, offset: u64) {
        self.resumed.lock().push((path.clone(), offset));
    }

    /// The paths resumed since the last call, with the offsets in what is sent of their NARs.
    pub fn take_resumed(&self) -> Vec<(StorePath, u64)> {
        std::mem::take(&mut *self.resumed.lock())
    }

    /// The paths being unpacked.
    pub fn active(&self) -> Vec<StorePath> {
        self.active.lock().clone()
    }

    /// The paths done since the last call, with their NAR sizes.
    pub fn take_finished(&self) -> Vec<(StorePath, u64)> {
        std::mem::take(&mut *self.finished.lock())
    }

    /// The current counters.
    pub fn snapshot(&self) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            paths_found: read(&self.paths_found),
            paths_done: read(&self.paths_done),
            nar_bytes_found: read(&self.nar_bytes_found),
            nar_bytes_done: read(&self.nar_bytes_done),
            file_bytes_found: read(&self.file_bytes_found),
            file_bytes_done: read(&self.file_bytes_done),
            file_bytes_saved: read(&self.file_bytes_saved),
            deltas_done: read(&self.deltas_done),
            walk_done: self.walk_done.load(Ordering::Relaxed),
        }
    }
}
