//! Fetches damaged paths again, and replaces each atomically.

use std::sync::Arc;

use narval_cache::BinaryCaches;
use narval_client::Client;
use narval_nix::PathInfo;
use narval_store::TransferError;

use crate::fetch::{FromCaches, mismatch};
use crate::options::Options;
use crate::unpack::ToStore;
use narval_cache::Wanted;
use narval_transfer::{Cores, Watched};
use narval_transfer::{Destination, Error, Progress};

/// Replaces the files of valid paths. A replacement must have the registered hash: a cache with another NAR for the
/// path cannot be used.
///
/// # Errors
/// The first path that could not be repaired; the others are tried nevertheless.
pub fn repair(
    destination: &Destination,
    options: &Options,
    client: &Arc<Client>,
    broken: &[PathInfo],
    progress: &Arc<Progress>,
) -> Result<(), Error> {
    let keys = options.keys.clone();
    let caches = BinaryCaches::open(&options.caches, client, destination.store_dir(), keys, options.check_signatures)?;
    let (store, cores) = (destination.open()?, Cores::new(1));
    let source = FromCaches::new(&caches, &cores, progress);
    let sink = ToStore { store: &store, durable: options.durable };
    broken.iter().for_each(|info| progress.found(info.nar_size, None));
    progress.walk_done();
    let mut first = None;
    for info in broken {
        if progress.is_interrupted() {
            return Err(Error::Interrupted);
        }
        if let Err(error) = repair_one(&source, &sink, info) {
            first.get_or_insert(error);
        }
    }
    if options.durable {
        destination.make_last()?;
    }
    first.map_or(Ok(()), Err)
}

fn repair_one(source: &FromCaches<'_>, sink: &ToStore<'_>, info: &PathInfo) -> Result<(), Error> {
    let found = source.caches.find(&Wanted::Path(info.path.clone()))?;
    if found.info.nar_hash != info.nar_hash {
        return Err(mismatch(&found, "NarHash", found.info.nar_hash, info.nar_hash));
    }
    sink.repair(&Watched::shown(source, source.progress), &found.into()).map_err(|error| match error {
        TransferError::Source(error) | TransferError::Sink(error) => error,
    })
}
