//! Copying closures between caches, folders and stores.

use narval_cache::{BinaryCaches, CacheError, signature_advice};
use narval_codec::encode::Encoding;
use narval_nix::{PathInfo, SecretKey, TrustedKeys};

use crate::fetch::FromCaches;
use crate::resolve::closure;
use crate::unpack::ToStore;
use narval_cache::Wanted;
use narval_push::{PushOptions, Target, UPLOADS_MAX, send};
use narval_transfer::{Cores, transfer};
use narval_transfer::{Destination, Error, Progress};

/// The zstd level.
const LEVEL: i32 = 3;

/// Copies closures from caches into another cache. The file of a path is copied unchanged, and published once it was
/// decompressed and its NAR matches the narinfo. Returns how many paths were missing.
///
/// # Errors
/// The first path that failed; paths copied before it are kept.
pub fn copy_from_caches(caches: &BinaryCaches, roots: &[Wanted], to: &Target) -> Result<usize, Error> {
    let entries = closure(caches, roots, &|_| Ok(false))?.into_iter().map(Into::into).collect();
    let uploads = if to.is_folder() { 1 } else { UPLOADS_MAX / 2 };
    let (cores, unwatched) = (Cores::new(uploads), Progress::default());
    let source = FromCaches::new(caches, &cores, &unwatched);
    let options = PushOptions { encoding: Encoding::None, key: None, uploads, build_seconds: None };
    send(&source, entries, to, &options, &unwatched)
}

/// Copies paths of a store into a cache. Returns how many were missing.
///
/// # Errors
/// The first path that failed; paths copied before it are kept.
pub fn copy_from_store(
    from: &Destination,
    infos: Vec<PathInfo>,
    to: &Target,
    compress: bool,
    key: Option<SecretKey>,
) -> Result<usize, Error> {
    let encoding = if compress { Encoding::Zstd(LEVEL) } else { Encoding::None };
    let uploads = if to.is_folder() { 1 } else { UPLOADS_MAX / 2 };
    let options = PushOptions { encoding, key, uploads, build_seconds: None };
    send(from.store(), infos, to, &options, &Progress::default())
}

/// Copies paths of a store into another one. Returns how many were missing. `infos` must be closed: every reference of
/// a path is among them, or in the other store. With `keys`, a path must be signed by one of them, or be
/// content-addressed.
///
/// # Errors
/// If a path cannot be read, differs from what its store has registered, is not trusted, or cannot be written.
/// Paths that were complete before are kept, with their closures.
pub fn copy_between_stores(
    from: &Destination,
    infos: Vec<PathInfo>,
    to: &Destination,
    keys: Option<&TrustedKeys>,
) -> Result<usize, Error> {
    let mut missing = Vec::new();
    if to.exists() {
        // Also valid ones: they must not be collected before the paths that refer to them.
        to.keep(&infos.iter().map(|info| info.path.clone()).collect::<Vec<_>>())?;
    }
    for info in infos {
        if !to.is_valid(&info.path)? {
            check_trust(from, &info, keys)?;
            // Paths built in the source store were not built here (Nix `local-store.cc addToStore`).
            missing.push(PathInfo { ultimate: false, ..info });
        }
    }
    if missing.is_empty() {
        return Ok(0);
    }
    let unwatched = Progress::default();
    if let Some(daemon) = to.daemon() {
        return transfer(from.store(), missing, daemon, 1, &unwatched);
    }
    let store = to.open()?;
    store.remove_leftovers()?;
    let sink = ToStore { store: &store, durable: false };
    transfer(from.store(), missing, &sink, 1, &unwatched)
}

fn check_trust(from: &Destination, info: &PathInfo, keys: Option<&TrustedKeys>) -> Result<(), Error> {
    let Some(keys) = keys else { return Ok(()) };
    let fingerprint = info.fingerprint(from.store_dir());
    let signed = keys.find_valid(fingerprint.as_bytes(), &info.signatures).is_some();
    if signed || info.check_by_contents(from.store_dir()).is_some() {
        return Ok(());
    }
    let cache = from.name();
    let advice = signature_advice(&cache, &fingerprint, &info.signatures, &[]);
    Err(CacheError::Untrusted { cache, path: info.path.clone(), advice }.into())
}
