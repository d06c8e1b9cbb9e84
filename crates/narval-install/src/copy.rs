//! Copying closures between caches, folders and stores.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};

use narval_cache::encode::Encoding;
use narval_cache::{CacheError, CacheFolder, Caches, Found};
use narval_nix::nar::{Decoder, NarError};
use narval_nix::{NarInfo, PathInfo, SecretKey, StoreDir, TrustedKeys};
use narval_store::Source;

use crate::fetch::{Alone, VerifiedNar, damaged};
use crate::resolve::closure;
use crate::transfer::transfer;
use crate::{Destination, Error, Progress, Wanted};

/// The level of zstd.
const LEVEL: i32 = 3;

/// Copies closures from caches into a folder. The file of a path is taken over as it is, and published once it has been
/// decompressed and its NAR found to be the one of the narinfo. Returns how many paths were missing.
///
/// # Errors
/// The first path that failed; what was copied before stays.
pub fn copy_from_caches(caches: &Caches, roots: &[Wanted], to: &CacheFolder) -> Result<usize, Error> {
    let found = closure(caches, roots, &|_| Ok(false))?;
    let entries = found.into_iter().map(|found| CacheEntry { info: found.info.path_info(0), found }).collect();
    transfer(
        &FromCaches { caches, alone: Alone::default() },
        entries,
        &to.sink(Encoding::None, None),
        1,
        &Progress::default(),
    )
}

/// Copies paths of a store into a folder. Returns how many were missing.
///
/// # Errors
/// The first path that failed; what was copied before stays.
pub fn copy_from_store(
    from: &Destination,
    infos: Vec<PathInfo>,
    to: &CacheFolder,
    compress: bool,
    key: Option<&SecretKey>,
) -> Result<usize, Error> {
    let encoding = if compress { Encoding::Zstd(LEVEL) } else { Encoding::None };
    transfer(from.store(), infos, &to.sink(encoding, key), 1, &Progress::default())
}

/// Copies paths of a store into another one. Returns how many were missing. `infos` is closed: all that a path refers to is
/// among them, or in the other store. With `keys` a path must be signed by one of them, or be named by its contents.
///
/// # Errors
/// If a path cannot be read, is not what its store has registered, is not trusted, or cannot be written. What was
/// complete before stays, with all that it refers to.
pub fn copy_between_stores(
    from: &Destination,
    infos: Vec<PathInfo>,
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
            check_trust(from, &info, keys)?;
            // What was built there was not built here (Nix `local-store.cc addToStore`).
            missing.push(PathInfo { ultimate: false, ..info });
        }
    }
    if missing.is_empty() {
        return Ok(0);
    }
    if let Some(daemon) = to.daemon() {
        return transfer(from.store(), missing, daemon, 1, &Progress::default());
    }
    let store = to.open()?;
    store.remove_leftovers()?;
    transfer(from.store(), missing, &store, 1, &Progress::default())
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

/// Caches as a source that one thread reads.
struct FromCaches<'a> {
    caches: &'a Caches,
    alone: Alone,
}

struct CacheEntry {
    found: Found,
    info: PathInfo,
}

impl Source for FromCaches<'_> {
    type Entry = CacheEntry;
    type Error = Error;

    fn store_dir(&self) -> &StoreDir {
        self.caches.store_dir()
    }

    fn info<'a>(&self, entry: &'a CacheEntry) -> &'a PathInfo {
        &entry.info
    }

    fn narinfo<'a>(&self, entry: &'a CacheEntry) -> Option<&'a NarInfo> {
        Some(&entry.found.info)
    }

    fn nar<'a>(
        &'a self,
        entry: &'a CacheEntry,
        file: Option<&'a mut (dyn Write + Send)>,
    ) -> Result<Box<dyn Read + Send + 'a>, Error> {
        let nar = VerifiedNar::open(&entry.found, self.store_dir(), &self.alone.surroundings(), file)?;
        let parser = Some(Decoder::with_nar_size(entry.info.nar_size));
        Ok(Box::new(CacheNar { found: &entry.found, nar, parser }))
    }
}

/// A NAR that is parsed as it passes. Its errors are those of [`Error`], inside of [`io::Error`].
struct CacheNar<'a> {
    found: &'a Found,
    nar: VerifiedNar<'a>,
    /// `None` once the NAR has ended.
    parser: Option<Decoder>,
}

impl CacheNar<'_> {
    fn parse(&mut self, mut bytes: &[u8]) -> Result<(), NarError> {
        if bytes.is_empty() {
            return self.parser.take().map_or(Ok(()), |parser| parser.finish());
        }
        let Some(parser) = &mut self.parser else { return Ok(()) };
        while let (used, Some(_)) = parser.next(bytes)? {
            bytes = bytes.get(used..).unwrap_or_default();
        }
        Ok(())
    }
}

impl Read for CacheNar<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.nar.next(buffer).map_err(io::Error::other)?;
        let parsed = self.parse(buffer.get(..len).unwrap_or_default());
        parsed.map_err(|error| io::Error::other(damaged(self.found, format!("it is no valid NAR: {error}"))))?;
        Ok(len)
    }
}
