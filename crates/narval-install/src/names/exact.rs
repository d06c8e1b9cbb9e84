//! Exact indexes: which path each attribute has, published by whoever has evaluated it, as a path of a cache that can be searched.
//!
//! The index is one file in a store path `narval-names-TIME`, so that caches keep, sign, send and collect it as any other path. Unlike with other paths,
//! its contents do not vouch for it: a trusted key must have signed it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use narval_cache::{BinaryCaches, TrustedNarInfo, Wanted};
use narval_client::{Client, Scheme, Url};
use narval_files::TemporaryFile;
use narval_names::{Index, NamesError};
use narval_nix::{PathInfo, StoreDir, StorePath, StorePathName, TrustedKeys};
use narval_store::{LocalStore, StoreConfig, lock_file};

use super::caches::{Query, search};
use super::channel::{Channel, NamesFolder, TEMPORARY, file_name, names_error};
use crate::inspect;
use narval_transfer::{Destination, Error};

/// How the names of published indexes begin. What follows is when they were made, in seconds since 1970.
const PACKAGE: &str = "narval-names";
/// The largest index that is fetched.
const LEN_MAX: u64 = 256 * 1024 * 1024;
/// The most indexes of a cache that are looked at: those that are not signed are skipped.
const TRIED_MAX: usize = 8;

impl NamesFolder {
    /// The exact index of a cache that was fetched last, and how long ago the cache was asked. The outer `None`: it was not asked yet.
    pub(crate) fn exact(&self, cache: &Url) -> Result<Option<Option<(Index, Duration)>>, Error> {
        let pointer = self.pointer(cache);
        let (text, age) = match fs::read_to_string(&pointer) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => {
                let age =
                    fs::metadata(&pointer).and_then(|found| found.modified()).ok().and_then(|time| time.elapsed().ok());
                (text.map_err(|error| Error::file("read", &pointer, error))?, age.unwrap_or_default())
            }
        };
        let Ok(path) = StorePath::parse(text.trim()) else { return Ok(Some(None)) };
        match Index::open(&self.path().join(path.base_name())) {
            Ok(index) => Ok(Some(Some((index, age)))),
            // It is fetched again.
            Err(_) => Ok(None),
        }
    }

    fn pointer(&self, cache: &Url) -> std::path::PathBuf {
        self.path().join(format!("{}.exact", file_name(&cache.to_string())))
    }

    /// Asks a cache for its newest exact index that a trusted key has signed, and fetches it if it is newer than the one that is there. Returns whether
    /// the cache has one.
    ///
    /// # Errors
    /// If the cache cannot be asked, or the index cannot be fetched or written.
    pub fn refresh_exact(
        &self,
        cache: &Url,
        client: &Arc<Client>,
        (keys, check_signatures): (&TrustedKeys, bool),
        store_dir: &StoreDir,
        lock_timeout: Duration,
    ) -> Result<bool, Error> {
        if !matches!(cache.scheme(), Scheme::Http | Scheme::Https) {
            return Ok(false);
        }
        self.create()?;
        let pointer = self.pointer(cache);
        let _lock = lock_file(&pointer.with_extension("lock"), lock_timeout)?;
        let before = fs::read_to_string(&pointer).ok().and_then(|text| StorePath::parse(text.trim()).ok());
        let found = search(std::slice::from_ref(cache), client, Query::Package(PACKAGE))?;
        let caches =
            BinaryCaches::open(std::slice::from_ref(cache), client, store_dir, keys.clone(), check_signatures)?;
        let mut chosen = before.clone().filter(|path| Index::open(&self.path().join(path.base_name())).is_ok());
        for candidate in found.candidates.iter().take(TRIED_MAX) {
            let path = &candidate.path;
            // A cache that is put back to yesterday does not take names back.
            if made(path).is_none() || chosen.as_ref().is_some_and(|chosen| made(chosen) >= made(path)) {
                continue;
            }
            let found = caches.find(&Wanted::Path(path.clone()))?;
            let fingerprint = found.info.fingerprint(store_dir);
            if check_signatures && keys.find_valid(fingerprint.as_bytes(), &found.info.signatures).is_none() {
                tracing::warn!("{cache}: {path} has no signature by a trusted key; its names are not used");
                continue;
            }
            self.fetch(cache, &caches, &found)?;
            chosen = Some(path.clone());
            break;
        }
        let text = chosen.as_ref().map_or("-", StorePath::base_name);
        let written = TemporaryFile::create(self.path(), TEMPORARY, 0o644).and_then(|temporary| {
            temporary.file().write_all(text.as_bytes())?;
            temporary.persist(&pointer)
        });
        written.map_err(|error| Error::file("write", &pointer, error))?;
        if let Some(old) = before.filter(|before| chosen.as_ref() != Some(before)) {
            // Another cache may have it, too: it is fetched again then.
            drop(fs::remove_file(self.path().join(old.base_name())));
        }
        Ok(chosen.is_some())
    }

    fn fetch(&self, cache: &Url, caches: &BinaryCaches, found: &TrustedNarInfo) -> Result<(), Error> {
        let path = &found.info.path;
        let fail = |source| Error::Names { channel: cache.to_string(), source };
        if found.info.nar_size > LEN_MAX {
            return Err(fail(NamesError::Limit { what: "its index of names", limit: LEN_MAX, unit: "bytes" }));
        }
        let temporary = TemporaryFile::create(self.path(), TEMPORARY, 0o644).map_err(|error| fail(error.into()))?;
        let mut out = BufWriter::new(temporary.file());
        inspect::cat(caches, &Wanted::Path(path.clone()), "", &mut out)?;
        out.flush().map_err(|error| fail(error.into()))?;
        drop(out);
        Index::open(temporary.path()).map_err(fail)?;
        temporary.persist(&self.path().join(path.base_name())).map_err(|error| fail(error.into()))
    }
}

/// When a published index was made.
fn made(path: &StorePath) -> Option<u64> {
    path.name().strip_prefix(PACKAGE)?.strip_prefix('-')?.parse().ok()
}

/// Adds an exact index to a new store in a folder, from where it can be pushed.
///
/// # Errors
/// If it is no exact index, or the store cannot be written.
pub fn prepare_exact(file: &Path, root: &Path) -> Result<(Destination, PathInfo), Error> {
    let channel = Channel::parse(&std::path::absolute(file).unwrap_or_else(|_| file.to_owned()).display().to_string())?;
    let index = Index::open(file).map_err(|source| names_error(&channel, source))?;
    let made = index.fact("made").and_then(|made| made.parse::<u64>().ok());
    let Some(made) = made.filter(|_| index.counts().exact > 0) else {
        return Err(Error::Usage(format!(
            "{} does not say which paths names have: 'narval names build' makes such a file",
            file.display()
        )));
    };
    let config = StoreConfig::for_root(root).map_err(|error| Error::Usage(error.to_string()))?;
    let store = LocalStore::open(config.clone())?;
    let name = StorePathName::parse(&format!("{PACKAGE}-{made}"));
    let name = name.map_err(|error| Error::Usage(format!("{}: {error}", file.display())))?;
    let info = store.add(file, &name, BTreeSet::new(), &|| Ok(()))?;
    store.register(std::slice::from_ref(&info))?;
    Ok((Destination::new(config), info))
}
