//! Copying paths from one store into another.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;

use narval_nix::{PathInfo, TrustedKeys};
use narval_store::{LocalStore, NarReader, Prepared, StoreError};

use crate::fetch::Hashes;
use crate::resolve::in_order;
use crate::{Destination, Error};
use narval_cache::CacheError;

const BUFFER_LEN: usize = 256 * 1024;

/// Copies paths of a store into another one: how many were not there. `infos` is closed: all that a path refers to is among
/// them, or in the other store. With `keys` a path must be signed by one of them, or be named by its contents.
///
/// # Errors
/// When a path can't be read, is not what its store has registered, is not trusted, or can't be written. What was
/// complete before stays, with all that it refers to.
pub fn copy_between_stores(
    from: &Destination,
    infos: &[Arc<PathInfo>],
    to: &Destination,
    keys: Option<&TrustedKeys>,
) -> Result<usize, Error> {
    let mut missing = Vec::new();
    if to.exists() {
        // Also what is there: it must not be collected before what refers to it.
        to.keep(&infos.iter().map(|info| info.path.clone()).collect::<Vec<_>>())?;
    }
    for info in infos {
        if !to.is_valid(&info.path)? {
            // What was built there was not built here (Nix `local-store.cc addToStore`).
            missing.push(Arc::new(PathInfo { ultimate: false, ..(**info).clone() }));
        }
    }
    for info in &missing {
        check_trust(from, info, keys)?;
    }
    let missing = in_order(missing, |info| (info.path.clone(), info.references.iter().cloned().collect()));
    if missing.is_empty() {
        return Ok(0);
    }
    if let Some(daemon) = to.daemon() {
        let nars = missing.iter().map(|info| {
            let nar = NarReader::open(&from.store().real_path(&info.path)).map_err(io::Error::other)?;
            Ok(((**info).clone(), nar))
        });
        let added = daemon.add_multiple_to_store(missing.len() as u64, nars, false);
        added.map_err(|error| Error::Store(StoreError::from(error)))?;
        return Ok(missing.len());
    }
    let store = to.open()?;
    store.remove_leftovers()?;
    missing.iter().try_for_each(|info| unpack(from, info, &store))?;
    Ok(missing.len())
}

fn check_trust(from: &Destination, info: &PathInfo, keys: Option<&TrustedKeys>) -> Result<(), Error> {
    let Some(keys) = keys else { return Ok(()) };
    let fingerprint = info.fingerprint(from.store_dir());
    let signed = keys.find_valid(fingerprint.as_bytes(), &info.signatures).is_some();
    if signed || info.check_by_contents(from.store_dir()).is_some() {
        return Ok(());
    }
    let signers: BTreeSet<_> = info.signatures.iter().map(|signature| signature.key_name()).collect();
    let signers = if signers.is_empty() { "nobody".to_owned() } else { Vec::from_iter(signers).join(", ") };
    Err(CacheError::Untrusted { cache: from.name(), path: info.path.clone(), signers }.into())
}

fn unpack(from: &Destination, info: &PathInfo, store: &LocalStore) -> Result<(), Error> {
    // Each after what it refers to: it is valid as soon as it is complete, and nobody changes it in between.
    let Prepared::Missing(mut incoming) = store.prepare_to_register(info)? else { return Ok(()) };
    let mut nar = NarReader::open(&from.store().real_path(&info.path)).map_err(|error| unreadable(info, &error))?;
    let (mut hashes, mut buffer) = (Hashes::of(info, from.store_dir()), vec![0; BUFFER_LEN]);
    loop {
        let len = nar.read(&mut buffer).map_err(|error| unreadable(info, &error))?;
        let bytes = buffer.get(..len).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        hashes.update(bytes);
        incoming.write_unhashed(bytes)?;
    }
    let hashed = hashes.finish();
    if hashed.nar != info.nar_hash || !hashed.fits_the_name() {
        return Err(Error::Usage(format!("{}: its files have been changed; see 'narval verify'", info.path)));
    }
    incoming.commit_hashed(hashed.nar)?;
    Ok(())
}

fn unreadable(info: &PathInfo, error: &dyn std::fmt::Display) -> Error {
    Error::Usage(format!("cannot read {}: {error}", info.path))
}
