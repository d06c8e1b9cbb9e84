//! Prefetches NARs if a client walks a closure.
//!
//! A client that requests a path and then its references walks the closure, and will fetch the NARs of both. One that
//! requests single paths will not. Prefetched NARs are limited in number and bytes, and leave most fetches to clients.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use narval_nix::{HashPart, NarInfo, StorePath};
use parking_lot::Mutex;
use quick_cache::sync::Cache as Memory;

use crate::upstream::limits::AHEAD_NAR_BYTES_MAX;

/// The maximum number of references that a client may request next.
const EXPECTED_MAX: usize = 1 << 16;

/// How soon a client that walks a closure requests the next path, and the NARs.
pub(in crate::upstream) const WALK_SOON: Duration = Duration::from_secs(600);

/// The closures that clients walk.
pub(in crate::upstream) struct Walks {
    /// By expected path: the path that refers to it, and when that was requested.
    expected: Memory<HashPart, (HashPart, Instant)>,
    /// Prefetched NARs that no client has requested yet, by the name of their file.
    unclaimed: Mutex<HashMap<String, (u64, Instant)>>,
    bytes_max: AtomicU64,
}

/// The share of a budget for prefetching.
fn share_of(budget: u64) -> u64 {
    AHEAD_NAR_BYTES_MAX.min(budget / 4)
}

impl Walks {
    /// At most a quarter of `budget` bytes is prefetched without a request.
    pub(in crate::upstream) fn new(budget: u64) -> Self {
        Self {
            expected: Memory::new(EXPECTED_MAX),
            unclaimed: Mutex::default(),
            bytes_max: AtomicU64::new(share_of(budget)),
        }
    }

    /// Changes the budget. Running fetches continue; see [`may_keep`](Self::may_keep).
    pub(in crate::upstream) fn set_budget(&self, budget: u64) {
        self.bytes_max.store(share_of(budget), Ordering::Release);
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Acquire)
    }

    /// Records that a client got a narinfo. Returns the paths whose NARs it will probably request.
    pub(in crate::upstream) fn requested(&self, info: &NarInfo) -> Option<[HashPart; 2]> {
        let own = info.path.hash_part();
        let referrer = self.expected.get(&own).filter(|(_, since)| since.elapsed() < WALK_SOON);
        let now = Instant::now();
        for reference in info.references.iter().map(StorePath::hash_part).filter(|part| *part != own) {
            self.expected.insert(reference, (own, now));
        }
        referrer.map(|(referrer, _)| [referrer, own])
    }

    /// Records that a client has requested a NAR.
    pub(in crate::upstream) fn claimed(&self, file: &str) {
        self.unclaimed.lock().remove(file);
    }

    /// Whether a NAR of this size in bytes may be prefetched.
    pub(in crate::upstream) fn may_fetch(&self, file: &str, bytes: u64) -> bool {
        let mut unclaimed = self.unclaimed.lock();
        unclaimed.retain(|_, (_, since)| since.elapsed() < WALK_SOON);
        let fits = total(&unclaimed).saturating_add(bytes) <= self.bytes_max() && !unclaimed.contains_key(file);
        if fits {
            unclaimed.insert(file.to_owned(), (bytes, Instant::now()));
        }
        fits
    }

    /// Whether to store a fetched NAR: if a client has requested it, or if unrequested NARs are still within their
    /// share. The budget may have been lowered meanwhile, and used files must not be removed for unused ones.
    pub(in crate::upstream) fn may_keep(&self, file: &str) -> bool {
        let mut unclaimed = self.unclaimed.lock();
        let fits = !unclaimed.contains_key(file) || total(&unclaimed) <= self.bytes_max();
        if !fits {
            unclaimed.remove(file);
        }
        fits
    }
}

fn total(unclaimed: &HashMap<String, (u64, Instant)>) -> u64 {
    unclaimed.values().fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes))
}
