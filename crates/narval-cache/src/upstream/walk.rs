//! Prefetches NARs if a client walks a closure.
//!
//! A client that requests a path and then its references walks the closure, and will fetch the NARs of both. One that
//! requests single paths will not. Prefetched NARs are limited in number and bytes, and leave most fetches to clients.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use narval_nix::{HashPart, NarInfo, StorePath};
use parking_lot::Mutex;
use quick_cache::sync::Cache as Memory;

use super::{AHEAD_NAR_BYTES_MAX, AHEAD_NAR_THREADS, AHEAD_NARS_MAX};
use narval_files::Fill;

/// The maximum number of references that a client may request next.
const EXPECTED_MAX: usize = 1 << 16;

/// How soon a client that walks a closure requests the next path, and the NARs.
const WALK_SOON: Duration = Duration::from_secs(600);

/// The closures that clients walk.
pub(super) struct Walks {
    /// By expected path: the path that refers to it, and when that was requested.
    expected: Memory<HashPart, (HashPart, Instant)>,
    queue: SyncSender<HashPart>,
    /// Prefetched NARs that no client has requested yet, by the name of their file.
    unclaimed: Mutex<HashMap<String, (u64, Instant)>>,
    bytes_max: AtomicU64,
}

/// The share of a budget for prefetching.
fn share_of(budget: u64) -> u64 {
    AHEAD_NAR_BYTES_MAX.min(budget / 4)
}

impl Walks {
    /// Starts the threads. Each calls `begin` with the queued paths until that breaks, and waits for the started fetch,
    /// if any. At most a quarter of `budget` bytes is prefetched without a request.
    pub(super) fn start(
        budget: u64,
        begin: impl Fn(&HashPart) -> ControlFlow<(), Option<Arc<Fill>>> + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        let (queue, receiver) = sync_channel(AHEAD_NARS_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        for at in 0..AHEAD_NAR_THREADS {
            let (begin, receiver) = (begin.clone(), Arc::clone(&receiver));
            thread::Builder::new().name(format!("ahead-nar-{at}")).spawn(move || run(begin, &receiver))?;
        }
        Ok(Self::new(queue, budget))
    }

    /// Prefetches nothing.
    pub(super) fn none() -> Self {
        Self::new(sync_channel(0).0, 0)
    }

    fn new(queue: SyncSender<HashPart>, budget: u64) -> Self {
        Self {
            expected: Memory::new(EXPECTED_MAX),
            queue,
            unclaimed: Mutex::default(),
            bytes_max: AtomicU64::new(share_of(budget)),
        }
    }

    /// Changes the budget. Running fetches continue; see [`may_keep`](Self::may_keep).
    pub(super) fn set_budget(&self, budget: u64) {
        self.bytes_max.store(share_of(budget), Ordering::Release);
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Acquire)
    }

    /// Records that a client got a narinfo.
    pub(super) fn asked(&self, info: &NarInfo) {
        let own = info.path.hash_part();
        let referrer = self.expected.get(&own).filter(|(_, since)| since.elapsed() < WALK_SOON);
        for part in referrer.map(|(referrer, _)| [referrer, own]).into_iter().flatten() {
            if self.queue.try_send(part).is_err() {
                break;
            }
        }
        let now = Instant::now();
        for reference in info.references.iter().map(StorePath::hash_part).filter(|part| *part != own) {
            self.expected.insert(reference, (own, now));
        }
    }

    /// Records that a client has requested a NAR.
    pub(super) fn claimed(&self, file: &str) {
        self.unclaimed.lock().remove(file);
    }

    /// Whether a NAR of this size in bytes may be prefetched.
    pub(super) fn may_fetch(&self, file: &str, bytes: u64) -> bool {
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
    pub(super) fn may_keep(&self, file: &str) -> bool {
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

fn run(begin: impl Fn(&HashPart) -> ControlFlow<(), Option<Arc<Fill>>>, receiver: &Mutex<Receiver<HashPart>>) {
    loop {
        let next = receiver.lock().recv();
        let Ok(hash_part) = next else { return };
        match begin(&hash_part) {
            ControlFlow::Continue(Some(fill)) => fill.wait_for_end(WALK_SOON),
            ControlFlow::Continue(None) => {}
            ControlFlow::Break(()) => return,
        }
    }
}
