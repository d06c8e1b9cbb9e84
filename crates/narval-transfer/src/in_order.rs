//! Paths that become visible one by one, each after its references.

use narval_store::{InOrderError, Sink, Source, TransferError};

use crate::error::Error;
use crate::order::in_order;
use crate::progress::Progress;
use crate::watched::Watched;

/// Puts paths, each after its references. If a source fails, the path is taken from elsewhere; paths that other
/// processes have added meanwhile are skipped.
pub(super) fn put_in_order<S: Source, K: Sink>(
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
        match source.fallback(failed, &error) {
            // Another build of it may have other references, which are unknown here.
            Some(other) if source.info(&other).references == source.info(failed).references => *failed = other,
            _ => return Err(error.into()),
        }
        let missing = sink.missing(&left.iter().map(|entry| &source.info(entry).path).collect::<Vec<_>>());
        let missing = missing.map_err(Into::into)?;
        left.retain(|entry| missing.contains(&source.info(entry).path));
    }
    Ok(())
}
