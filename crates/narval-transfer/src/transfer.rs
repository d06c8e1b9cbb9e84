//! The walk between a source and a sink: the largest NAR first, on several threads, in bounded memory, and each path
//! visible after its references. Installing, copying and pushing are this walk between different ends.

use narval_store::{Sink, Source, Visible};

use crate::cores::Cores;
use crate::error::Error;
use crate::in_order::put_in_order;
use crate::progress::Progress;
use crate::walk::Transfer;

/// Transfers those paths that the sink does not have, on up to `threads` threads. Every reference of a path must be
/// among them, or in the sink. Returns how many the sink did not have.
///
/// # Errors
/// The first failure, with the number of others. Paths that were put before are visible if their references
/// are.
pub fn transfer<S: Source, K: Sink>(
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
    let transfer = Transfer::new(source, sink, (&cores, threads), progress);
    std::thread::scope(|scope| transfer.add_all(entries, scope));
    transfer.finish(None)?;
    Ok(count)
}
