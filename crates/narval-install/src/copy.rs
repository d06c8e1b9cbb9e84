//! Copying a closure into a cache folder: from caches as it is, or from a store with compression.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

use narval_nix::{NarInfo, PathInfo, SecretKey, StoreDir, StorePath};
use narval_store::NarReader;

use crate::fetch::read_nar;
use crate::resolve::closure;
use crate::{Destination, Error, Wanted};
use narval_cache::encode::{EncodeError, Encoding};
use narval_cache::{CacheFolder, Caches, Found, WrittenFile};

/// The level of zstd.
const LEVEL: i32 = 3;

/// Copies closures from caches. The file of a path is taken over as it is, and published once it has been decompressed
/// and its NAR found to be the one of the narinfo.
///
/// # Errors
/// As for each path; what was copied stays.
pub fn copy_from_caches(caches: &Caches, roots: &[Wanted], to: &CacheFolder) -> Result<usize, Error> {
    let mut copied = 0;
    for found in closure(caches, roots, &|_| Ok(false))? {
        if !has(to, &found.info.path)? {
            take_from_cache(&found, caches.store_dir(), to)?;
            copied += 1;
        }
    }
    Ok(copied)
}

/// Copies paths of a store.
///
/// # Errors
/// As for each path; what was copied stays.
pub fn copy_from_store(
    from: &Destination,
    infos: &[Arc<PathInfo>],
    to: &CacheFolder,
    compress: bool,
    key: Option<&SecretKey>,
) -> Result<usize, Error> {
    let mut copied = 0;
    for info in infos {
        if !has(to, &info.path)? {
            pack(&from.store().real_path(&info.path), info, from.store_dir(), to, (compress, key))?;
            copied += 1;
        }
    }
    Ok(copied)
}

fn has(folder: &CacheFolder, path: &StorePath) -> Result<bool, Error> {
    Ok(folder.narinfo(&path.hash_part())?.is_some_and(|info| info.path == *path))
}

/// Takes a path over from a cache.
fn take_from_cache(found: &Found, store_dir: &StoreDir, to: &CacheFolder) -> Result<(), Error> {
    let mut incoming = to.write_nar()?;
    read_nar(found, store_dir, Some(&mut incoming), &mut |_, _| Ok(()))?;
    let mut info = found.info.clone();
    set_file(&mut info, incoming.commit(found.info.compression)?);
    Ok(to.write_narinfo(&info)?)
}

/// Packs a path of a store.
fn pack(
    real: &Path,
    info: &PathInfo,
    store_dir: &StoreDir,
    to: &CacheFolder,
    (compress, key): (bool, Option<&SecretKey>),
) -> Result<(), Error> {
    let changed = || Error::Usage(format!("{}: its files have been changed; see 'narval verify'", info.path));
    let mut nar = NarReader::open(real).map_err(|error| Error::LocalStore { error: error.into() })?;
    let mut incoming = to.write_nar()?;
    let encoding = if compress { Encoding::Zstd(LEVEL) } else { Encoding::None };
    let encoded = encoding.encode(&mut nar, info.nar_size, info.nar_hash, &mut |bytes| incoming.write_all(bytes));
    encoded.map_err(|error| match error {
        EncodeError::Corrupt => changed(),
        EncodeError::Nar(error) if error.kind() == ErrorKind::UnexpectedEof => changed(),
        EncodeError::Nar(source) | EncodeError::Sink(source) => Error::Copy { path: info.path.clone(), source },
    })?;
    let compression = encoding.compression();
    let mut narinfo = NarInfo::new(info, "", compression);
    set_file(&mut narinfo, incoming.commit(compression)?);
    narinfo.signatures.extend(key.map(|key| key.sign(info.fingerprint(store_dir).as_bytes())));
    Ok(to.write_narinfo(&narinfo)?)
}

fn set_file(info: &mut NarInfo, written: WrittenFile) {
    info.url = written.url;
    (info.file_hash, info.file_size) = (Some(written.file_hash.into()), Some(written.file_size));
}
