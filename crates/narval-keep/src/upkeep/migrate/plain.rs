//! Copies a cache to a plain binary cache, which has no index: a folder that Nix and web servers read, or a bucket.
//!
//! Names are those of the standard layout, so what is there says how far a copy is: a killed one goes on with what is missing. Nothing is removed there.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use narval_client::{Payload, Scheme, Url};
use narval_files::{TemporaryFile, Work, remove_leftovers};
use narval_nix::narinfo::NARINFO_LEN_MAX;
use narval_nix::{HashPart, NarInfo, Sha256};
use narval_s3::Objects;

use super::THREADS;
use super::nars::{damaged, lost};
use super::small::is_below;
use super::walk::{Migrated, Tally, To, Walk};
use crate::cache::Cache;
use crate::records::paths::PathRecord;
use crate::rejection::Rejection;
use crate::small::SMALL_FOLDERS;
use crate::storage::{Below, TEMPORARY, several};
use narval_store::hash_of;

const CACHE_INFO: &str = "nix-cache-info";

impl Cache {
    /// Copies this cache to a plain binary cache below an address, `file:///folder` or `s3://bucket`, in a folder with its name; called again, it copies what is missing or was
    /// changed. What it does not have any more stays there. Each path comes after its references, and after its NAR was compared with its hash.
    ///
    /// # Errors
    /// If the index or the destination fails, or a NAR is lost or damaged. What was copied so far stays.
    ///
    /// ```
    /// use narval_files::Work;
    /// use narval_keep::{CacheName, CacheSettings, Data, DataOptions};
    /// # let folder = tempfile::tempdir()?;
    /// let data = Data::open(folder.path().join("data").as_path(), DataOptions::default())?;
    /// let cache = data.create_cache(&CacheName::default(), &CacheSettings::default())?;
    /// let mirror = folder.path().join("mirror");
    /// cache.copy_to(&format!("file://{}", mirror.display()).parse()?, Work::unwatched())?;
    /// assert!(mirror.join("default/nix-cache-info").exists());
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn copy_to(&self, url: &Url, work: &Work) -> Result<Migrated, Rejection> {
        let to = Plain::open(url, self.name().as_str())?;
        let tally = Tally::default();
        work.begin("exporting", "paths", self.index().usage(self.id())?.paths, 0);
        let plain = ToPlain { from: self, to: &to, tally: &tally, work };
        plain.copy_cache_info()?;
        Walk::new(self, &plain, &tally, work).run()?;
        plain.copy_small_files()?;
        Ok(tally.migrated())
    }
}

/// A plain binary cache.
enum Plain {
    Folder(PathBuf),
    Bucket(Box<Objects>),
}

impl Plain {
    /// The cache with this name below an address.
    fn open(url: &Url, name: &str) -> Result<Self, Rejection> {
        let wrong =
            |error: &dyn std::fmt::Display| Rejection::malformed(format_args!("the destination '{url}': {error}"));
        let below = url.child(name).map_err(|error| wrong(&error))?;
        match url.scheme() {
            Scheme::File => {
                let folder = below.file_path();
                let make = || {
                    fs::create_dir_all(folder.join("nar"))?;
                    remove_leftovers(&folder, |name| name.as_bytes().starts_with(TEMPORARY.as_bytes()))
                };
                make().map_err(|error| wrong(&error))?;
                Ok(Self::Folder(folder))
            }
            Scheme::S3 => Ok(Self::Bucket(Box::new(Objects::new(&below).map_err(|error| wrong(&error))?))),
            _ => Err(wrong(&"a cache is exported to file:///FOLDER or s3://BUCKET")),
        }
    }

    /// The length of a file; `None` if there is none.
    fn len(&self, key: &str) -> io::Result<Option<u64>> {
        match self {
            Self::Folder(folder) => match fs::symlink_metadata(folder.join(key)) {
                Ok(metadata) => Ok(Some(metadata.len())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            },
            Self::Bucket(objects) => objects.len(key).map_err(io::Error::other),
        }
    }

    /// Whether a small file has these contents.
    fn is(&self, key: &str, text: &[u8]) -> io::Result<bool> {
        match self {
            Self::Folder(folder) => {
                Ok(self.len(key)? == Some(text.len() as u64) && fs::read(folder.join(key))? == text)
            }
            Self::Bucket(objects) => {
                let there = objects.read(key, NARINFO_LEN_MAX as u64).map_err(io::Error::other)?;
                Ok(there.is_some_and(|there| there == text))
            }
        }
    }

    /// Stores a file with this hash, or prepares it: then it is there once the result was given its name.
    fn put(&self, key: &str, file: &mut File, len: u64, hash: Sha256) -> io::Result<Option<Written>> {
        match self {
            Self::Folder(folder) => Written::new(folder, key, file).map(Some),
            Self::Bucket(objects) => {
                objects.put(key, "application/x-nix-nar", Payload::File(file, len), hash).map(|()| None)
            }
        }
    }

    fn put_text(&self, key: &str, text: &[u8]) -> io::Result<Option<Written>> {
        match self {
            Self::Folder(folder) => Written::new(folder, key, &mut &*text).map(Some),
            Self::Bucket(objects) => {
                objects.put(key, "text/plain", Payload::Bytes(text), Sha256::of(text)).map(|()| None)
            }
        }
    }

    /// Gives files their names, in this order, once all of their bytes are durable.
    fn name(&self, written: Vec<Written>) -> io::Result<()> {
        let Self::Folder(folder) = self else { return Ok(()) };
        rustix::fs::syncfs(&File::open(folder)?)?;
        written.into_iter().try_for_each(|Written { file, place }| file.persist(&place))
    }
}

/// A file in a folder that does not have its name yet.
struct Written {
    file: TemporaryFile,
    place: PathBuf,
}

impl Written {
    /// Where it is until then, the next copy removes what a killed one has left.
    fn new(folder: &Path, key: &str, from: &mut dyn io::Read) -> io::Result<Self> {
        let place = folder.join(key);
        fs::create_dir_all(place.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
        let file = TemporaryFile::create(folder, TEMPORARY, 0o644)?;
        io::copy(from, &mut file.file())?;
        Ok(Self { file, place })
    }
}

struct ToPlain<'a> {
    from: &'a Cache,
    to: &'a Plain,
    tally: &'a Tally,
    work: &'a Work,
}

fn narinfo_key(part: &HashPart) -> String {
    format!("{part}.narinfo")
}

impl To for ToPlain<'_> {
    fn has(&self, parts: &[HashPart], ours: &[Option<Vec<u8>>]) -> Result<Vec<bool>, Rejection> {
        let ours: Vec<_> = parts.iter().zip(ours).collect();
        several(THREADS, &ours, |(part, ours)| {
            let Some(ours) = ours else { return Ok(false) };
            let key = narinfo_key(part);
            self.to.is(&key, ours).map_err(|error| self.failed("read", &key, &error))
        })
    }

    fn present(&self, parts: &[HashPart]) -> Result<Vec<bool>, Rejection> {
        several(THREADS, parts, |part| {
            let key = narinfo_key(part);
            Ok(self.to.len(&key).map_err(|error| self.failed("look at", &key, &error))?.is_some())
        })
    }

    fn take(&self, batch: Vec<PathRecord>) -> Result<(), Rejection> {
        let copied = several(THREADS, &batch, |record| self.copy_nar(record))?;
        let (mut nars, mut records) = (Vec::new(), Vec::new());
        for (record, copied) in batch.into_iter().zip(copied) {
            // Others were removed meanwhile.
            if let Some(nar) = copied {
                nars.extend(nar);
                records.push(record);
            }
        }
        self.name(nars)?;
        // Those that refer to each other one after the other, in their order.
        let (mut layer, mut parts) = (Vec::new(), HashSet::new());
        for record in &records {
            if record.references.iter().any(|part| *part != record.hash_part && parts.contains(part)) {
                self.write_narinfos(&std::mem::take(&mut layer))?;
                parts.clear();
            }
            parts.insert(record.hash_part);
            layer.push(record);
        }
        self.write_narinfos(&layer)?;
        Tally::add(&self.tally.paths, records.len() as u64);
        Ok(())
    }
}

impl ToPlain<'_> {
    fn failed(&self, action: &str, key: &str, error: &io::Error) -> Rejection {
        match self.to {
            Plain::Folder(folder) => Rejection::of_file(action, folder.join(key).display(), error),
            Plain::Bucket(_) => Rejection::of_file(action, format_args!("'{key}' in the destination"), error),
        }
    }

    fn name(&self, written: Vec<Written>) -> Result<(), Rejection> {
        self.to.name(written).map_err(|error| self.failed("write", "", &error))
    }

    fn write_narinfos(&self, records: &[&PathRecord]) -> Result<(), Rejection> {
        // By now they may be older than what another server has written.
        self.work.check().map_err(|_| Rejection::interrupted("copy"))?;
        let written = several(THREADS, records, |record| {
            let key = narinfo_key(&record.hash_part);
            self.to.put_text(&key, &record.narinfo).map_err(|error| self.failed("write", &key, &error))
        })?;
        self.name(written.into_iter().flatten().collect())
    }

    /// Copies the NAR of a path, if it is not there. `None`: the path is gone.
    fn copy_nar(&self, record: &PathRecord) -> Result<Option<Option<Written>>, Rejection> {
        let from = self.from;
        let info = NarInfo::parse(&record.narinfo, &from.settings().store_dir)
            .map_err(|error| Rejection::failed(format_args!("'{}': {error}", record.path)))?;
        let Some((_, nar)) = from.index().file(from.id(), &record.file)? else { return lost(from, record) };
        if !is_below(&info.url, "nar") {
            return Err(damaged(record, &"has a name that is not below nar/"));
        }
        let there = self.to.len(&info.url).map_err(|error| self.failed("look at", &info.url, &error))?;
        if there == Some(nar.file_size) {
            return Ok(Some(None));
        }
        let unreadable = |error: io::Error| damaged(record, &format_args!("cannot be read ({error})"));
        let Some(mut file) = from.files().open_nar(&record.file, &nar).map_err(unreadable)? else {
            return lost(from, record);
        };
        if hash_of(&mut self.work.reading(&file)).map_err(unreadable)? != nar.file_hash {
            return Err(damaged(record, &"is damaged"));
        }
        io::Seek::rewind(&mut file).map_err(unreadable)?;
        let written = self.to.put(&info.url, &mut file, nar.file_size, nar.file_hash);
        let written = written.map_err(|error| self.failed("write", &info.url, &error))?;
        Tally::add(&self.tally.nars, 1);
        Tally::add(&self.tally.bytes, nar.file_size);
        Ok(Some(written))
    }

    fn copy_cache_info(&self) -> Result<(), Rejection> {
        let text = self.from.settings().cache_info().to_string();
        let written = self.to.put_text(CACHE_INFO, text.as_bytes());
        let written = written.map_err(|error| self.failed("write", CACHE_INFO, &error))?;
        self.name(written.into_iter().collect())
    }

    /// Copies logs and the like that the destination lacks, or has with another length.
    fn copy_small_files(&self) -> Result<(), Rejection> {
        for folder in SMALL_FOLDERS {
            let unlisted = |error: io::Error| Rejection::of_file("list", folder, &error);
            for file in self.from.files().list(Below::Folder(folder)).map_err(unlisted)? {
                let failed = |error: io::Error| self.failed("copy", &file.name, &error);
                self.work.check().map_err(|_| Rejection::interrupted("copy"))?;
                // Whoever can write to a bucket chooses the names in it.
                if !is_below(&file.name, folder) || self.to.len(&file.name).map_err(failed)? == Some(file.len) {
                    continue;
                }
                let Some((mut source, len)) = self.from.files().open(&file.name).map_err(failed)? else { continue };
                let hash = hash_of(&mut source).map_err(failed)?;
                io::Seek::rewind(&mut source).map_err(failed)?;
                let written = self.to.put(&file.name, &mut source, len, hash).map_err(failed)?;
                self.name(written.into_iter().collect())?;
                Tally::add(&self.tally.files, 1);
            }
        }
        Ok(())
    }
}
