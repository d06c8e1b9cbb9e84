//! Checks the index against the files, and rebuilds it from them.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use narval_nix::{CacheInfo, HashPart, NarInfo, StorePath};

use super::error::io_error;
use super::index::{Commit, PathRecord};
use super::storage::{Below, StoredFile, VALID_FOR, hash_of};
use super::{
    Cache, CacheName, CacheSettings, Data, DataError, DataOptions, Database, NarFileName, Place, Refusal, RefusalKind,
};
use crate::clock;

/// Paths that are recorded in one transaction.
const STEP: usize = 500;

/// The maximum size of a `nix-cache-info` that is read, in bytes.
const CACHE_INFO_LEN_MAX: u64 = 64 * 1024;

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
        self.fsck_shared(options, &mut report)?;
        Ok(report)
    }

    /// Files of NARs that no cache has.
    fn fsck_shared(&self, options: FsckOptions, report: &mut FsckReport) -> Result<(), Refusal> {
        let (storage, index) = (&self.shared().storage, &self.shared().index);
        let fail = |error: io::Error| Refusal::of_file("list the files of", storage.place().display(), &error);
        for file in storage.shared_files().map_err(fail)? {
            let is_stray = || -> Result<bool, Refusal> {
                for form in &file.forms {
                    if index.nar(&file.nar_hash, *form)?.is_some() {
                        return Ok(false);
                    }
                }
                Ok(true)
            };
            if !is_stray()? {
                continue;
            }
            let _alone = storage.lock_exclusive().map_err(|error| Refusal::of_file("lock", "storage", &error))?;
            if is_stray()? {
                report.problems.push(format!("'{}' is a file that no cache has", file.path.display()));
                if options.repair {
                    let removed = storage.remove_shared(&file);
                    removed.map_err(|error| Refusal::of_file("remove", file.path.display(), &error))?;
                }
            }
        }
        Ok(())
    }

    /// Creates a cache that has files already, with the settings in its `nix-cache-info`.
    fn create_cache_from_files(&self, name: &CacheName) -> Result<Cache, DataError> {
        let fail = |source| io_error("read 'nix-cache-info' in", self.path(), source);
        let files = self.shared().storage.open_cache(name).map_err(fail)?;
        let mut text = Vec::new();
        if let Some((file, _)) = files.open("nix-cache-info").map_err(fail)? {
            file.take(CACHE_INFO_LEN_MAX).read_to_end(&mut text).map_err(fail)?;
        }
        let info = CacheInfo::parse(&text).unwrap_or_default();
        let mut settings = CacheSettings { store_dir: info.store_dir, ..CacheSettings::default() };
        if let Some(priority) = info.priority.and_then(|priority| u32::try_from(priority).ok()) {
            settings.priority = priority;
        }
        self.create_cache(name, &settings)
    }

    /// Rebuilds the index from the files of all caches, reading and verifying every NAR. The old index is kept beside
    /// it, as `index.sqlite.<time>`; one in a database is not touched, and an empty database must be named. Tokens,
    /// pins and settings are not in the files: see [`Data::export`]. No server may be running.
    ///
    /// # Errors
    /// If the folder cannot be read or written.
    pub fn rebuild(place: impl Into<Place>, database: Option<Database>) -> Result<(Self, FsckReport), DataError> {
        let place = place.into();
        let path = place.folder();
        if let Some(database) = &database {
            super::database::must_be_empty(&place, database)?;
        }
        for suffix in ["", "-wal", "-shm"] {
            let from = path.join(format!("index.sqlite{suffix}"));
            let to = path.join(format!("index.sqlite.{}{suffix}", super::now()));
            match fs::rename(&from, &to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("rename", &from, error)),
                _ => {}
            }
        }
        super::database::take_over(&place, database.as_ref())?;
        let data = Self::open(&place, DataOptions { database, ..DataOptions::default() })?;
        let mut report = FsckReport::default();
        let caches = data.shared().storage.caches().map_err(|source| io_error("list the caches in", path, source))?;
        for name in caches {
            let cache = data.create_cache_from_files(&name)?;
            cache.import_files(&mut report).map_err(|error| refused(path, &error))?;
        }
        Ok((data, report))
    }
}

impl Cache {
    /// The name of a file of this cache, for messages.
    fn named(&self, name: &str) -> String {
        self.files().place().join(name).display().to_string()
    }

    fn fsck_nars(&self, options: FsckOptions, report: &mut FsckReport) -> Result<(), Refusal> {
        let fail = |error: io::Error| Refusal::of_file("list", self.files().place().display(), &error);
        let stored = self.files().list(Below::Folder("nar")).map_err(fail)?;
        let stored: HashMap<String, u64> = stored.into_iter().map(|file| (file.name, file.len)).collect();
        for (name, nar) in self.index().files(self.id())? {
            report.files += 1;
            let stored_name = format!("nar/{}", self.files().served_name(&name, &nar));
            let named = self.named(&stored_name);
            let fail = |error: io::Error| Refusal::of_file("read", &named, &error);
            let is_good = |file: &mut dyn Read| Ok(hash_of(file)? == nar.file_hash);
            let has_length = stored.get(&stored_name) == Some(&nar.file_size);
            let is_fine = match has_length && options.contents {
                true => match self.files().read(&stored_name).map_err(fail)? {
                    Some(mut file) => is_good(&mut *file).map_err(fail)?,
                    None => false,
                },
                false => has_length,
            };
            if is_fine {
                continue;
            }
            // It may have been removed, or not renamed yet.
            let alone = self.storage().lock_exclusive().map_err(fail)?;
            if self.index().file(self.id(), &name)?.as_ref() != Some(&nar) {
                continue;
            }
            let is_there = self.files().check_nar(&name, &nar).map_err(fail)?;
            let is_on_its_way = || self.files().is_placed(self.index(), self.id(), &name, &nar).map(|placed| !placed);
            if (is_there && !options.contents) || (self.storage().publishes_later() && is_on_its_way()?) {
                continue;
            }
            let problem = if is_there { "damaged" } else { "missing or truncated" };
            report.problems.push(format!("'{named}' is {problem}"));
            if options.repair && !self.files().repair_nar(&name, &nar, &is_good).map_err(fail)? {
                drop(alone);
                self.lost_or_damaged(&name, is_there)?;
            }
        }
        Ok(())
    }

    fn fsck_paths(&self, options: FsckOptions, report: &mut FsckReport) -> Result<(), Refusal> {
        self.each_path(|listed| {
            report.paths += 1;
            let name = format!("{}.narinfo", listed.hash_part);
            let fail = |error: io::Error| Refusal::of_file("write", self.named(&name), &error);
            let is_same = |record: &PathRecord| self.text(&name).is_ok_and(|text| text == record.narinfo);
            if self.index().path(self.id(), &listed.hash_part)?.is_none_or(|record| is_same(&record)) {
                return Ok(());
            }
            let _alone = self.storage().lock_exclusive().map_err(fail)?;
            let until = clock::instant() + VALID_FOR;
            if let Some(record) = self.index().path(self.id(), &listed.hash_part)?.filter(|record| !is_same(record)) {
                report.problems.push(format!("'{}' does not match the index", self.named(&name)));
                if options.repair {
                    // A bucket has no lock: others may publish the same narinfo.
                    match self.storage().publishes_later() {
                        true => self.publish_again(record.hash_part).map_err(|error| {
                            Refusal::new(RefusalKind::Failed, format_args!("'{}': {error}", self.named(&name)))
                        })?,
                        false => self.files().publish(&record, None, until).map_err(fail)?,
                    }
                }
            }
            Ok(())
        })
    }

    /// The contents of a small file; empty if there is none.
    fn text(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        if let Some((mut file, _)) = self.files().open(name)? {
            file.read_to_end(&mut text)?;
        }
        Ok(text)
    }

    /// Names of the cache's narinfos and listings, and of its NARs.
    fn names(&self) -> Result<Vec<String>, Refusal> {
        Ok(self.named_files()?.into_iter().map(|file| file.name).collect())
    }

    /// The cache's narinfos and listings, and its NARs.
    fn named_files(&self) -> Result<Vec<StoredFile>, Refusal> {
        let fail = |error: io::Error| Refusal::of_file("list", self.files().place().display(), &error);
        let mut files = self.files().list(Below::Root).map_err(fail)?;
        files.extend(self.files().list(Below::Folder("nar")).map_err(fail)?);
        Ok(files)
    }

    /// Narinfos, listings and NARs among the cache's files that the index does not have.
    fn fsck_strays(&self, options: FsckOptions, report: &mut FsckReport) -> Result<(), Refusal> {
        let mut stray_nars = Vec::new();
        for StoredFile { name, modified, .. } in self.named_files()? {
            let nar = name.strip_prefix("nar/");
            let part = name.strip_suffix(".narinfo").or_else(|| name.strip_suffix(".ls"));
            let part = part.and_then(|part| part.parse::<HashPart>().ok());
            let is_stray = || -> Result<bool, Refusal> {
                Ok(match (nar, part) {
                    (Some(nar), _) => self.index().file(self.id(), nar)?.is_none(),
                    (None, Some(part)) => self.index().path(self.id(), &part)?.is_none(),
                    (None, None) => false,
                })
            };
            if !is_stray()? {
                continue;
            }
            if let Some(Ok(stray)) = nar.filter(|_| self.storage().publishes_later()).map(NarFileName::parse) {
                stray_nars.push((stray, modified));
                continue;
            }
            let fail = |error: io::Error| Refusal::of_file("remove", self.named(&name), &error);
            let _alone = self.storage().lock_exclusive().map_err(fail)?;
            if is_stray()? {
                report.problems.push(format!("'{}' is a file that the index does not have", self.named(&name)));
                if options.repair {
                    self.files().remove(&name).map_err(fail)?;
                }
            }
        }
        // In a bucket, a server may have stored them, and record them soon.
        let stray_nars = self.strays_of_nobody(&stray_nars)?;
        let problem =
            |stray| format!("'{}' is a file that the index does not have", self.named(&format!("nar/{stray}")));
        report.problems.extend(stray_nars.iter().map(problem));
        if options.repair && !stray_nars.is_empty() {
            self.remove_strays_of_fsck(&stray_nars)?;
        }
        Ok(())
    }

    /// Imports the files: valid NARs, then the narinfos that match them.
    fn import_files(&self, report: &mut FsckReport) -> Result<(), Refusal> {
        let names = self.names()?;
        for nar in names.iter().filter_map(|name| name.strip_prefix("nar/")) {
            let Ok(name) = NarFileName::parse(nar) else { continue };
            report.files += 1;
            if let Err(refusal) = self.import_nar_file(&name) {
                report.problems.push(format!("'{}' is skipped: {refusal}", self.named(&format!("nar/{nar}"))));
            }
        }
        let mut records = Vec::new();
        for name in &names {
            let Some(part) = name.strip_suffix(".narinfo").and_then(|part| part.parse::<HashPart>().ok()) else {
                continue;
            };
            report.paths += 1;
            match self.import_narinfo(&part, name)? {
                Ok(record) => records.push(record),
                Err(reason) => report.problems.push(format!("'{}' is skipped: {reason}", self.named(name))),
            }
        }
        for step in records.chunks(STEP) {
            if self.index().commit(self.id(), step.to_vec(), &[], &[], self.now())? == Commit::Changed {
                report
                    .problems
                    .push("another process is writing to this cache: stop the server, and try again".to_owned());
            }
        }
        Ok(())
    }

    fn import_nar_file(&self, name: &NarFileName) -> Result<(), Refusal> {
        let fail = |error: io::Error| Refusal::of_file("read", name, &error);
        match self.files().read(&format!("nar/{name}")).map_err(fail)? {
            Some(mut file) => self.import_nar(name, &mut *file),
            None => Err(Refusal::new(RefusalKind::NotFound, "it is not a regular file")),
        }
    }

    fn import_narinfo(&self, part: &HashPart, name: &str) -> Result<Result<PathRecord, String>, Refusal> {
        let text = self.text(name).map_err(|error| Refusal::of_file("read", name, &error))?;
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

fn failed(error: DataError) -> Refusal {
    Refusal::new(RefusalKind::Failed, error)
}

fn refused(path: &Path, refusal: &Refusal) -> DataError {
    io_error("rebuild the index from", path, io::Error::other(refusal.message.clone()))
}
