//! The one walk between a source and a sink: the largest NAR first on several threads, in bounded memory, and each path visible
//! after what it refers to. Installing, copying and pushing are this walk between different ends.

mod visible;
mod walk;
mod watched;

use narval_store::{InOrderError, Sink, Source, TransferError, Visible};

pub(crate) use walk::Transfer;
pub(crate) use watched::Watched;

use crate::fetch::Cores;
use crate::resolve::in_order;
use crate::trace::Trace;
use crate::{Error, Progress};

/// Who watches a transfer: counters for those who show it, and a timeline.
#[derive(Clone, Copy)]
pub(crate) struct Watchers<'a> {
    pub(crate) progress: &'a Progress,
    pub(crate) trace: &'a Trace,
}

/// Watchers of a transfer that nobody watches.
pub(crate) struct Unwatched {
    progress: Progress,
    trace: Trace,
}

impl Default for Unwatched {
    fn default() -> Self {
        Self { progress: Progress::default(), trace: Trace::new(false) }
    }
}

impl Unwatched {
    pub(crate) const fn watchers(&self) -> Watchers<'_> {
        Watchers { progress: &self.progress, trace: &self.trace }
    }
}

/// Transfers those paths that the sink does not have, on up to `threads` threads. All of them are known: what a path refers to
/// is among them, or the sink has it. Returns how many the sink did not have.
///
/// # Errors
/// The first failure, with the number of others. What was put before it is visible if all that it refers to is.
pub(crate) fn transfer<S: Source, K: Sink>(
    source: &S,
    entries: Vec<S::Entry>,
    sink: &K,
    threads: usize,
    watchers: Watchers<'_>,
) -> Result<usize, Error>
where
    S::Error: Into<Error>,
    K::Error: Into<Error>,
{
    let progress = watchers.progress;
    let missing = sink.missing(&entries.iter().map(|entry| &source.info(entry).path).collect::<Vec<_>>());
    let missing = missing.map_err(Into::into)?;
    let entries: Vec<_> = entries.into_iter().filter(|entry| missing.contains(&source.info(entry).path)).collect();
    for entry in &entries {
        progress.found(source.info(entry).nar_size, source.narinfo(entry).and_then(|narinfo| narinfo.file_size));
    }
    progress.walk_done();
    let count = entries.len();
    if K::VISIBLE == Visible::WhenPut {
        put_in_order(source, entries, sink, progress)?;
        return Ok(count);
    }
    let cores = Cores::new(threads);
    let transfer = Transfer::new(source, sink, (&cores, threads), watchers);
    std::thread::scope(|scope| transfer.add_all(entries, scope));
    transfer.finish(None)?;
    Ok(count)
}

/// Puts paths that become visible one by one, each after what it refers to. A path whose source fails is taken from elsewhere;
/// what other processes have added meanwhile is left out.
fn put_in_order<S: Source, K: Sink>(
    source: &S,
    entries: Vec<S::Entry>,
    sink: &K,
    progress: &Progress,
) -> Result<(), Error>
where
    S::Error: Into<Error>,
    K::Error: Into<Error>,
{
    let mut left = in_order(entries, |entry| {
        let info = source.info(entry);
        (info.path.clone(), info.references.iter().cloned().collect())
    });
    while !left.is_empty() {
        let Err(InOrderError { at, error }) = sink.put_in_order(&Watched::shown(source, progress), &left) else {
            return Ok(());
        };
        let error = match error {
            TransferError::Source(error) => error,
            TransferError::Sink(error) => return Err(error.into()),
        };
        let Some(failed) = at.and_then(|at| left.get_mut(at)) else { return Err(error.into()) };
        match source.instead_of(failed, &error) {
            // Another build of it may refer to other paths, of which nothing is known here.
            Some(other) if source.info(&other).references == source.info(failed).references => *failed = other,
            _ => return Err(error.into()),
        }
        let missing = sink.missing(&left.iter().map(|entry| &source.info(entry).path).collect::<Vec<_>>());
        let missing = missing.map_err(Into::into)?;
        left.retain(|entry| missing.contains(&source.info(entry).path));
    }
    Ok(())
}
