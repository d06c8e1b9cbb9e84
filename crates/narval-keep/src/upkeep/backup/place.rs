//! Where backups are.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use narval_client::clock;
use narval_nix::Sha256;

use super::{BackupSummary, Manifest, VERSION};
use crate::data::Data;
use crate::error::{DataError, io_error};
use crate::location::StorageLocation;
use crate::name::CacheName;
use crate::storage::{Below, Bucket, BucketOptions, CacheStorage, Folder, Storage};

/// Folders of the default cache's files.
pub(super) const BACKUPS: &str = "_narval/backups";
pub(super) const REMOVED: &str = "_narval/removed";
pub(super) const ROWS: &str = "_narval/rows";

/// The largest list of a backup's files, in bytes.
const MANIFEST_LEN_MAX: u64 = 256 << 20;

/// A folder or a bucket with backups.
pub(super) struct Shelf {
    place: StorageLocation,
    pub(super) storage: Box<dyn Storage>,
    files: Box<dyn CacheStorage>,
}

impl Shelf {
    /// Opens it to be read.
    pub(super) fn open(place: &StorageLocation) -> Result<Self, DataError> {
        let storage = storage(place)?;
        let files = storage.open_cache(&CacheName::default());
        let files = files.map_err(|source| io_error("open the backups in", storage.place(), source))?;
        Ok(Self { place: place.clone(), storage, files })
    }

    /// Opens it for a new backup.
    pub(super) fn open_to_write(place: &StorageLocation) -> Result<Self, DataError> {
        let fail = |source| io_error("open the backups in", Path::new(&place.to_string()), source);
        let is_cache = match place {
            StorageLocation::Folder(path) => ["index.sqlite", "index.id"].iter().any(|file| path.join(file).exists()),
            StorageLocation::Bucket { url, folder, .. } => {
                let bucket = Bucket::open(&BucketOptions { url, folder, cache_size: None }).map_err(fail)?;
                bucket.id().map_err(fail)?.is_some()
            }
        };
        if is_cache {
            let reason = "it has a cache: backups need a place of their own".to_owned();
            return Err(DataError::IndexMismatch { folder: place.to_string().into(), reason });
        }
        if let StorageLocation::Folder(path) = place {
            // Private NARs and hashes of tokens are in it.
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path.join("caches"));
            made.map_err(fail)?;
        }
        let shelf = Self::open(place)?;
        shelf.storage.clear_up().map_err(fail)?;
        Ok(shelf)
    }

    /// The storage of another handle.
    pub(super) fn storage_again(&self) -> Result<Box<dyn Storage>, DataError> {
        storage(&self.place)
    }

    pub(super) fn fail(&self, action: &'static str) -> impl Fn(io::Error) -> DataError {
        move |source| io_error(action, self.storage.place(), source)
    }

    /// The names of the files of rows.
    pub(super) fn rows(&self) -> io::Result<HashSet<String>> {
        self.names(ROWS)
    }

    /// A bucket does not say in which folder a file is that stands apart.
    fn names(&self, folder: &str) -> io::Result<HashSet<String>> {
        let files = self.files.list(Below::Folder(folder))?.into_iter();
        Ok(files.filter_map(|file| file.name.rsplit('/').next().map(str::to_owned)).collect())
    }

    /// Stores a file, durably.
    pub(super) fn put(&self, name: &str, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let file = self.storage.incoming()?;
        write(&mut file.file())?;
        self.put_file(name, file)
    }

    pub(super) fn put_file(&self, name: &str, file: narval_files::TemporaryFile) -> io::Result<()> {
        file.file().sync_all()?;
        self.files.write(name, file)
    }

    /// Reads a file of rows. Its name is the hash of its contents.
    pub(super) fn read_rows(&self, name: &str, len_max: u64) -> io::Result<Vec<u8>> {
        let bytes = self.read(&format!("{ROWS}/{name}"), len_max)?;
        let hash = name.strip_suffix(".zst").and_then(|hash| Sha256::from_nix32(hash.as_bytes()).ok());
        if hash != Some(Sha256::of(&bytes)) {
            return Err(damaged(name));
        }
        Ok(bytes)
    }

    fn read(&self, name: &str, len_max: u64) -> io::Result<Vec<u8>> {
        let Some(file) = self.files.read(name)? else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("'{name}' is missing")));
        };
        let mut bytes = Vec::new();
        file.take(len_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > len_max { Err(damaged(name)) } else { Ok(bytes) }
    }

    /// Makes all that was written durable, and then the backup is there.
    pub(super) fn complete(&self, manifest: &Manifest) -> Result<(), DataError> {
        let fail = self.fail("complete the backup in");
        self.storage.sync().map_err(&fail)?;
        self.write_manifest(BACKUPS, manifest)?;
        self.storage.sync().map_err(fail)
    }

    /// Writes a list of a backup's files.
    pub(super) fn write_manifest(&self, folder: &str, manifest: &Manifest) -> Result<(), DataError> {
        let written = || -> io::Result<()> {
            let text = serde_json::to_string(manifest)?;
            let hash = Sha256::of(text.as_bytes());
            self.put(&format!("{folder}/{}.json", manifest.id), &mut |out| writeln!(out, "{text}\n{hash}"))
        };
        written().map_err(self.fail("write the list of a backup in"))
    }

    /// Removes a file, in a bucket not after `until`.
    pub(super) fn remove(&self, name: &str, until: Instant) -> io::Result<()> {
        if clock::instant() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.files.remove(name)
    }

    /// The lists in a folder, the oldest first.
    pub(super) fn manifests(&self, folder: &str) -> Result<Vec<Manifest>, DataError> {
        self.ids_in(folder)?.iter().map(|id| self.manifest_in(folder, id)).collect()
    }

    /// The names of all backups, the oldest first. Only whole ones have a name.
    pub(super) fn ids(&self) -> Result<Vec<String>, DataError> {
        self.ids_in(BACKUPS)
    }

    fn ids_in(&self, folder: &str) -> Result<Vec<String>, DataError> {
        let names = self.names(folder).map_err(self.fail("list the backups in"))?;
        let mut ids: Vec<String> =
            names.iter().filter_map(|name| name.strip_suffix(".json")).map(str::to_owned).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// A name that is greater than all others: the time in milliseconds, and some random digits, so that two at the same time are different.
    pub(super) fn next_id(&self) -> Result<String, DataError> {
        let last = self.ids()?.pop().and_then(|id| id.split('-').next()?.parse::<u64>().ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(last.map_or(0, |last| last.saturating_add(1)));
        Ok(format!("{now:014}-{:08x}", narval_files::random() >> 32))
    }

    /// Describes a backup.
    pub(super) fn manifest(&self, id: &str) -> Result<Manifest, DataError> {
        self.manifest_in(BACKUPS, id)
    }

    fn manifest_in(&self, folder: &str, id: &str) -> Result<Manifest, DataError> {
        let read = || -> io::Result<Manifest> {
            let name = format!("{folder}/{id}.json");
            let text = String::from_utf8(self.read(&name, MANIFEST_LEN_MAX)?).map_err(|_| damaged(&name))?;
            let (text, hash) = text.trim_end().rsplit_once('\n').ok_or_else(|| damaged(&name))?;
            if hash != Sha256::of(text.as_bytes()).to_string() {
                return Err(damaged(&name));
            }
            let version = serde_json::from_str::<serde_json::Value>(text)?.get("version").cloned();
            if version != Some(VERSION.into()) {
                let version = version.unwrap_or_default();
                let reason = format!(
                    "the backup '{id}' has version {version}, and this narval works with version {VERSION}: use a newer one"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
            Ok(serde_json::from_str(text)?)
        };
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            let reason = io::Error::new(io::ErrorKind::InvalidInput, format!("'{id}' is not the name of a backup"));
            return Err(self.fail("read the backups in")(reason));
        }
        read().map_err(self.fail("read the backups in"))
    }

    /// This backup, or the last one.
    pub(super) fn find(&self, id: Option<&str>) -> Result<Manifest, DataError> {
        let none = || self.fail("read the backups in")(io::Error::new(io::ErrorKind::NotFound, "there are none"));
        match id {
            Some(id) => self.manifest(id),
            None => self.manifest(self.ids()?.last().ok_or_else(none)?),
        }
    }
}

fn storage(place: &StorageLocation) -> Result<Box<dyn Storage>, DataError> {
    let fail = |source| io_error("open the backups in", Path::new(&place.to_string()), source);
    Ok(match place {
        StorageLocation::Folder(path) if !path.join("caches").is_dir() => {
            return Err(fail(io::Error::new(io::ErrorKind::NotFound, "there are none")));
        }
        StorageLocation::Folder(path) => Box::new(Folder::open(path).map_err(fail)?),
        StorageLocation::Bucket { url, folder, .. } => {
            Box::new(Bucket::open(&BucketOptions { url, folder, cache_size: None }).map_err(fail)?)
        }
    })
}

impl Data {
    /// The backups of a place, the oldest first.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn backups(place: &StorageLocation) -> Result<Vec<BackupSummary>, DataError> {
        let shelf = Shelf::open(place)?;
        shelf.ids()?.iter().map(|id| Ok(BackupSummary::from(&shelf.manifest(id)?))).collect()
    }
}

pub(super) fn damaged(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("'{name}' is damaged"))
}
