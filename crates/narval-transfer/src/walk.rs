//! The walk: paths are added while others are being transferred. One thread takes one NAR from its source to its
//! destination, so that its bytes stay in one core's cache, the largest NAR first. A path only waits for its references
//! to become visible.

use std::collections::{BinaryHeap, HashSet};
use std::thread::Scope;
use std::time::Duration;

use narval_nix::{PathInfo, StorePath};
use narval_store::{LocalStoreError, Sink, Source, TransferError, Visible};
use parking_lot::Mutex;
use tracing::trace_span;

use crate::cores::{Cores, decoder_memory};
use crate::error::Error;
use crate::in_order::put_in_order;
use crate::progress::Progress;
use crate::timeline::TIMELINE;
use crate::visible::{Waiting, closed_subset};
use crate::watched::Watched;

/// The maximum memory of active decoders, as long as every core has one: dictionaries of 8 MiB (`xz -6`, `zstd -19`),
/// of which a NAR only touches as much as its size.
const DECODERS_MEMORY_MAX: u64 = 64 * 1024 * 1024;
/// NARs of at least this size may be handled by several threads.
const SPLIT_LEN: u64 = 64 * 1024 * 1024;
/// How long an idle thread waits for a notification before it checks for work.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A path that waits for a thread. Ordered by the size of its NAR: longest processing time first. The path only makes
/// the order total.
struct Queued<E> {
    nar_size: u64,
    /// The memory that its decoder may use, unless its source bounds that.
    memory: u64,
    path: StorePath,
    entry: E,
}

impl<E> PartialEq for Queued<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl<E> Eq for Queued<E> {}
impl<E> PartialOrd for Queued<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Queued<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
impl<E> Queued<E> {
    fn key(&self) -> (u64, &str) {
        (self.nar_size, self.path.base_name())
    }
}

/// What a thread does next.
enum Task<E, P> {
    /// Puts a path, on this many threads.
    Put(Queued<E>, usize),
    /// Makes a path visible.
    Commit(StorePath, P),
}

struct State<E, P> {
    heap: BinaryHeap<Queued<E>>,
    /// Total NAR size of the queued paths.
    queued_bytes: u64,
    threads: usize,
    active: usize,
    /// The memory that active decoders may use.
    memory: u64,
    /// Whether a NAR has more than one thread. Only one NAR at a time may: its memory is counted once.
    split: bool,
    /// No more paths will be added.
    closed: bool,
    /// The remaining paths are dropped: they would fail as well.
    stopped: bool,
    /// Whether references must be checked: not all of them were added.
    is_open: bool,
    /// All paths that were added.
    given: HashSet<StorePath>,
    /// Put paths that become visible at the end.
    put: Vec<(PathInfo, P)>,
    /// Put paths that become visible once their references are.
    waiting: Waiting<P>,
    to_commit: Vec<(StorePath, P)>,
    errors: Vec<Error>,
}

/// Transfers paths from a source to a sink.
pub struct Transfer<'a, S: Source, K: Sink> {
    source: &'a S,
    sink: &'a K,
    cores: &'a Cores,
    threads_max: usize,
    progress: &'a Progress,
    state: Mutex<State<S::Entry, K::Put>>,
}

impl<'a, S: Source, K: Sink> Transfer<'a, S, K>
where
    S::Error: Into<Error>,
    K::Error: Into<Error>,
{
    /// A transfer on these cores, with at most this many NARs at the same time.
    pub fn new(source: &'a S, sink: &'a K, (cores, threads_max): (&'a Cores, usize), progress: &'a Progress) -> Self {
        let state = State {
            heap: BinaryHeap::new(),
            queued_bytes: 0,
            threads: 0,
            active: 0,
            memory: 0,
            split: false,
            closed: false,
            stopped: false,
            is_open: false,
            given: HashSet::new(),
            put: Vec::new(),
            waiting: Waiting::default(),
            to_commit: Vec::new(),
            errors: Vec::new(),
        };
        Self { source, sink, cores, threads_max: threads_max.max(1), progress, state: Mutex::new(state) }
    }

    /// Adds a path that the sink does not have, and a thread for it if the limit allows. Only for sinks where paths
    /// become [visible at the end](Visible::AtTheEnd): others must know all paths first.
    pub fn add<'scope>(&'scope self, entry: S::Entry, scope: &'scope Scope<'scope, '_>) {
        let mut state = self.state.lock();
        self.queue(&mut state, entry);
        self.start_threads(&mut state, scope);
        drop(state);
        self.cores.relaxed.notify_one();
    }

    /// Adds all paths at once.
    pub fn add_all<'scope>(&'scope self, entries: Vec<S::Entry>, scope: &'scope Scope<'scope, '_>) {
        let mut state = self.state.lock();
        entries.into_iter().for_each(|entry| self.queue(&mut state, entry));
        state.closed = true;
        self.start_threads(&mut state, scope);
    }

    fn queue(&self, state: &mut State<S::Entry, K::Put>, entry: S::Entry) {
        let info = self.source.info(&entry);
        let (nar_size, path) = (info.nar_size, info.path.clone());
        let memory = if self.source.limits_decoder_memory(&entry) { 0 } else { decoder_memory(nar_size) };
        state.given.insert(path.clone());
        if !state.stopped {
            state.queued_bytes = state.queued_bytes.saturating_add(nar_size);
            state.heap.push(Queued { nar_size, memory, path, entry });
        }
    }

    fn start_threads<'scope>(&'scope self, state: &mut State<S::Entry, K::Put>, scope: &'scope Scope<'scope, '_>) {
        while state.threads < self.threads_max && state.threads < state.active + state.heap.len() {
            state.threads += 1;
            scope.spawn(|| self.work());
        }
    }

    /// Declares that no more paths will be added.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.cores.relaxed.notify_all();
    }

    /// Drops paths that have not started. Added paths may refer to paths that were not added.
    pub fn abandon(&self) {
        let mut state = self.state.lock();
        state.stop();
        state.is_open = true;
        drop(state);
        self.cores.relaxed.notify_all();
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            match task {
                Task::Put(queued, threads) => self.do_put(queued, threads),
                Task::Commit(path, put) => self.do_commit(path, put),
            }
            let state = self.state.lock();
            let ends = state.closed && state.heap.is_empty();
            drop(state);
            // Wakes all of them to end, or one of them to continue.
            if ends {
                self.cores.relaxed.notify_all();
            } else {
                self.cores.relaxed.notify_one();
            }
        }
    }

    /// Waits for a task; `None` if there will be no more. Also waits while enough threads have data but no core, or
    /// while the decoders' memory is used up: another download would only use more of it.
    fn next(&self) -> Option<Task<S::Entry, K::Put>> {
        let mut state = self.state.lock();
        loop {
            if let Some((path, put)) = state.to_commit.pop() {
                state.active += 1;
                return Some(Task::Commit(path, put));
            }
            if state.closed && state.heap.is_empty() && (K::VISIBLE == Visible::AtTheEnd || state.active == 0) {
                return None;
            }
            let next_memory = state.heap.peek().map_or(0, |queued| queued.memory);
            let fits = state.memory + next_memory <= DECODERS_MEMORY_MAX;
            if (state.active < self.cores.total() || (fits && self.cores.waiting() < self.cores.total()))
                && let Some(queued) = state.heap.pop()
            {
                state.active += 1;
                state.memory += queued.memory;
                state.queued_bytes = state.queued_bytes.saturating_sub(queued.nar_size);
                let threads = if state.split { 1 } else { self.share(queued.nar_size, state.queued_bytes) };
                state.split |= threads > 1;
                return Some(Task::Put(queued, threads));
            }
            // A core is taken under another lock, so its notification may come a moment too early.
            self.cores.relaxed.wait_for(&mut state, LOOK_AGAIN_AFTER);
        }
    }

    /// How many threads to use for a NAR: more than one only if it would keep one core busy after the others have
    /// finished.
    fn share(&self, nar_size: u64, queued_bytes: u64) -> usize {
        if nar_size < SPLIT_LEN {
            return 1;
        }
        let cores = self.cores.total() as u64;
        let share = nar_size.saturating_mul(cores) / queued_bytes.saturating_add(nar_size).max(1);
        usize::try_from(share.clamp(1, cores)).unwrap_or(1)
    }

    fn do_put(&self, Queued { nar_size, memory, path, entry }: Queued<S::Entry>, threads: usize) {
        self.progress.started(&path);
        let result = trace_span!(target: TIMELINE, "path", name = path.name()).in_scope(|| self.put(entry, threads));
        self.progress.ended(&path, result.is_ok().then_some(nar_size));
        let mut state = self.state.lock();
        state.active -= 1;
        state.memory -= memory;
        state.split &= threads == 1;
        match result {
            Ok((info, put)) if K::VISIBLE == Visible::OnceReferencesAre => {
                let State { waiting, given, to_commit, .. } = &mut *state;
                to_commit.extend(waiting.put(&info, put, given).map(|put| (info.path, put)));
            }
            Ok(put) => state.put.push(put),
            Err((error, others_may_do)) => {
                if !others_may_do {
                    state.stop();
                }
                state.errors.push(error);
            }
        }
    }

    /// Puts a path, from elsewhere if its source fails. The error includes whether other paths may succeed.
    fn put(&self, mut entry: S::Entry, threads: usize) -> Result<(PathInfo, K::Put), (Error, bool)> {
        let mut first_error = None;
        loop {
            if self.progress.is_interrupted() {
                return Err((Error::Interrupted, false));
            }
            let (info, watched) = (self.source.info(&entry), Watched::new(self.source, self.progress));
            let error = match self.sink.put(&watched, &entry, threads) {
                Ok(put) => {
                    watched.complete(info.nar_size);
                    return Ok((info.clone(), put));
                }
                Err(TransferError::Source(error)) => error,
                Err(TransferError::Sink(error)) => return Err((error.into(), false)),
            };
            let other = self.source.fallback(&entry, &error).filter(|other| {
                let is_same = self.source.info(other).references == info.references;
                // Another build of it may have other references, which are unknown here.
                self.state.lock().is_open |= !is_same;
                is_same || K::VISIBLE == Visible::AtTheEnd
            });
            let error: Error = error.into();
            let Some(other) = other else {
                let others_may_do = error.is_the_caches_fault();
                return Err((if others_may_do { first_error.unwrap_or(error) } else { error }, others_may_do));
            };
            first_error.get_or_insert(error);
            entry = other;
        }
    }

    fn do_commit(&self, path: StorePath, put: K::Put) {
        let result = self.sink.commit(vec![put]).map_err(Into::into);
        let mut state = self.state.lock();
        state.active -= 1;
        match result {
            Ok(_) => {
                let ready = state.waiting.is_visible(path);
                state.to_commit.extend(ready);
            }
            Err(error) => {
                state.stop();
                state.errors.push(error);
            }
        }
    }

    /// Commits the paths that become visible at the end: those whose references are visible, or become visible with
    /// them. Called when all threads have ended. `error`: why not all paths were added.
    ///
    /// # Errors
    /// The first failure, with the number of others.
    pub fn finish(self, error: Option<Error>) -> Result<(), Error> {
        let state = self.state.into_inner();
        let State { mut errors, put, given, is_open, .. } = state;
        if let Some(error) = error {
            errors.insert(0, error);
        }
        let names: HashSet<_> = put.iter().map(|(info, _)| info.path.clone()).collect();
        let mut bad: HashSet<_> = given.difference(&names).cloned().collect();
        if is_open {
            let references = put.iter().flat_map(|(info, _)| &info.references);
            let outside: HashSet<_> = references.filter(|path| !names.contains(path)).collect();
            bad.extend(self.sink.missing(&Vec::from_iter(outside)).map_err(Into::into)?);
        }
        let (complete, left_out) = closed_subset(put, bad);
        // A cycle may be among them, which no order makes valid.
        if !complete.is_empty() && !errors.iter().any(|error| matches!(error, Error::Cycle { .. })) {
            for path in self.sink.commit(complete).map_err(Into::into)? {
                tracing::debug!(%path, "another process has changed it; trying again");
                if let Err(error) = put_again(self.source, &path, self.sink, self.progress) {
                    errors.push(error);
                    break;
                }
            }
        }
        // Without any other failure, all paths must have become visible: success means that.
        if let (true, Some((path, reference))) = (errors.is_empty(), left_out) {
            return Err(Error::Reference { path, reference });
        }
        combined(errors).map_or(Ok(()), Err)
    }
}

impl<E, P> State<E, P> {
    /// Drops paths that have not started.
    fn stop(&mut self) {
        self.heap.clear();
        (self.closed, self.stopped) = (true, true);
    }
}

/// Puts one path whose references are visible: nobody else can change it before it is visible.
fn put_again<S: Source, K: Sink>(source: &S, path: &StorePath, sink: &K, progress: &Progress) -> Result<(), Error>
where
    S::Error: Into<Error>,
    K::Error: Into<Error>,
{
    let found = source.find(&path.hash_part()).map_err(Into::into)?;
    let entry = found.filter(|entry| source.info(entry).path == *path);
    let entry = entry.ok_or_else(|| LocalStoreError::Changed { path: path.clone() })?;
    put_in_order(source, vec![entry], sink, progress)
}

fn combined(errors: Vec<Error>) -> Option<Error> {
    // An interrupt makes many paths fail; report it once.
    if errors.iter().any(|error| matches!(error, Error::Interrupted)) {
        return Some(Error::Interrupted);
    }
    let others = errors.len().saturating_sub(1);
    let first = errors.into_iter().next()?;
    Some(if others == 0 { first } else { Error::Several { first: Box::new(first), others } })
}
