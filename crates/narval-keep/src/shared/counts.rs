//! What is counted of caches, and what a process keeps of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::name::CacheName;

/// How full a cache is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fullness {
    /// Paths.
    pub paths: u64,
    /// Those of them without a signature by each of the cache's keys, by their names; `None` if it has no key.
    pub unsigned: Option<u64>,
    /// Names of NARs, including aliases.
    pub files: u64,
    /// Bytes of NARs, as they are stored.
    pub nar_bytes: u64,
    /// Bytes of listings.
    pub listing_bytes: u64,
    /// Bytes of build logs.
    pub log_bytes: u64,
    /// Bytes of realisations, debug information and files of unknown kinds.
    pub other_bytes: u64,
    /// Pins.
    pub pins: u64,
    /// When the path that was unused for longest was last pushed or requested, in seconds since 1970.
    pub oldest_use: Option<u64>,
    /// When it was last collected completely, by whichever process, in seconds since 1970.
    pub collected: Option<u64>,
    /// Bytes of NARs and their listings that pins keep.
    pub pinned_bytes: u64,
}

/// What collections of this process have done.
#[derive(Debug, Default)]
pub(crate) struct Collections {
    removed_bytes: AtomicU64,
    last_micros: AtomicU64,
    last_removed_bytes: AtomicU64,
    last_removed_paths: AtomicU64,
}

impl Collections {
    /// Notes a collection that has removed so many paths and bytes.
    pub(crate) fn done(&self, (paths, bytes): (u64, u64), took: Duration) {
        self.removed_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.last_removed_bytes.store(bytes, Ordering::Relaxed);
        self.last_removed_paths.store(paths, Ordering::Relaxed);
        self.last_micros.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> CollectionStats {
        let last = self.last_micros.load(Ordering::Relaxed);
        CollectionStats {
            removed_bytes: self.removed_bytes.load(Ordering::Relaxed),
            last: (last > 0).then(|| Duration::from_micros(last)),
            last_removed: (
                self.last_removed_paths.load(Ordering::Relaxed),
                self.last_removed_bytes.load(Ordering::Relaxed),
            ),
        }
    }
}

/// What collections of this process have done in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectionStats {
    /// Bytes of the NARs that they have removed.
    pub removed_bytes: u64,
    /// How long the last one took, if there was one.
    pub last: Option<Duration>,
    /// How many paths the last one has removed, and the bytes of NARs.
    pub last_removed: (u64, u64),
}

/// A token's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEnd {
    /// Its id.
    pub id: String,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
}

/// All caches of a data folder, as they were counted last.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// The caches.
    pub caches: BTreeMap<CacheName, Fullness>,
    /// Tokens that will end, the nearest first. Without those of CI jobs, which are short-lived.
    pub tokens: Vec<TokenEnd>,
}

/// The last survey, and whether the next one is being made.
#[derive(Debug, Default)]
pub(crate) struct Surveys(Mutex<SurveyState>);

#[derive(Debug, Default)]
pub(crate) struct SurveyState {
    pub(crate) last: Option<(Arc<Survey>, Instant, Duration)>,
    pub(crate) is_counting: bool,
    /// Whether keys have changed since the last count began: what is unsigned is another question then.
    pub(crate) is_outdated: bool,
}

impl Surveys {
    /// Makes the next caller count again, however new the last count is.
    pub(crate) fn outdate(&self) {
        self.lock().is_outdated = true;
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SurveyState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
