//! Makes a backup, also while servers run.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
#[cfg(test)]
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use narval_files::Work;
use narval_nix::Sha256Hasher;

use super::hold::Hold;
use super::place::Shelf;
use super::prune::prune;
use super::rows::{PathRow, Rows};
use super::{BackedUp, BackupOptions, BackupSummary, Manifest, Removed, SavedCache, VERSION};
use crate::cache::Cache;
use crate::data::Data;
use crate::error::{DataError, io_error};
use crate::in_use::InUse;
use crate::location::StorageLocation;
use crate::records::audit::AuditLine;
use crate::records::paths::{CacheId, SavedPath};
use crate::rejection::Rejection;
use crate::storage::{CacheStorage, Incoming, object_name, several};
use crate::upkeep::MigrateError;
use crate::upkeep::migrate::copy_small_files;

/// Rows of paths in one file: by their numbers, which are given out once, so that a file stays as it is when paths are removed from others.
const PATHS_STEP: i64 = 1 << 14;

/// Seconds of the audit log in one file: a week.
const AUDIT_STEP: u64 = 7 * 24 * 60 * 60;

/// NARs that are copied at the same time.
const THREADS: usize = 8;

/// The bytes that are copied at a time.
const BUFFER_LEN: usize = 256 * 1024;

/// The most problems that are described.
const PROBLEMS_MAX: usize = 1000;

impl Data {
    /// Saves everything into another folder or bucket, of which nothing is written that it has. Servers run meanwhile, and what they have answered
    /// with success before this is called is in it.
    ///
    /// # Errors
    /// If one of the two places fails. Then there is no new backup, and the next one finds the bytes that were copied; unless it is the removal of old ones that fails.
    pub fn backup(&self, to: &StorageLocation, options: BackupOptions, work: &Work) -> Result<BackedUp, MigrateError> {
        let shelf = Shelf::open_to_write(to)?;
        let _alone = match to {
            StorageLocation::Folder(folder) => Some(InUse::by_backup(folder)?),
            StorageLocation::Bucket { .. } => None,
        };
        let hold = Hold::begin(&*self.shared().index, to)?;
        hold.keep_while(|| {
            let mut done = self.write_backup(&shelf, &hold, options, work)?;
            // One that lacks something does not stand for those that have it.
            if let Some(keep) = options.keep.filter(|_| done.problems.is_empty()) {
                done.removed = prune(&shelf, &hold, keep, done.backup.created, work)?;
            }
            Ok(done)
        })
    }

    /// Removes old backups of a place, as if it were this time.
    #[cfg(test)]
    pub(crate) fn prune_at(
        &self,
        place: &StorageLocation,
        keep: NonZeroUsize,
        now: u64,
        work: &Work,
    ) -> Result<Removed, MigrateError> {
        let (shelf, hold) = (Shelf::open_to_write(place)?, Hold::begin(&*self.shared().index, place)?);
        prune(&shelf, &hold, keep, now, work)
    }

    fn write_backup(
        &self,
        shelf: &Shelf,
        hold: &Hold<'_>,
        options: BackupOptions,
        work: &Work,
    ) -> Result<BackedUp, MigrateError> {
        let index = &*self.shared().index;
        let created = index.now();
        let there = shelf.rows().map_err(shelf.fail("list the rows in"))?;
        let fail = shelf.fail("write rows in");
        work.begin("reading", "the index", 0, 0);
        let mut keys_left_out = 0;
        if !options.with_keys {
            keys_left_out = index.sign_keys()?.len() as u64;
        }
        let mut settings = Rows::new(shelf, &there);
        let mut text = Vec::new();
        self.save(options.with_keys, &mut text)?;
        settings.add_text(0, &text).map_err(&fail)?;
        let (settings, new_settings) = settings.finish().map_err(&fail)?;
        let (audit, new_audit) = self.write_audit(Rows::new(shelf, &there))?;
        let caches = self.caches()?;
        let (mut saved, new_paths) = self.write_paths(shelf, &there, &caches, work)?;
        let mut done = BackedUp {
            backup: BackupSummary {
                id: String::new(),
                created,
                has_nars: options.with_nars,
                has_keys: options.with_keys,
                paths: 0,
                bytes: 0,
            },
            nars: 0,
            nar_bytes: 0,
            rows: new_settings + new_audit + new_paths,
            files: 0,
            deleted: 0,
            keys_left_out,
            problems: Vec::new(),
            removed: Removed::default(),
        };
        if options.with_nars {
            let (paths, bytes) =
                saved.iter().fold((0, 0), |(paths, bytes), cache| (paths + cache.paths, bytes + cache.bytes));
            work.begin("copying", "paths", paths, bytes);
            for (cache, saved) in caches.iter().zip(&mut saved) {
                let copied = copy_cache(shelf, cache, saved, &mut done, work);
                copied.map_err(|rejection| MigrateError::Rejected { cache: cache.name().clone(), rejection })?;
            }
        }
        let manifest = Manifest {
            version: VERSION,
            id: shelf.next_id()?,
            created,
            narval: env!("CARGO_PKG_VERSION").to_owned(),
            nars: options.with_nars,
            keys: options.with_keys,
            settings: settings.into_iter().next().unwrap_or_default(),
            audit,
            caches: saved,
        };
        work.check().map_err(&fail)?;
        // What was there when this began may have been collected, or removed with an old backup.
        hold.renew()?;
        shelf.complete(&manifest)?;
        done.backup = BackupSummary::from(&manifest);
        Ok(done)
    }

    fn write_audit(&self, mut rows: Rows<'_>) -> Result<(Vec<String>, u64), DataError> {
        let fail = |error| io_error("save", self.audit().path(), error);
        let (mut week, mut failed) = (0, None);
        self.read_audit(0, |line: AuditLine| {
            week = week.max((line.time / AUDIT_STEP).cast_signed());
            if failed.is_none() {
                failed = rows.add(week, &line).err();
            }
        })?;
        failed.map_or_else(|| rows.finish(), Err).map_err(fail)
    }

    /// Writes the rows of all paths as they are at one moment.
    fn write_paths(
        &self,
        shelf: &Shelf,
        there: &HashSet<String>,
        caches: &[Cache],
        work: &Work,
    ) -> Result<(Vec<SavedCache>, u64), DataError> {
        struct Writing<'a> {
            saved: Vec<SavedCache>,
            rows: Vec<Rows<'a>>,
        }
        let ids: Vec<CacheId> = caches.iter().map(Cache::id).collect();
        let begin = || Writing {
            saved: caches
                .iter()
                .map(|cache| SavedCache {
                    name: cache.name().to_string(),
                    paths: 0,
                    bytes: 0,
                    rows: Vec::new(),
                    absent: Vec::new(),
                })
                .collect(),
            rows: caches.iter().map(|_| Rows::new(shelf, there)).collect(),
        };
        let index = &*self.shared().index;
        let written = std::cell::RefCell::new(None);
        let read = index.each_saved(&ids, begin, |writing, cache, number, path| {
            let at = ids.iter().position(|id| *id == cache).unwrap_or_default();
            let (Some(saved), Some(rows)) = (writing.saved.get_mut(at), writing.rows.get_mut(at)) else {
                return Ok(());
            };
            saved.paths += 1;
            saved.bytes += path.nar.file_size;
            let row = PathRow::try_from(path)?;
            let added = work.check().and_then(|()| rows.add(number / PATHS_STEP, &row));
            // An error of the place is not one of the database.
            added.map_err(|error| {
                let message = error.to_string();
                written.replace(Some(error));
                message.into()
            })
        });
        if let Some(error) = written.into_inner() {
            return Err(shelf.fail("write rows in")(error));
        }
        let Writing { mut saved, rows } = read?;
        let mut new = 0;
        for (saved, rows) in saved.iter_mut().zip(rows) {
            let (names, of_these) = rows.finish().map_err(shelf.fail("write rows in"))?;
            saved.rows = names;
            new += of_these;
        }
        Ok((saved, new))
    }
}

/// What became of a NAR.
enum Copied {
    Done,
    /// Its path was deleted meanwhile.
    Deleted,
    /// The cache does not have it as its index says.
    Lost(&'static str),
}

/// Copies the NARs and small files of a cache that the shelf does not have.
fn copy_cache(
    shelf: &Shelf,
    cache: &Cache,
    saved: &mut SavedCache,
    done: &mut BackedUp,
    work: &Work,
) -> Result<(), Rejection> {
    let failed = |error: io::Error| Rejection::of_file("copy to", shelf.storage.place().display(), &error);
    let to = shelf.storage.open_cache(cache.name()).map_err(failed)?;
    let mut there: HashMap<String, u64> = HashMap::new();
    let list = &mut |file: crate::storage::StoredFile| {
        if let Some(name) = file.name.strip_prefix("nar/") {
            there.insert(name.to_owned(), file.len);
        }
    };
    to.each_nar(list).map_err(failed)?;
    let (nars, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let (absent, results) = (Mutex::new(Vec::new()), Mutex::new((0, Vec::new())));
    for name in &saved.rows {
        let mut wanted: Vec<SavedPath> = Vec::new();
        shelf
            .each_row(name, |row: PathRow| {
                let path = row.saved().ok_or_else(|| super::place::damaged(name))?;
                let file = object_name(&path.nar);
                if there.get(&file) == Some(&path.nar.file_size) {
                    work.count(1);
                    work.count_bytes(path.nar.file_size);
                } else {
                    // Another path with the same NAR does not copy it again.
                    there.insert(file, path.nar.file_size);
                    wanted.push(path);
                }
                Ok(())
            })
            .map_err(failed)?;
        several(THREADS, &wanted, |path| {
            let copied = copy_nar(cache, &*to, path, work)?;
            work.count(1);
            let problem = match copied {
                Copied::Done => {
                    nars.fetch_add(1, Ordering::Relaxed);
                    bytes.fetch_add(path.nar.file_size, Ordering::Relaxed);
                    return Ok(());
                }
                Copied::Deleted => None,
                Copied::Lost(how) => Some(format!("cache '{}': the NAR of '{}' is {how}", cache.name(), path.path)),
            };
            absent.lock().unwrap_or_else(PoisonError::into_inner).push(object_name(&path.nar));
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            match problem {
                Some(problem) if results.1.len() < PROBLEMS_MAX => results.1.push(problem),
                Some(_) => {}
                None => results.0 += 1,
            }
            Ok(())
        })?;
    }
    let from = cache.files();
    copy_small_files(from, (&*shelf.storage, &*to), work, &mut |_, _| done.files += 1)?;
    saved.absent = absent.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (deleted, problems) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.deleted += deleted;
    done.problems.extend(problems);
    done.nars += nars.into_inner();
    done.nar_bytes += bytes.into_inner();
    Ok(())
}

/// Copies the file of a NAR, whose hash is verified.
fn copy_nar(cache: &Cache, to: &dyn CacheStorage, path: &SavedPath, work: &Work) -> Result<Copied, Rejection> {
    let nar = &path.nar;
    let name = object_name(nar);
    let fail = |error: io::Error| Rejection::of_file("copy", &name, &error);
    let Some(from) = cache.files().read(&format!("nar/{}", path.file)).map_err(fail)? else {
        return absent(cache, path, "lost");
    };
    let mut received = to.receive(&name, nar.file_size).map_err(fail)?;
    let (mut from, mut hasher, mut len) = (work.reading(from), Sha256Hasher::new(), 0);
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(fail(error)),
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        len += read as u64;
        if len > nar.file_size {
            break;
        }
        hasher.update(bytes);
        received.write_all(bytes).map_err(fail)?;
    }
    if len != nar.file_size || hasher.finish() != nar.file_hash {
        return absent(cache, path, "damaged");
    }
    let stored = match received {
        Incoming::File(file) => file.file().sync_all().and_then(|()| to.write(&format!("nar/{name}"), file)),
        object @ Incoming::Object(_) => to.store(object, &name, nar, None),
    };
    stored.map_err(fail)?;
    Ok(Copied::Done)
}

/// Why the cache does not have a NAR as it was when the backup began.
fn absent(cache: &Cache, path: &SavedPath, how: &'static str) -> Result<Copied, Rejection> {
    let now = cache.index().file(cache.id(), &path.file)?;
    let is_same = now.is_some_and(|(_, nar)| nar.file_hash == path.nar.file_hash);
    Ok(if is_same { Copied::Lost(how) } else { Copied::Deleted })
}
