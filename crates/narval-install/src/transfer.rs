//! The walk from a source to a sink: what is missing, its NARs on several threads with the largest first, and each path made
//! visible after what it refers to.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use narval_nix::{PathInfo, StorePath};
use narval_store::{Sink, Source, TransferError, Visible};

use crate::resolve::in_order;
use crate::{Error, Progress};

/// Copies the paths that the sink does not have, on this many threads. Returns how many there were.
///
/// # Errors
/// The first failure. What was put before it is visible if all that it refers to is.
pub(crate) fn transfer<S: Source, K: Sink>(
    source: &S,
    entries: Vec<S::Entry>,
    sink: &K,
    threads: usize,
    progress: &Progress,
) -> Result<usize, Error>
where
    S::Error: Into<Error>,
    K::Error: Into<Error>,
{
    let missing = sink.missing(&entries.iter().map(|entry| source.info(entry)).collect::<Vec<_>>());
    let missing: HashSet<StorePath> = missing.map_err(Into::into)?;
    let entries: Vec<_> = entries.into_iter().filter(|entry| missing.contains(&source.info(entry).path)).collect();
    entries.iter().for_each(|entry| progress.found(source.info(entry).nar_size, None));
    progress.walk_done();
    let entries = in_order(entries, |entry| {
        let info = source.info(entry);
        (info.path.clone(), info.references.iter().cloned().collect())
    });
    if K::VISIBLE == Visible::WhenPut {
        sink.put_in_order(source, &entries).map_err(|error| error_of(None, error))?;
        return Ok(entries.len());
    }
    let walk = Walk::new(source, &entries, sink, progress);
    std::thread::scope(|scope| {
        for _ in 1..threads.min(entries.len()) {
            scope.spawn(|| walk.work());
        }
        walk.work();
    });
    walk.finish()?;
    Ok(entries.len())
}

/// What a thread does next.
enum Task<P> {
    Put(usize),
    Commit(usize, P),
}

struct State<P> {
    /// What is to be put: size of the NAR and index, so that the largest comes first.
    to_put: BTreeSet<(u64, usize)>,
    to_commit: Vec<(usize, P)>,
    /// What is put and not yet ready to be committed.
    put: HashMap<usize, P>,
    /// How many paths each refers to that are not visible yet.
    lacking: Vec<usize>,
    /// Tasks being worked on.
    active: usize,
    error: Option<Error>,
}

/// The walk. Paths are numbered in an order in which each comes after what it refers to.
struct Walk<'a, S: Source, K: Sink> {
    source: &'a S,
    entries: &'a [S::Entry],
    sink: &'a K,
    progress: &'a Progress,
    referrers: Vec<Vec<usize>>,
    state: Mutex<State<K::Put>>,
    changed: Condvar,
}

impl<'a, S: Source, K: Sink> Walk<'a, S, K>
where
    S::Error: Into<Error>,
    K::Error: Into<Error>,
{
    fn new(source: &'a S, entries: &'a [S::Entry], sink: &'a K, progress: &'a Progress) -> Self {
        let infos: Vec<&PathInfo> = entries.iter().map(|entry| source.info(entry)).collect();
        let index: HashMap<&StorePath, usize> = infos.iter().enumerate().map(|(at, info)| (&info.path, at)).collect();
        let (mut referrers, mut lacking) = (vec![Vec::new(); infos.len()], vec![0; infos.len()]);
        for (at, info) in infos.iter().enumerate() {
            let references = info.references.iter().filter(|path| **path != info.path);
            for reference in references.filter_map(|path| index.get(path)) {
                if let (Some(of), Some(count)) = (referrers.get_mut(*reference), lacking.get_mut(at)) {
                    of.push(at);
                    *count += 1;
                }
            }
        }
        let to_put = infos.iter().enumerate().map(|(at, info)| (info.nar_size, at)).collect();
        let state = State { to_put, to_commit: Vec::new(), put: HashMap::new(), lacking, active: 0, error: None };
        Self { source, entries, sink, progress, referrers, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<K::Put>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            let done = match task {
                Task::Put(at) => self.put(at),
                Task::Commit(at, put) => self.commit(at, put),
            };
            let mut state = self.lock();
            state.active -= 1;
            if let Err(error) = done {
                state.error.get_or_insert(error);
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for a task; `None` when there will be no more. After a failure nothing more is put, and what is put is committed.
    fn next(&self) -> Option<Task<K::Put>> {
        let mut state = self.lock();
        loop {
            let task = match state.to_commit.pop() {
                Some((at, put)) => Some(Task::Commit(at, put)),
                None if state.error.is_some() => None,
                None => state.to_put.pop_last().map(|(_, at)| Task::Put(at)),
            };
            if task.is_some() {
                state.active += 1;
                return task;
            }
            if state.active == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn put(&self, at: usize) -> Result<(), Error> {
        let Some(entry) = self.entries.get(at) else { return Ok(()) };
        if self.progress.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let info = self.source.info(entry);
        self.progress.started(&info.path);
        let put = self.sink.put(self.source, entry);
        self.progress.ended(&info.path, put.is_ok().then_some(info.nar_size));
        let put = put.map_err(|error| error_of(Some(&info.path), error))?;
        self.progress.unpacked(info.nar_size);
        let mut state = self.lock();
        if K::VISIBLE == Visible::OnceReferencesAre && state.lacking.get(at) == Some(&0) {
            state.to_commit.push((at, put));
        } else {
            state.put.insert(at, put);
        }
        Ok(())
    }

    fn commit(&self, at: usize, put: K::Put) -> Result<(), Error> {
        self.sink.commit(vec![put]).map_err(Into::into)?;
        let mut state = self.lock();
        for referrer in self.referrers.get(at).into_iter().flatten() {
            let Some(lacking) = state.lacking.get_mut(*referrer) else { continue };
            *lacking -= 1;
            if *lacking == 0
                && let Some(put) = state.put.remove(referrer)
            {
                state.to_commit.push((*referrer, put));
            }
        }
        Ok(())
    }

    /// Commits what is to become visible at the end: those paths that refer to none that was not put.
    fn finish(self) -> Result<(), Error> {
        let State { mut put, error, .. } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if K::VISIBLE == Visible::AtTheEnd {
            let mut refused = vec![false; self.entries.len()];
            let mut complete = Vec::with_capacity(put.len());
            for at in 0..self.entries.len() {
                let is_refused = refused.get(at).copied().unwrap_or(true);
                match put.remove(&at).filter(|_| !is_refused) {
                    Some(put) => complete.push(put),
                    None => self.referrers.get(at).into_iter().flatten().for_each(|referrer| {
                        if let Some(referrer) = refused.get_mut(*referrer) {
                            *referrer = true;
                        }
                    }),
                }
            }
            if !complete.is_empty() {
                self.sink.commit(complete).map_err(Into::into)?;
            }
        }
        error.map_or(Ok(()), Err)
    }
}

/// `path`: the one that it is about, if that is known.
fn error_of<S: Into<Error>, K: Into<Error>>(path: Option<&StorePath>, error: TransferError<S, K>) -> Error {
    let name = path.map_or_else(|| "a path".to_owned(), ToString::to_string);
    match error {
        TransferError::Source(error) => error.into(),
        TransferError::Sink(error) => error.into(),
        TransferError::Changed => Error::Usage(format!("{name}: its files have been changed; see 'narval verify'")),
        // A cache's own errors come so.
        TransferError::Nar(error) => match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => Error::Usage(format!("cannot read {name}: {error}")),
        },
    }
}
