//! Copies all caches to another place: from a folder to a bucket, or back.
//!
//! A path is committed after its references, and after its NAR was received and verified like any upload. So the destination is a valid
//! cache at every moment, and a copy that was interrupted continues: NARs and paths that are there are not read again.

mod nars;
mod small;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use narval_files::Work;
use narval_nix::{HashPart, NarInfo, StoreDir};
use thiserror::Error;

pub(super) use self::small::copy_small_files;

use crate::index::{Commit, IndexError, PathRecord};
use crate::push::commit::{ATTEMPTS_MAX, is_same};
use crate::push::trust::merge;
use crate::{Cache, Data, DataError, Grant, Imported, Refusal, RefusalKind};

/// Paths in one commit.
const BATCH: usize = 128;

/// Paths that are compared at a time.
const PAGE: usize = 1024;

/// NARs that are copied at the same time.
const THREADS: usize = 8;

/// Why a cache was not copied completely.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The source or the destination cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Something of a cache was refused.
    #[error("cache '{cache}': {refusal}")]
    Refused {
        /// The cache.
        cache: crate::CacheName,
        /// Why.
        refusal: Refusal,
    },
}

impl From<IndexError> for MigrateError {
    fn from(error: IndexError) -> Self {
        Self::Data(error.into())
    }
}

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Migrated {
    /// Paths that were committed.
    pub paths: u64,
    /// Paths of the source that were there already.
    pub present: u64,
    /// NARs that were sent.
    pub nars: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Logs, realisations and other small files.
    pub files: u64,
    /// Tokens that were not there.
    pub tokens: u64,
    /// Pins of the source that the destination has.
    pub pins: u64,
}

/// Counts while threads copy.
#[derive(Default)]
struct Tally {
    paths: AtomicU64,
    present: AtomicU64,
    nars: AtomicU64,
    bytes: AtomicU64,
    files: AtomicU64,
}

impl Tally {
    fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    fn migrated(&self) -> Migrated {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (paths, present, nars) = (get(&self.paths), get(&self.present), get(&self.nars));
        Migrated { paths, present, nars, bytes: get(&self.bytes), files: get(&self.files), tokens: 0, pins: 0 }
    }
}

impl Data {
    /// Copies all caches to another place, with their settings, tokens and pins; called again, it copies what is missing. The source's files and paths are not changed. Where both have a path with different
    /// contents, the destination's is replaced.
    ///
    /// # Errors
    /// If one of the two places fails, or a NAR of the source is lost or damaged. What was copied so far stays.
    pub fn migrate_to(&self, to: &Self, grant: &Grant, work: &Work) -> Result<Migrated, MigrateError> {
        let migrated = self.copy_to(to, Copied { grant, work, is_noted: true }, &|| self.export_to(to))?;
        self.revoke_in(to)?;
        Ok(migrated)
    }

    /// Copies the paths of all caches. `take_settings` is called before and after.
    pub(super) fn copy_to(
        &self,
        to: &Self,
        how: Copied<'_>,
        take_settings: &dyn Fn() -> Result<Imported, DataError>,
    ) -> Result<Migrated, MigrateError> {
        // Settings and tokens before paths, so that nothing private is ever public; pins after them.
        let tokens = take_settings()?.tokens;
        let work = how.work;
        let tally = Tally::default();
        let caches = self.caches()?;
        let mut all = 0;
        for cache in &caches {
            all += cache.index().usage(cache.id())?.paths;
        }
        work.begin("copying", "paths", all, 0);
        for from in caches {
            let Some(to) = to.cache(from.name())? else { continue };
            let copied =
                Copying { from: &from, to: &to, how, tally: &tally, work, batch: Vec::new(), planned: HashSet::new() }
                    .run();
            copied.map_err(|refusal| MigrateError::Refused { cache: from.name().clone(), refusal })?;
        }
        let later = take_settings()?;
        let (tokens, pins) = ((tokens + later.tokens) as u64, later.pins as u64);
        Ok(Migrated { tokens, pins, ..tally.migrated() })
    }

    /// Revokes tokens that were revoked here after they were copied.
    fn revoke_in(&self, to: &Self) -> Result<(), IndexError> {
        let index = &to.shared().index;
        for token in self.shared().index.tokens()? {
            if let Some(revoked) = token.revoked
                && index.token(&token.id)?.is_some_and(|token| token.revoked.is_none())
            {
                index.revoke_token(&token.id, revoked)?;
            }
        }
        Ok(())
    }
}

/// How caches are copied.
#[derive(Clone, Copy)]
pub(super) struct Copied<'a> {
    pub(super) grant: &'a Grant,
    pub(super) work: &'a Work,
    /// Whether each path is in the audit log of the destination.
    pub(super) is_noted: bool,
}

/// A cache that is being copied.
struct Copying<'a> {
    from: &'a Cache,
    to: &'a Cache,
    how: Copied<'a>,
    tally: &'a Tally,
    work: &'a Work,
    /// Paths to be committed next, references first.
    batch: Vec<PathRecord>,
    /// Paths of this page that were visited.
    planned: HashSet<HashPart>,
}

/// A path whose references are being visited.
struct Visited {
    record: PathRecord,
    /// References that the destination lacks.
    lacking: Vec<HashPart>,
}

impl Copying<'_> {
    fn run(mut self) -> Result<(), Refusal> {
        let (mut page, from) = (Vec::new(), self.from);
        from.each_path(|path| {
            page.push(path.hash_part);
            if page.len() == PAGE { self.copy_page(&std::mem::take(&mut page)) } else { Ok(()) }
        })?;
        self.copy_page(&page)?;
        let to = self.to;
        copy_small_files(from.files(), (to.storage(), to.files()), self.work, &mut |old, len| {
            to.small_bytes().change(old, len);
            Tally::add(&self.tally.files, 1);
        })
    }

    fn copy_page(&mut self, parts: &[HashPart]) -> Result<(), Refusal> {
        let (from, to) = (self.from, self.to);
        let (ours, theirs) = (from.index().narinfos(from.id(), parts)?, to.index().narinfos(to.id(), parts)?);
        let store_dir = &from.settings().store_dir;
        for ((part, ours), theirs) in parts.iter().zip(ours).zip(theirs) {
            // Removed since.
            let Some(ours) = ours else { continue };
            if theirs.is_some_and(|theirs| is_copy(&ours, &theirs, store_dir)) {
                // One that was copied for the sake of another path is counted already.
                if !self.planned.contains(part) {
                    Tally::add(&self.tally.present, 1);
                    self.work.count(1);
                }
                continue;
            }
            self.visit(part)?;
        }
        self.flush()?;
        self.planned.clear();
        Ok(())
    }

    /// Adds a path to the batch after its references. In a circle of references, one of them is first.
    fn visit(&mut self, part: &HashPart) -> Result<(), Refusal> {
        let mut stack: Vec<Visited> = self.enter(part)?.into_iter().collect();
        while let Some(visited) = stack.last_mut() {
            if let Some(reference) = visited.lacking.pop() {
                stack.extend(self.enter(&reference)?);
                continue;
            }
            self.batch.extend(stack.pop().map(|visited| visited.record));
            if self.batch.len() >= BATCH {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// A path that was not visited before.
    fn enter(&mut self, part: &HashPart) -> Result<Option<Visited>, Refusal> {
        if !self.planned.insert(*part) {
            return Ok(None);
        }
        // One that the source does not have is in an upstream.
        let Some(record) = self.from.index().path(self.from.id(), part)? else { return Ok(None) };
        let present = self.to.index().present(self.to.id(), &record.references)?;
        let references = record.references.iter().zip(present);
        let lacking = references.filter(|(_, present)| !present).map(|(reference, _)| *reference).collect();
        Ok(Some(Visited { record, lacking }))
    }

    /// Copies the NARs of the batch, and commits it.
    fn flush(&mut self) -> Result<(), Refusal> {
        let mut batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        let fail = |error: std::io::Error| Refusal::of_file("copy", "NARs", &error);
        self.work.check().map_err(fail)?;
        let names = self.copy_nars(&batch)?;
        let mut names = names.into_iter();
        // The name of the NAR here; a path that was removed meanwhile has none.
        batch.retain_mut(|record| match names.next().flatten() {
            Some(name) => {
                record.file = name;
                true
            }
            None => false,
        });
        self.commit(&batch)?;
        if self.how.is_noted {
            let paths = batch.iter().map(|record| (record.path.as_str(), "migrated"));
            self.to.audit_done(self.how.grant, "narinfo", paths);
        }
        Tally::add(&self.tally.paths, batch.len() as u64);
        self.work.count(batch.len() as u64);
        Ok(())
    }

    fn commit(&self, batch: &[PathRecord]) -> Result<(), Refusal> {
        let to = self.to;
        let failed = |error: std::io::Error| Refusal::of_file("write", "a narinfo", &error);
        let _no_collection = to.storage().lock_shared().map_err(failed)?;
        let own: HashSet<&HashPart> = batch.iter().map(|record| &record.hash_part).collect();
        let references: HashSet<&HashPart> = batch.iter().flat_map(|record| &record.references).collect();
        let references: Vec<HashPart> = references.into_iter().filter(|part| !own.contains(part)).copied().collect();
        for _ in 0..ATTEMPTS_MAX {
            let present = to.index().present(to.id(), &references)?;
            let found = references.iter().zip(present).filter(|(_, present)| *present);
            let needed: Vec<HashPart> = found.map(|(part, _)| *part).collect();
            let records = batch.iter().map(|record| self.prepare(record)).collect::<Result<Vec<_>, _>>()?;
            if to.publish_all(&records, &needed, &[])? == Commit::Done {
                return Ok(());
            }
        }
        Err(Refusal::new(RefusalKind::Conflict, "other clients are committing the same paths; try again"))
    }

    /// The record of a path here, which differs from the source's in the file of its NAR.
    fn prepare(&self, source: &PathRecord) -> Result<PathRecord, Refusal> {
        let (to, path) = (self.to, &source.path);
        let nar = to.index().file(to.id(), &source.file)?;
        let nar = nar.filter(|nar| nar.nar_hash == source.nar_hash).ok_or_else(|| {
            let message =
                format_args!("the NAR of '{path}' was removed while it was copied; run the same command again");
            Refusal::new(RefusalKind::Conflict, message)
        })?;
        let store_dir = &self.from.settings().store_dir;
        let parsed = NarInfo::parse(&source.narinfo, store_dir);
        let mut info = parsed.map_err(|error| Refusal::new(RefusalKind::Failed, format_args!("'{path}': {error}")))?;
        let old = to.index().path(to.id(), &source.hash_part)?;
        let before = old.as_ref().and_then(|old| NarInfo::parse(&old.narinfo, store_dir).ok());
        if let Some(before) = before.filter(|before| is_same(before, &info)) {
            merge(&mut info, &before.signatures);
        }
        let file = to.files().served_name(&source.file, &nar);
        info.url = format!("nar/{file}");
        info.compression = nar.compression;
        (info.file_hash, info.file_size) = (Some(nar.file_hash.into()), Some(nar.file_size));
        Ok(PathRecord {
            file,
            narinfo: info.render(store_dir).into_bytes(),
            listing_size: nar.listing_size,
            version: old.map_or(0, |old| old.version),
            ..source.clone()
        })
    }
}

/// Whether `theirs` has the contents, the references and the signatures of `ours`.
fn is_copy(ours: &[u8], theirs: &[u8], store_dir: &StoreDir) -> bool {
    let (Ok(ours), Ok(theirs)) = (NarInfo::parse(ours, store_dir), NarInfo::parse(theirs, store_dir)) else {
        return false;
    };
    is_same(&ours, &theirs) && ours.signatures.iter().all(|signature| theirs.signatures.contains(signature))
}
