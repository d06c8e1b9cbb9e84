//! Checks the index against the files, and rebuilds it from them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use narval_nix::{CacheInfo, Compression, HashPart, NarInfo, Sha256, Sha256Hasher, StorePath};

use super::error::io_error;
use super::index::{Commit, PathRecord};
use super::storage::{self, file_len};
use super::{Cache, CacheName, CacheSettings, Data, DataError, DataOptions, Database, NarFileName, Refusal};

/// Size of the read buffer.
const BUFFER_LEN: usize = 256 * 1024;

/// Paths that are recorded in one transaction.
const STEP: usize = 500;

/// Options of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsckOptions {
    /// Whether to read every NAR's file and compare its hash; otherwise only the lengths are compared.
    pub contents: bool,
    /// Whether to remove lost paths from the index, restore what can be restored, and delete stray files.
    pub repair: bool,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FsckReport {
    /// The number of checked paths.
    pub paths: usize,
    /// The number of checked NAR files.
    pub files: usize,
    /// The problems, one line each.
    pub problems: Vec<String>,
}

impl Data {
    /// Checks all caches, and the files that they share.
    ///
    /// # Errors
    /// If the index or a folder cannot be read.
    pub fn fsck(&self, options: FsckOptions) -> Result<FsckReport, Refusal> {
        let mut report = FsckReport::default();
        for cache in self.caches().map_err(failed)? {
            cache.fsck_nars(options, &mut report)?;
            cache.fsck_paths(options, &mut report)?;
            cache.fsck_strays(options, &mut report)?;
        }
        self.fsck_blobs(options, &mut report)?;
        Ok(report)
    }

    /// Files below `blobs/` that no cache has.
    fn fsck_blobs(&self, options: FsckOptions, report: &mut FsckReport) -> Result<(), Refusal> {
        let shared = self.shared();
        for folder in entries(&shared.storage.path().join("blobs"))? {
            for path in entries(&folder)? {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                let Some((hash, rest)) = name.split_once('.') else { continue };
                let Ok(nar_hash) = Sha256::from_nix32(hash.as_bytes()) else { continue };
                let forms = Compression::ALL.into_iter().filter(|form| {
                    rest == "ls" || shared.storage.blob(&nar_hash, *form).file_name() == path.file_name()
                });
                let is_stray = || -> Result<bool, Refusal> {
                    for form in forms.clone() {
                        if shared.index.nar(&nar_hash, form)?.is_some() {
                            return Ok(false);
                        }
                    }
                    Ok(true)
                };
                if !is_stray()? {
                    continue;
                }
                let _alone =
                    shared.storage.lock_exclusive().map_err(|error| Refusal::of_file("lock", "storage", &error))?;
                if is_stray()? {
                    report.problems.push(format!("'{}' is a file that no cache has", path.display()));
                    if options.repair {
                        storage::remove_file(&path)
                            .map_err(|error| Refusal::of_file("remove", path.display(), &error))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Rebuilds the index from the files of all caches, reading and verifying every NAR. The old index is kept beside
    /// it, as `index.sqlite.<time>`; one in a database is not touched, and an empty database must be named. Tokens,
    /// pins and settings are not in the files: see [`Data::export`]. No server may be running.
    ///
    /// # Errors
    /// If the folder cannot be read or written.
    pub fn rebuild(path: &Path, database: Option<Database>) -> Result<(Self, FsckReport), DataError> {
        if let Some(database) = &database {
            super::database::must_be_empty(path, database)?;
        }
        for suffix in ["", "-wal", "-shm"] {
            let from = path.join(format!("index.sqlite{suffix}"));
            let to = path.join(format!("index.sqlite.{}{suffix}", super::now()));
            match fs::rename(&from, &to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("rename", &from, error)),
                _ => {}
            }
        }
        let data = Self::open(path, DataOptions { database, ..DataOptions::default() })?;
        let mut report = FsckReport::default();
        let folders = entries(&path.join("caches")).map_err(|error| refused(path, &error))?;
        for folder in folders {
            let name = folder.file_name().and_then(|name| name.to_str()).and_then(|name| CacheName::parse(name).ok());
            let Some(name) = name else { continue };
            let cache = data.create_cache(&name, &settings_of(&folder))?;
            cache.import_files(&mut report).map_err(|error| refused(&folder, &error))?;
        }
        Ok((data, report))
    }
}

impl Cache {
    fn fsck_nars(&self, options: FsckOptions, report: &mut FsckReport) -> Result<(), Refusal> {
        for (name, nar) in self.index().files(self.id())? {
            report.files += 1;
            let path = self.directory().path().join("nar").join(&name);
            let fail = |error: io::Error| Refusal::of_file("read", path.display(), &error);
            let is_there = file_len(&path).map_err(fail)? == Some(nar.file_size);
            if is_there && (!options.contents || hash_of(&path).map_err(fail)? == nar.file_hash) {
                continue;
            }
            // It may have been removed, or not renamed yet.
            let alone = self.storage().lock_exclusive().map_err(fail)?;
            if self.index().file(self.id(), &name)?.as_ref() != Some(&nar) {
                continue;
            }
            let is_there = file_len(&path).map_err(fail)? == Some(nar.file_size);
            if is_there && !options.contents {
                continue;
            }
            report.problems.push(format!(
                "'{}' is {}",
                path.display(),
                if is_there { "damaged" } else { "missing or truncated" }
            ));
            if options.repair {
                // The shared file is the same, or just as damaged, and must not be reused.
                let blob = self.storage().blob(&nar.nar_hash, nar.compression);
                let is_good = file_len(&blob).map_err(fail)? == Some(nar.file_size)
                    && hash_of(&blob).map_err(fail)? == nar.file_hash;
                if is_good {
                    self.directory().link_nar(&blob, &name).map_err(fail)?;
                    continue;
                }
                storage::remove_file(&blob).map_err(fail)?;
                storage::remove_file(&path).map_err(fail)?;
                drop(alone);
                self.lost(&name)?;
            }
        }
        Ok(())
    }

    fn fsck_paths(&self, options: FsckOptions, report: &mut FsckReport) -> Result<(), Refusal> {
        for listed in self.index().snapshot(self.id())?.paths {
            report.paths += 1;
            let path = self.directory().path().join(format!("{}.narinfo", listed.hash_part));
            let fail = |error: io::Error| Refusal::of_file("write", path.display(), &error);
            let is_same = |record: &PathRecord| fs::read(&path).is_ok_and(|text| text == record.narinfo);
            if self.index().path(self.id(), &listed.hash_part)?.is_none_or(|record| is_same(&record)) {
                continue;
            }
            let _alone = self.storage().lock_exclusive().map_err(fail)?;
            if let Some(record) = self.index().path(self.id(), &listed.hash_part)?.filter(|record| !is_same(record)) {
                report.problems.push(format!("'{}' does not match the index", path.display()));
                if options.repair {
                    self.publish(&record).map_err(fail)?;
                }
            }
        }
        Ok(())
    }

    /// Narinfos, listings and NARs in the cache's folder that the index does not have.
    fn fsck_strays(&self, options: FsckOptions, report: &mut FsckReport) -> Result<(), Refusal> {
        let root = self.directory().path();
        for path in entries(root)?.into_iter().chain(entries(&root.join("nar"))?) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_nar = path.parent() != Some(root);
            let part = name.strip_suffix(".narinfo").or_else(|| name.strip_suffix(".ls"));
            let part = part.and_then(|part| part.parse::<HashPart>().ok());
            let is_stray = || -> Result<bool, Refusal> {
                Ok(match part {
                    _ if is_nar => self.index().file(self.id(), name)?.is_none(),
                    Some(part) => self.index().path(self.id(), &part)?.is_none(),
                    None => false,
                })
            };
            if !is_stray()? {
                continue;
            }
            let fail = |error: io::Error| Refusal::of_file("remove", path.display(), &error);
            let _alone = self.storage().lock_exclusive().map_err(fail)?;
            if is_stray()? {
                report.problems.push(format!("'{}' is a file that the index does not have", path.display()));
                if options.repair {
                    storage::remove_file(&path).map_err(fail)?;
                }
            }
        }
        Ok(())
    }

    /// Imports the files: valid NARs, then the narinfos that match them.
    fn import_files(&self, report: &mut FsckReport) -> Result<(), Refusal> {
        let root = self.directory().path().to_owned();
        for path in entries(&root.join("nar"))? {
            let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| NarFileName::parse(name).ok());
            let Some(name) = name else { continue };
            report.files += 1;
            if let Err(refusal) = self.import_nar(&name, &path) {
                report.problems.push(format!("'{}' is skipped: {refusal}", path.display()));
            }
        }
        let mut records = Vec::new();
        for path in entries(&root)? {
            let part = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".narinfo"));
            let Some(part) = part.and_then(|part| part.parse::<HashPart>().ok()) else { continue };
            report.paths += 1;
            match self.import_narinfo(&part, &path)? {
                Ok(record) => records.push(record),
                Err(reason) => report.problems.push(format!("'{}' is skipped: {reason}", path.display())),
            }
        }
        for step in records.chunks(STEP) {
            if self.index().commit(self.id(), step.to_vec(), self.now())? == Commit::Changed {
                report
                    .problems
                    .push("another process is writing to this cache: stop the server, and try again".to_owned());
            }
        }
        Ok(())
    }

    fn import_narinfo(&self, part: &HashPart, path: &Path) -> Result<Result<PathRecord, String>, Refusal> {
        let text = fs::read(path).map_err(|error| Refusal::of_file("read", path.display(), &error))?;
        let info = match NarInfo::parse(&text, &self.settings().store_dir) {
            Ok(info) if info.path.hash_part() == *part => info,
            Ok(info) => return Ok(Err(format!("it is one of '{}'", info.path))),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let file = info.url.strip_prefix("nar/").unwrap_or(&info.url).to_owned();
        let Some(nar) = self.index().file(self.id(), &file)? else {
            return Ok(Err(format!("'{}' does not exist", info.url)));
        };
        if (nar.nar_hash, nar.nar_size, nar.compression) != (info.nar_hash, info.nar_size, info.compression) {
            return Ok(Err(format!("'{}' has other contents", info.url)));
        }
        let references =
            info.references.iter().map(StorePath::hash_part).filter(|reference| reference != part).collect();
        Ok(Ok(PathRecord {
            hash_part: *part,
            path: info.path.to_string(),
            nar_hash: info.nar_hash,
            file,
            narinfo: text,
            references,
            listing_size: nar.listing_size,
            version: 0,
        }))
    }
}

fn settings_of(folder: &Path) -> CacheSettings {
    let text = fs::read(folder.join("nix-cache-info")).ok();
    let info = text.and_then(|text| CacheInfo::parse(&text).ok()).unwrap_or_default();
    let mut settings = CacheSettings { store_dir: info.store_dir, ..CacheSettings::default() };
    if let Some(priority) = info.priority.and_then(|priority| u32::try_from(priority).ok()) {
        settings.priority = priority;
    }
    settings
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Refusal> {
    let fail = |error: io::Error| Refusal::of_file("list", folder.display(), &error);
    fs::read_dir(folder).map_err(fail)?.map(|entry| entry.map(|entry| entry.path()).map_err(fail)).collect()
}

fn hash_of(path: &Path) -> io::Result<Sha256> {
    let (mut file, mut hasher, mut buffer) = (File::open(path)?, Sha256Hasher::new(), vec![0; BUFFER_LEN]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(len) => hasher.update(buffer.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn failed(error: DataError) -> Refusal {
    Refusal::new(super::RefusalKind::Failed, error)
}

fn refused(path: &Path, refusal: &Refusal) -> DataError {
    io_error("rebuild the index from", path, io::Error::other(refusal.message.clone()))
}
