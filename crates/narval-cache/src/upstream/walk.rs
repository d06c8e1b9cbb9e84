//! Fetches NARs ahead, where a client walks a closure.
//!
//! A client that asks for a path, and then for what that path refers to, is about to fetch the NARs of both: it walks the closure. One that
//! asks for single paths is not. NARs that are fetched ahead are bounded in number and in bytes, and leave most fetches to clients.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use narval_nix::{HashPart, NarInfo, StorePath};
use quick_cache::sync::Cache as Memory;

use super::fill::Fill;
use super::{AHEAD_NAR_BYTES_MAX, AHEAD_NAR_THREADS, AHEAD_NARS_MAX};

/// References that a client may ask for next.
const EXPECTED_MAX: usize = 1 << 16;

/// How soon a client that walks a closure asks for the next path, and for the NARs.
const WALK_SOON: Duration = Duration::from_secs(600);

/// The closures that clients walk.
pub(super) struct Walks {
    /// By what a client may ask for next: which path refers to it, and when that was asked for.
    expected: Memory<HashPart, (HashPart, Instant)>,
    queue: SyncSender<HashPart>,
    /// NARs that were fetched ahead and that no client has asked for yet, by the name of their file.
    unclaimed: Mutex<HashMap<String, (u64, Instant)>>,
    bytes_max: AtomicU64,
}

/// How much of a budget may be fetched ahead.
fn share_of(budget: u64) -> u64 {
    AHEAD_NAR_BYTES_MAX.min(budget / 4)
}

impl Walks {
    /// Starts the threads. Each calls `begin` with what is to be fetched, until that breaks, and waits for the fetch that it begins, if
    /// it begins one. At most a quarter of `budget` bytes is fetched before anybody asks for it.
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

    /// Fetches nothing.
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

    /// Changes the budget. What is being fetched ahead continues; see [`may_keep`](Self::may_keep).
    pub(super) fn set_budget(&self, budget: u64) {
        self.bytes_max.store(share_of(budget), Ordering::Release);
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Acquire)
    }

    /// Notes that a client was told of a path.
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

    /// Notes that a client has asked for a NAR.
    pub(super) fn claimed(&self, file: &str) {
        self.lock().remove(file);
    }

    /// Whether a NAR of so many bytes may be fetched ahead.
    pub(super) fn may_fetch(&self, file: &str, bytes: u64) -> bool {
        let mut unclaimed = self.lock();
        unclaimed.retain(|_, (_, since)| since.elapsed() < WALK_SOON);
        let fits = total(&unclaimed).saturating_add(bytes) <= self.bytes_max() && !unclaimed.contains_key(file);
        if fits {
            unclaimed.insert(file.to_owned(), (bytes, Instant::now()));
        }
        fits
    }

    /// Whether a NAR that has been fetched is kept: it is if a client has asked for it, or if what nobody has asked for still fits. The budget
    /// may have been lowered meanwhile, and then what clients use must not make room for it.
    pub(super) fn may_keep(&self, file: &str) -> bool {
        let mut unclaimed = self.lock();
        let fits = !unclaimed.contains_key(file) || total(&unclaimed) <= self.bytes_max();
        if !fits {
            unclaimed.remove(file);
        }
        fits
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (u64, Instant)>> {
        self.unclaimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn total(unclaimed: &HashMap<String, (u64, Instant)>) -> u64 {
    unclaimed.values().fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes))
}

fn run(begin: impl Fn(&HashPart) -> ControlFlow<(), Option<Arc<Fill>>>, receiver: &Mutex<Receiver<HashPart>>) {
    loop {
        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(hash_part) = next else { return };
        match begin(&hash_part) {
            ControlFlow::Continue(Some(fill)) => fill.wait_for_end(WALK_SOON),
            ControlFlow::Continue(None) => {}
            ControlFlow::Break(()) => return,
        }
    }
}
