//! Builds the index again, from the files.
//!
//! Nobody else has the folder open meanwhile. The new index is built beside the old one, and takes its place in one step; one in a database
//! is marked, and not used by anybody, until it is complete. So whenever this is interrupted, the old index is in force, or none is.

use std::io::{self, Read};
use std::path::Path;

use narval_files::Work;
use narval_nix::{CacheInfo, HashPart, NarInfo, StorePath};

use super::backup;
use crate::assembly::database;
use crate::assembly::database::Opening;
use crate::assembly::parts::{Local, open_parts};
use crate::cache::Cache;
use crate::data::Data;
use crate::error::{DataError, io_error};
use crate::in_use::InUse;
use crate::location::{Database, StorageLocation};
use crate::name::{CacheName, NarFileName};
use crate::options::DataOptions;
use crate::records::paths::{Commit, PathRecord};
use crate::rejection::Rejection;
use crate::settings::CacheSettings;
use crate::storage::StoredFile;
use crate::upkeep::FsckReport;

/// Paths that are recorded in one transaction.
const STEP: usize = 500;

/// The maximum size of a `nix-cache-info` that is read, in bytes.
const CACHE_INFO_LEN_MAX: u64 = 64 * 1024;

impl Data {
    /// Rebuilds the index from the files of all caches, reading and verifying every NAR. The old index is kept beside
    /// it, as `index.sqlite.<time>`; one in a database is not touched, and an empty database must be named. Tokens,
    /// pins and settings are not in the files: see [`Data::export`]. Refused while any process has the folder open. If it is interrupted, it
    /// can be run again.
    ///
    /// # Errors
    /// If the folder cannot be read or written, or is in use.
    pub fn rebuild(
        place: impl Into<StorageLocation>,
        database: Option<Database>,
        work: &Work,
    ) -> Result<(Self, FsckReport), DataError> {
        let place = place.into();
        let path = place.folder();
        let alone = InUse::alone(path)?;
        backup::refuse_unfinished(path)?;
        let options = DataOptions { database, ..DataOptions::default() };
        let report = Self::filled(&place, &options, |data| data.import_caches(work))?;
        drop(alone);
        Ok((Self::open(&place, options)?, report))
    }

    /// Fills a new index, which nobody uses before `fill` has ended: then it takes the place of the one that is there. The caller has the
    /// folder alone.
    pub(super) fn filled<T, E: From<DataError>>(
        place: &StorageLocation,
        options: &DataOptions,
        fill: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let path = place.folder();
        database::discard_rebuilt(path)?;
        database::take_over(place, options.database.as_ref())?;
        let filled = {
            let (storage, index) = open_parts(place, options, Opening::Rebuild)?;
            if options.database.is_some() && !index.begin_rebuild().map_err(DataError::from)? {
                let reason = "the database has an index already: name an empty one".to_owned();
                return Err(DataError::IndexMismatch { folder: path.to_owned(), reason }.into());
            }
            // Without threads: everything is written and closed at the end.
            let (data, _stopped) = Self::assemble(storage, index, Local { folder: path, lock: None }, false)?;
            let filled = fill(&data)?;
            if options.database.is_some() {
                database::put_aside(path)?;
                data.shared().index.end_rebuild().map_err(DataError::from)?;
            }
            filled
        };
        if options.database.is_none() {
            database::replace(path)?;
        }
        Ok(filled)
    }

    /// Imports the files of all caches.
    pub(super) fn import_caches(&self, work: &Work) -> Result<FsckReport, DataError> {
        let mut report = FsckReport::default();
        let path = self.folder();
        let caches = self.shared().storage.caches().map_err(|source| io_error("list the caches in", path, source))?;
        for name in caches {
            let cache = self.create_cache_from_files(&name)?;
            cache.import_files(&mut report, work).map_err(|error| refused(path, &error))?;
        }
        Ok(report)
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
}

impl Cache {
    /// Imports the files: valid NARs, then the narinfos that match them.
    fn import_files(&self, report: &mut FsckReport, work: &Work) -> Result<(), Rejection> {
        let files = self.named_files()?;
        let nars: Vec<_> = files
            .iter()
            .filter_map(|file| Some((NarFileName::parse(file.name.strip_prefix("nar/")?).ok()?, file.len)))
            .collect();
        let stopped = |error: io::Error| Rejection::of_file("read", self.files().place().display(), &error);
        work.begin("verifying", "NARs", nars.len() as u64, nars.iter().map(|(_, len)| len).sum());
        for (nar, _) in nars {
            report.files += 1;
            let imported = self.import_nar_file(&nar, work);
            // One that was not read to its end is not skipped.
            work.check().map_err(stopped)?;
            work.count(1);
            if let Err(rejection) = imported {
                report.problems.push(format!("'{}' is skipped: {rejection}", self.named(&format!("nar/{nar}"))));
            }
        }
        let mut records = Vec::new();
        let narinfos = files.iter().filter(|file| file.name.ends_with(".narinfo")).count();
        work.begin("reading", "narinfos", narinfos as u64, 0);
        for StoredFile { name, .. } in &files {
            let Some(part) = name.strip_suffix(".narinfo").and_then(|part| part.parse::<HashPart>().ok()) else {
                continue;
            };
            report.paths += 1;
            work.count(1);
            work.check().map_err(stopped)?;
            match self.import_narinfo(&part, name)? {
                Ok(record) => records.push(record),
                Err(reason) => report.problems.push(format!("'{}' is skipped: {reason}", self.named(name))),
            }
        }
        for step in records.chunks(STEP) {
            if self.index().commit(self.id(), step.to_vec(), &[], self.now())? == Commit::Changed {
                report
                    .problems
                    .push("another process is writing to this cache: stop the server, and try again".to_owned());
            }
        }
        Ok(())
    }

    fn import_nar_file(&self, name: &NarFileName, work: &Work) -> Result<(), Rejection> {
        let fail = |error: io::Error| Rejection::of_file("read", name, &error);
        match self.files().read(&format!("nar/{name}")).map_err(fail)? {
            Some(file) => self.import_nar(name, &mut work.reading(file)),
            None => Err(Rejection::not_found("it is not a regular file")),
        }
    }

    fn import_narinfo(&self, part: &HashPart, name: &str) -> Result<Result<PathRecord, String>, Rejection> {
        let text = self.text(name).map_err(|error| Rejection::of_file("read", name, &error))?;
        let info = match NarInfo::parse(&text, &self.settings().store_dir) {
            Ok(info) if info.path.hash_part() == *part => info,
            Ok(info) => return Ok(Err(format!("it is one of '{}'", info.path))),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let file = info.url.strip_prefix("nar/").unwrap_or(&info.url).to_owned();
        let Some((file, nar)) = self.index().file(self.id(), &file)? else {
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

fn refused(path: &Path, rejection: &Rejection) -> DataError {
    io_error("rebuild the index from", path, io::Error::other(rejection.message.clone()))
}
