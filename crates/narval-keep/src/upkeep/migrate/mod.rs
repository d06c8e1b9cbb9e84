//! Copies caches to another place: from a folder to a bucket, or back; and to a plain binary cache (`plain.rs`).
//!
//! A path is committed after its references, and after its NAR was received and verified like any upload. So the destination is a valid
//! cache at every moment, and a copy that was interrupted continues: NARs and paths that are there are not read again.

mod nars;
mod plain;
mod small;
mod walk;

use std::collections::HashSet;

use narval_files::Work;
use narval_nix::{HashPart, NarInfo, StoreDir};
use thiserror::Error;

pub use self::walk::Migrated;
use crate::access::grant::Grant;
use crate::cache::Cache;
use crate::data::Data;
use crate::error::DataError;
use crate::index::IndexError;
use crate::name::CacheName;
use crate::push::commit::{ATTEMPTS_MAX, is_same};
use crate::push::trust::merge;
use crate::records::paths::{Commit, PathRecord};
use crate::rejection::Rejection;
use crate::upkeep::Imported;

pub(super) use self::small::copy_small_files;
use self::walk::{Tally, To, Walk};

/// NARs that are copied at the same time.
const THREADS: usize = 8;

/// Why a cache was not copied completely.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The source or the destination cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Something of a cache was refused.
    #[error("cache '{cache}': {rejection}")]
    Rejected {
        /// The cache.
        cache: CacheName,
        /// Why.
        rejection: Rejection,
    },
}

impl From<IndexError> for MigrateError {
    fn from(error: IndexError) -> Self {
        Self::Data(error.into())
    }
}

impl Data {
    /// Copies caches, all or only one, to another place, with their settings, tokens and pins; called again, it copies what is missing. The source's files and paths
    /// are not changed. Where both have a path with different contents, the destination's is replaced.
    ///
    /// # Errors
    /// If one of the two places fails, or a NAR of the source is lost or damaged. What was copied so far stays.
    pub fn migrate_to(
        &self,
        to: &Self,
        only: Option<&CacheName>,
        grant: &Grant,
        work: &Work,
    ) -> Result<Migrated, MigrateError> {
        let how = Copied { only, grant, work, is_noted: true };
        let migrated = self.copy_to(to, how, &|| self.export_to(to, only))?;
        self.revoke_in(to)?;
        Ok(migrated)
    }

    /// Copies the paths of caches. `take_settings` is called before and after.
    pub(super) fn copy_to(
        &self,
        to: &Self,
        how: Copied<'_>,
        take_settings: &dyn Fn() -> Result<Imported, DataError>,
    ) -> Result<Migrated, MigrateError> {
        // Settings and tokens before paths, so that nothing private is ever public; pins after them.
        let tokens = take_settings()?.tokens;
        let Copied { only, work, .. } = how;
        let tally = Tally::default();
        let mut caches = self.caches()?;
        caches.retain(|cache| only.is_none_or(|only| cache.name() == only));
        let mut all = 0;
        for cache in &caches {
            all += cache.index().usage(cache.id())?.paths;
        }
        work.begin("copying", "paths", all, 0);
        for from in caches {
            let Some(to) = to.cache(from.name())? else { continue };
            let copying = Copying { from: &from, to: &to, how, tally: &tally };
            let copied = Walk::new(&from, &copying, &tally, work).run().and_then(|()| {
                copy_small_files(from.files(), (to.storage(), to.files()), work, &mut |old, len| {
                    to.small_bytes().change(old, len);
                    Tally::add(&tally.files, 1);
                })
            });
            copied.map_err(|rejection| MigrateError::Rejected { cache: from.name().clone(), rejection })?;
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
    /// Only this cache.
    pub(super) only: Option<&'a CacheName>,
    pub(super) grant: &'a Grant,
    pub(super) work: &'a Work,
    /// Whether each path is in the audit log of the destination.
    pub(super) is_noted: bool,
}

/// A cache that is being copied to another one.
struct Copying<'a> {
    from: &'a Cache,
    to: &'a Cache,
    how: Copied<'a>,
    tally: &'a Tally,
}

impl To for Copying<'_> {
    fn has(&self, parts: &[HashPart], ours: &[Option<Vec<u8>>]) -> Result<Vec<bool>, Rejection> {
        let theirs = self.to.index().narinfos(self.to.id(), parts)?;
        let store_dir = &self.from.settings().store_dir;
        let exists = |(ours, theirs): (&Option<Vec<u8>>, Option<Vec<u8>>)| {
            ours.as_ref().zip(theirs).is_some_and(|(ours, theirs)| is_copy(ours, &theirs, store_dir))
        };
        Ok(ours.iter().zip(theirs).map(exists).collect())
    }

    fn present(&self, parts: &[HashPart]) -> Result<Vec<bool>, Rejection> {
        Ok(self.to.index().present(self.to.id(), parts)?)
    }

    fn take(&self, mut batch: Vec<PathRecord>) -> Result<(), Rejection> {
        let mut names = self.copy_nars(&batch)?.into_iter();
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
        Ok(())
    }
}

impl Copying<'_> {
    fn commit(&self, batch: &[PathRecord]) -> Result<(), Rejection> {
        // By now they may be older than what another server has committed.
        self.how.work.check().map_err(|_| Rejection::interrupted("copy"))?;
        let to = self.to;
        let _no_collection = to.no_collection()?;
        let own: HashSet<&HashPart> = batch.iter().map(|record| &record.hash_part).collect();
        let references: HashSet<&HashPart> = batch.iter().flat_map(|record| &record.references).collect();
        let references: Vec<HashPart> = references.into_iter().filter(|part| !own.contains(part)).copied().collect();
        for _ in 0..ATTEMPTS_MAX {
            let present = to.index().present(to.id(), &references)?;
            let found = references.iter().zip(present).filter(|(_, present)| *present);
            let needed: Vec<HashPart> = found.map(|(part, _)| *part).collect();
            let records = batch.iter().map(|record| self.prepare(record)).collect::<Result<Vec<_>, _>>()?;
            if to.publish_all(&records, &needed)? == Commit::Done {
                return Ok(());
            }
        }
        Err(Rejection::conflict("other clients are committing the same paths; try again"))
    }

    /// The record of a path here, which differs from the source's in the file of its NAR.
    fn prepare(&self, source: &PathRecord) -> Result<PathRecord, Rejection> {
        let (to, path) = (self.to, &source.path);
        let nar = to.index().file(to.id(), &source.file)?;
        let (file, nar) = nar.filter(|(_, nar)| nar.nar_hash == source.nar_hash).ok_or_else(|| {
            let message =
                format_args!("the NAR of '{path}' was removed while it was copied; run the same command again");
            Rejection::conflict(message)
        })?;
        let store_dir = &self.from.settings().store_dir;
        let parsed = NarInfo::parse(&source.narinfo, store_dir);
        let mut info = parsed.map_err(|error| Rejection::failed(format_args!("'{path}': {error}")))?;
        let old = to.index().path(to.id(), &source.hash_part)?;
        let before = old.as_ref().and_then(|old| NarInfo::parse(&old.narinfo, store_dir).ok());
        if let Some(before) = before.filter(|before| is_same(before, &info)) {
            merge(&mut info, &before.signatures);
        }
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
