//! The pipeline: one thread takes one NAR from the socket to its place in the store, so that its bytes stay in one
//! core's cache; the largest first; nothing waits for its references.

mod one;
mod stages;

use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use narval_cache::{Caches, Found};
use narval_nix::PathInfo;
use narval_store::LocalStore;

use crate::fetch::Cores;
use crate::trace::Trace;
use crate::{Error, Progress, Wanted};
use one::Job;

/// NARs under way at the same time, at most: half of the connections to an origin.
pub const DOWNLOADS_MAX: usize = 32;

/// Memory of the decoders at work, at most, as long as every core has one: dictionaries of 8 MiB (`xz -6`, `zstd -19`),
/// of which no more is touched than the NAR is long.
const DECODERS_MEMORY_MAX: u64 = 64 * 1024 * 1024;
/// What a decoder takes for a large NAR.
const DICTIONARY_LEN: u64 = 8 * 1024 * 1024;

/// How long a thread without work waits at most for the news that there is some.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);

struct Queued(Found);

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
impl Queued {
    /// Longest processing time first. The path only makes the order a definite one.
    fn key(&self) -> (u64, &str) {
        (self.0.info.nar_size, self.0.info.path.base_name())
    }
}

#[derive(Default)]
struct State {
    heap: BinaryHeap<Queued>,
    /// NAR bytes in the heap.
    queued_bytes: u64,
    threads: usize,
    active: usize,
    /// What the decoders of the active ones may take.
    memory: u64,
    /// Whether a NAR has more threads than one. One at a time: its memory is counted once.
    split: bool,
    /// No more will come.
    closed: bool,
    done: Vec<PathInfo>,
    errors: Vec<Error>,
}

/// The NARs of one install.
pub(crate) struct Pipeline<'a> {
    pub(crate) caches: &'a Caches,
    pub(crate) store: &'a LocalStore,
    pub(crate) progress: &'a Progress,
    pub(crate) trace: &'a Trace,
    pub(crate) cores: Cores,
    numbers: AtomicU64,
    state: Mutex<State>,
}

impl<'a> Pipeline<'a> {
    pub(crate) fn new(
        caches: &'a Caches,
        store: &'a LocalStore,
        progress: &'a Progress,
        trace: &'a Trace,
        cores: usize,
    ) -> Self {
        let (cores, numbers) = (Cores::new(cores), AtomicU64::new(1));
        Self { caches, store, progress, trace, cores, numbers, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a NAR, and a thread for it if there may be one more.
    pub(crate) fn add<'scope>(&'scope self, found: Found, scope: &'scope Scope<'scope, '_>) {
        let mut state = self.lock();
        state.queued_bytes = state.queued_bytes.saturating_add(found.info.nar_size);
        state.heap.push(Queued(found));
        if state.threads < DOWNLOADS_MAX && state.threads < state.active + state.heap.len() {
            state.threads += 1;
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            scope.spawn(move || self.work(number));
        }
        drop(state);
        self.cores.relaxed.notify_one();
    }

    /// Says that no more will come.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.cores.relaxed.notify_all();
    }

    /// Drops what has not begun.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.heap.clear();
        state.closed = true;
        drop(state);
        self.cores.relaxed.notify_all();
    }

    /// What was unpacked, and what failed. Called when all threads have ended.
    pub(crate) fn take_results(&self) -> (Vec<PathInfo>, Vec<Error>) {
        let mut state = self.lock();
        (std::mem::take(&mut state.done), std::mem::take(&mut state.errors))
    }

    /// Installs one path whose references are valid: nobody else can change it between its last byte and its being valid.
    pub(crate) fn install_now(&self, info: &PathInfo) -> Result<(), Error> {
        let found = self.caches.find(&Wanted::Path(info.path.clone()))?;
        Job { pipeline: self, number: 0, threads: 1, register: true }.run(found).map(drop)
    }

    /// Fetches a path that is valid and broken, and exchanges it.
    pub(crate) fn repair(&self, info: &PathInfo) -> Result<(), Error> {
        let found = self.caches.find(&Wanted::Path(info.path.clone()))?;
        Job { pipeline: self, number: 0, threads: 1, register: false }.repair(&found, info)
    }

    fn work(&self, number: u64) {
        Trace::name_thread(number);
        while let Some((found, threads)) = self.next() {
            let (path, nar_size) = (found.info.path.clone(), found.info.nar_size);
            self.progress.started(&path);
            let span = self.trace.begin();
            let job = Job { pipeline: self, number, threads, register: false };
            let result = if self.progress.is_interrupted() { Err(Error::Interrupted) } else { job.run(found) };
            self.trace.end_named(span, crate::trace::Span::Path, path.name());
            self.progress.ended(&path, result.as_ref().ok().map(|info| info.nar_size));
            let mut state = self.lock();
            state.active -= 1;
            state.memory -= memory_of(nar_size);
            state.split &= threads == 1;
            match result {
                Ok(info) => state.done.push(info),
                Err(error) => {
                    // One that the others will meet as well ends it all.
                    if !error.is_the_caches_fault() {
                        state.heap.clear();
                        state.closed = true;
                    }
                    state.errors.push(error);
                }
            }
            let ends = state.closed && state.heap.is_empty();
            drop(state);
            // All of them end, or one of them has room.
            if ends { self.cores.relaxed.notify_all() } else { self.cores.relaxed.notify_one() }
        }
    }

    /// The largest NAR that waits, and how many threads it deserves; none when all is done. Waits while enough threads
    /// have data and no core, or the decoders' memory is used up: more downloads would only take more of it.
    fn next(&self) -> Option<(Found, usize)> {
        let mut state = self.lock();
        loop {
            if state.closed && state.heap.is_empty() {
                return None;
            }
            let next_memory = state.heap.peek().map_or(0, |Queued(found)| memory_of(found.info.nar_size));
            let fits = state.memory + next_memory <= DECODERS_MEMORY_MAX;
            if (state.active < self.cores.total() || (fits && self.cores.waiting() < self.cores.total()))
                && let Some(Queued(found)) = state.heap.pop()
            {
                let nar_size = found.info.nar_size;
                state.active += 1;
                state.memory += memory_of(nar_size);
                state.queued_bytes = state.queued_bytes.saturating_sub(nar_size);
                let threads = if state.split { 1 } else { self.share(nar_size, state.queued_bytes) };
                state.split |= threads > 1;
                return Some((found, threads));
            }
            // A core is taken under another lock than this one, so that its news may come a moment too early.
            let waited = self.cores.relaxed.wait_timeout(state, LOOK_AGAIN_AFTER);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How many threads a NAR deserves: more than one only when it would keep one core busy after the others have
    /// nothing left to do.
    fn share(&self, nar_size: u64, queued_bytes: u64) -> usize {
        if nar_size < one::SPLIT_LEN {
            return 1;
        }
        let cores = self.cores.total() as u64;
        let share = nar_size.saturating_mul(cores) / queued_bytes.saturating_add(nar_size).max(1);
        usize::try_from(share.clamp(1, cores)).unwrap_or(1)
    }
}

/// What a NAR's decoder may take.
fn memory_of(nar_size: u64) -> u64 {
    nar_size.min(DICTIONARY_LEN)
}
