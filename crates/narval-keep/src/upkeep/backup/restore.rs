//! Restores a backup into an empty place.
//!
//! A file says that it has begun, and nobody opens the place before it is gone. It is written before anything else, and removed at the end, so a
//! restore that was killed is not taken for a whole one, and is done again by the same command.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use narval_files::Work;
use narval_nix::{NarInfo, StorePath};

use super::place::{Shelf, damaged};
use super::rows::PathRow;
use super::{BackupSummary, Manifest, SavedCache};
use crate::access::grant::Grant;
use crate::assembly::database;
use crate::assembly::database::Opening;
use crate::assembly::parts::{Local, open_parts};
use crate::cache::Cache;
use crate::data::Data;
use crate::error::{DataError, io_error};
use crate::in_use::InUse;
use crate::index::Sqlite;
use crate::location::{Database, StorageLocation};
use crate::options::DataOptions;
use crate::records::audit::AuditLine;
use crate::records::paths::{Commit, PathRecord, SavedPath};
use crate::rejection::Rejection;
use crate::storage::{Bucket, BucketOptions, Storage, object_name};
use crate::upkeep::migrate::Copied;
use crate::upkeep::{FsckReport, MigrateError, Migrated};

/// The file, in the folder on this machine.
const UNFINISHED: &str = "restore.unfinished";

/// What is in it when everything was copied.
const FILLED: &str = "filled\n";

/// The folder for the index of a backup.
const SOURCE: &str = "restore.tmp";

/// Paths that are recorded in one transaction, and lines of the audit log.
const STEP: usize = 1024;

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The backup.
    pub backup: BackupSummary,
    /// What was copied; nothing if a restore that had copied everything was completed.
    pub copied: Migrated,
    /// What was found in the files, if the backup has no NARs.
    pub found: FsckReport,
}

/// An error if a restore into this folder was interrupted.
pub(crate) fn refuse_unfinished(folder: &Path) -> Result<(), DataError> {
    if folder.join(UNFINISHED).exists() {
        let reason = "a restore into it was interrupted: run the same 'narval cache restore' again".to_owned();
        return Err(DataError::IndexMismatch { folder: folder.to_owned(), reason });
    }
    Ok(())
}

impl Data {
    /// Restores a backup of a place, the last one unless it is named, into a place that has no cache; or, if it has no NARs, beside the files of
    /// caches. Every NAR is verified. If it is interrupted, it can be done again, and nobody can open the place before.
    ///
    /// # Errors
    /// If one of the places cannot be used or is not empty, or the backup is damaged.
    pub fn restore(
        (from, id): (&StorageLocation, Option<&str>),
        place: &StorageLocation,
        database: Option<Database>,
        grant: &Grant,
        work: &Work,
    ) -> Result<(Self, Restored), MigrateError> {
        let folder = place.folder();
        let alone = InUse::alone(folder)?;
        let shelf = Shelf::open(from)?;
        let manifest = shelf.find(id)?;
        let marker = folder.join(UNFINISHED);
        let fail = |error| io_error("write", &marker, error);
        let before = match fs::read_to_string(&marker) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(fail(error).into()),
        };
        let options = DataOptions { database, ..DataOptions::default() };
        let mut restored = Restored {
            backup: BackupSummary::from(&manifest),
            copied: Migrated::default(),
            found: FsckReport::default(),
        };
        if before.as_deref() == Some(FILLED) {
            complete(place, &options)?;
        } else {
            if before.is_none() {
                if manifest.nars {
                    refuse_contents(place, options.database.as_ref())?;
                }
                mark(&marker, &format!("{}\n", manifest.id)).map_err(fail)?;
            }
            let filled = Self::filled(place, &options, |to| {
                let settings = shelf.text_of(&manifest.settings).map_err(shelf.fail("read rows in"))?;
                if manifest.nars {
                    let source = folder.join(SOURCE);
                    let how = Copied { only: None, grant, work, is_noted: false };
                    restored.copied = copy(&shelf, &manifest, &settings, (&source, to), how)?;
                    if before.is_some() {
                        // What an interrupted restore has copied.
                        for cache in to.caches()? {
                            let refused = |rejection| MigrateError::Rejected { cache: cache.name().clone(), rejection };
                            cache.remove_all_strays().map_err(refused)?;
                        }
                    }
                } else {
                    restored.found = to.import_caches(work)?;
                    let imported = to.import(&settings)?;
                    restored.copied.tokens = imported.tokens as u64;
                    restored.copied.pins = imported.pins as u64;
                }
                restore_audit(&shelf, &manifest, to)?;
                mark(&marker, FILLED).map_err(fail)?;
                Ok::<(), MigrateError>(())
            });
            if let Err(error) = filled {
                // The place is as it was.
                if before.is_none() && matches!(error, MigrateError::Data(DataError::IndexMismatch { .. })) {
                    fs::remove_file(&marker).map_err(fail)?;
                }
                return Err(error);
            }
        }
        fs::remove_file(&marker).and_then(|()| fs::File::open(folder)?.sync_all()).map_err(fail)?;
        drop(alone);
        let data = Self::open(place, options)?;
        data.audit().note(grant, None, "restore", &manifest.id, &Ok(format!("{} paths", restored.backup.paths)));
        Ok((data, restored))
    }
}

fn mark(marker: &Path, text: &str) -> io::Result<()> {
    let folder = marker.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let file = narval_files::TemporaryFile::create(folder, crate::storage::TEMPORARY, 0o600)?;
    file.file().write_all(text.as_bytes())?;
    file.file().sync_all()?;
    file.persist(marker)?;
    fs::File::open(folder)?.sync_all()
}

/// An error if there is a cache, or what is left of one.
fn refuse_contents(place: &StorageLocation, database: Option<&Database>) -> Result<(), DataError> {
    let fail = |source| io_error("look into", Path::new(&place.to_string()), source);
    let is_empty = match place {
        StorageLocation::Folder(path) => {
            let caches = path.join("caches");
            !database::exists(path, None)
                && !database::exists(path, database)
                && (!caches.exists() || fs::read_dir(&caches).map_err(fail)?.next().is_none())
        }
        StorageLocation::Bucket { url, folder, .. } => {
            let bucket = Bucket::open(&BucketOptions { url, folder, cache_size: None }).map_err(fail)?;
            bucket.id().map_err(fail)?.is_none() && bucket.caches().map_err(fail)?.is_empty()
        }
    };
    if is_empty {
        return Ok(());
    }
    let reason = "it is not empty: a backup is restored into an empty place".to_owned();
    Err(DataError::IndexMismatch { folder: place.to_string().into(), reason })
}

/// Completes a restore that has copied everything.
fn complete(place: &StorageLocation, options: &DataOptions) -> Result<(), DataError> {
    if options.database.is_some() {
        let (_, index) = open_parts(place, options, Opening::Rebuild)?;
        database::put_aside(place.folder())?;
        return Ok(index.end_rebuild()?);
    }
    database::replace_if_complete(place.folder())
}

/// Copies a backup, which is opened as the data that it is of.
fn copy(
    shelf: &Shelf,
    manifest: &Manifest,
    settings: &str,
    (folder, to): (&Path, &Data),
    how: Copied<'_>,
) -> Result<Migrated, MigrateError> {
    let fail = |error| io_error("write", folder, error);
    let clear = || match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fail(error)),
        _ => Ok(()),
    };
    clear()?;
    fs::create_dir_all(folder).map_err(fail)?;
    let index = Box::new(Sqlite::open(&folder.join("index.sqlite")).map_err(DataError::from)?);
    let storage = shelf.storage_again()?;
    let (from, _stopped) = Data::assemble(storage, index, Local { folder, lock: None }, false)?;
    let all = to.caches_of_export(settings)?;
    let paths: u64 = manifest.caches.iter().map(|cache| cache.paths).sum();
    how.work.begin("reading", "paths", paths, 0);
    for saved in &manifest.caches {
        let Some((name, settings)) = all.iter().find(|(name, _)| name.as_str() == saved.name) else {
            return Err(shelf.fail("read the backups in")(damaged(&manifest.id)).into());
        };
        from.shared().index.create_cache(name, &settings.to_json(), manifest.created)?;
        let Some(cache) = from.cache(name)? else { continue };
        fill(shelf, saved, &cache, how.work)?;
    }
    let copied = from.copy_to(to, how, &|| to.import(settings))?;
    drop(from);
    clear()?;
    Ok(copied)
}

/// Puts the rows of a cache into its index.
fn fill(shelf: &Shelf, saved: &SavedCache, cache: &Cache, work: &Work) -> Result<(), MigrateError> {
    let absent: HashSet<&str> = saved.absent.iter().map(String::as_str).collect();
    let refused = |rejection| MigrateError::Rejected { cache: cache.name().clone(), rejection };
    for name in &saved.rows {
        let mut rows: Vec<SavedPath> = Vec::new();
        let read = shelf.each_row(name, |row: PathRow| {
            let path = row.saved().ok_or_else(|| damaged(name))?;
            work.count(1);
            work.check()?;
            if !absent.contains(object_name(&path.nar).as_str()) {
                rows.push(path);
            }
            Ok(())
        });
        read.map_err(shelf.fail("read rows in"))?;
        for rows in rows.chunks(STEP) {
            let (index, id, now) = (cache.index(), cache.id(), cache.now());
            let mut records = Vec::with_capacity(rows.len());
            let mut objects = std::collections::BTreeMap::new();
            for row in rows {
                let record = record(row, cache).ok_or_else(|| shelf.fail("read rows in")(damaged(name)))?;
                objects.insert(record.file.clone(), row.nar.clone());
                records.push(record);
            }
            let objects: Vec<_> = objects.into_iter().collect();
            index.record_all(id, objects, (now, u64::MAX))?;
            if index.commit(id, records, &[], now)? == Commit::Changed {
                return Err(refused(Rejection::failed("the backup has a path twice")));
            }
        }
    }
    Ok(())
}

fn record(saved: &SavedPath, cache: &Cache) -> Option<PathRecord> {
    let info = NarInfo::parse(&saved.narinfo, &cache.settings().store_dir).ok()?;
    let hash_part = info.path.hash_part();
    let references = info.references.iter().map(StorePath::hash_part).filter(|part| *part != hash_part).collect();
    Some(PathRecord {
        hash_part,
        path: saved.path.clone(),
        nar_hash: saved.nar.nar_hash,
        file: object_name(&saved.nar),
        narinfo: saved.narinfo.clone(),
        references,
        listing_size: saved.nar.listing_size,
        version: 0,
    })
}

fn restore_audit(shelf: &Shelf, manifest: &Manifest, to: &Data) -> Result<(), DataError> {
    // Beside the files of a cache, its own log has all lines.
    let to_file = manifest.nars || !to.audit().path().exists();
    if manifest.nars {
        // Those of the copy itself, also of one that was interrupted.
        to.audit().clear().map_err(|error| io_error("remove", to.audit().path(), error))?;
    }
    for name in &manifest.audit {
        let mut lines: Vec<AuditLine> = Vec::new();
        let write =
            |lines: &mut Vec<AuditLine>| to.audit().restore(&*to.shared().index, &std::mem::take(lines), to_file);
        shelf
            .each_row(name, |line| {
                lines.push(line);
                if lines.len() >= STEP { write(&mut lines) } else { Ok(()) }
            })
            .and_then(|()| write(&mut lines))
            .map_err(shelf.fail("restore the audit log in"))?;
    }
    Ok(())
}
