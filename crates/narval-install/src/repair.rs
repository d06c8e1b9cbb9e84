//! Fetching broken paths again. A repaired path is exchanged for the broken one in one step.

use std::sync::Arc;

use narval_nix::PathInfo;

use crate::unpack::Pipeline;
use crate::{Destination, Error, Options, Progress, Trace};
use narval_cache::Caches;
use narval_client::Client;

/// Replaces the files of valid paths. A replacement must have the registered hash: a cache that has another NAR for the
/// path is of no use.
///
/// # Errors
/// The first path that could not be repaired; those after it are tried all the same.
pub fn repair(
    destination: &Destination,
    options: &Options,
    client: &Arc<Client>,
    broken: &[PathInfo],
    progress: &Arc<Progress>,
) -> Result<(), Error> {
    let keys = options.keys.clone();
    let caches = Caches::open(&options.caches, client, destination.store_dir(), keys, options.check_signatures)?;
    let (store, trace) = (destination.open()?, Trace::new(false));
    let pipeline = Pipeline::new(&caches, &store, progress, &trace, 1);
    let mut first = None;
    for info in broken {
        if let Err(error) = pipeline.repair(info) {
            first.get_or_insert(error);
        }
    }
    if options.durable {
        store.sync()?;
    }
    first.map_or(Ok(()), Err)
}
