//! Registering: which of the paths that were unpacked become valid, and the way through a daemon.

mod daemon;

use std::collections::HashSet;

use narval_nix::{PathInfo, StorePath};

use crate::{Destination, Error};

pub(crate) use daemon::ToDaemon;

/// Those paths all of whose references are valid or among them: after a failure not all are.
pub(crate) fn closed_subset(destination: &Destination, mut done: Vec<PathInfo>) -> Result<Vec<PathInfo>, Error> {
    let mut names: HashSet<_> = done.iter().map(|info| info.path.clone()).collect();
    let mut valid: HashSet<StorePath> = HashSet::new();
    for reference in done.iter().flat_map(|info| &info.references) {
        if !names.contains(reference) && !valid.contains(reference) && destination.is_valid(reference)? {
            valid.insert(reference.clone());
        }
    }
    loop {
        let before = done.len();
        done.retain(|info| {
            info.references.iter().all(|reference| names.contains(reference) || valid.contains(reference))
        });
        if done.len() == before {
            return Ok(done);
        }
        names = done.iter().map(|info| info.path.clone()).collect();
    }
}

/// The first path that was unpacked and not registered, with the reference for which it was not.
pub(crate) fn left_out(
    destination: &Destination,
    unpacked: &[PathInfo],
    complete: &[PathInfo],
) -> Result<Option<Error>, Error> {
    let registered: HashSet<_> = complete.iter().map(|info| &info.path).collect();
    for info in unpacked.iter().filter(|info| !registered.contains(&info.path)) {
        for reference in &info.references {
            if !registered.contains(reference) && !destination.is_valid(reference)? {
                return Ok(Some(Error::Reference { path: info.path.clone(), reference: reference.clone() }));
            }
        }
    }
    Ok(None)
}
