//! NARs that are not where they should be.
//!
//! A reader who finds that a NAR is missing has its paths removed, so that they can be pushed again. But a storage can be wrong: its address
//! may lead to another bucket for a while. So nothing is removed unless the store says that there is no such object, and shows the id of this
//! cache afterwards; readers can have only a few NARs removed in a minute; and the paths are remembered for a day. They come back when
//! their NARs do.

use std::collections::BTreeMap;
use std::io;

use narval_nix::HashPart;

use crate::access::grant::{Grant, Scope, Scopes};
use crate::cache::Cache;
use crate::data::Data;
use crate::records::paths::{LostPath, NarRecord};
use crate::rejection::Rejection;
use crate::shared::{Finder, LOSSES_MAX};

impl Data {
    /// As [`Cache::restore_lost`], in all caches. What fails is tried again later.
    pub(super) fn restore_lost(&self) {
        let restore = |cache: &Cache| cache.restore_lost().unwrap_or_else(|rejection| tracing::debug!("{rejection}"));
        match self.caches() {
            Ok(caches) => caches.iter().for_each(restore),
            Err(error) => tracing::debug!("{error}"),
        }
    }
}

impl Cache {
    /// Whether the NAR of this name has a row. Nobody is told that it is here: whoever only looks does not keep it from being collected.
    pub(super) fn has_row(&self, name: &str, nar: &NarRecord) -> Result<bool, Rejection> {
        Ok(self.index().files_of(self.id(), &nar.nar_hash)?.iter().any(|(own, _)| own == name))
    }

    /// Checks again, under the exclusive lock, whether a file below `nar/` is lost. If it is, removes it from the index, with its paths.
    pub(super) fn lost(&self, name: &str, nar: &NarRecord, finder: Finder) -> Result<(), Rejection> {
        let fail = |error: io::Error| Rejection::of_file("look at", name, &error);
        let _alone = self.alone()?;
        let is_damaged = finder == Finder::Fsck { is_damaged: true };
        if !self.has_row(name, nar)? || (!is_damaged && self.files().check_nar(name, nar).map_err(fail)?) {
            return Ok(());
        }
        if finder == Finder::Read && !self.shared().losses.may_be_more() {
            tracing::error!(
                "cache '{}': 'nar/{name}' is not there, and neither were {LOSSES_MAX} others within a minute: nothing more is removed; \
                 check the storage, then run 'narval cache fsck'",
                self.name()
            );
            let message = "the cache's storage lacks several NARs; its operator has to look after it";
            return Err(Rejection::unavailable(message));
        }
        // What a folder lacks does not come back.
        let is_doubted = self.storage().publishes_later() && !is_damaged;
        self.index().remove_file(self.id(), name, is_doubted, self.now())?;
        tracing::error!(
            "cache '{}': 'nar/{name}' is lost or damaged: it and its paths are removed; push them again",
            self.name()
        );
        self.audit(&Grant::administrator("repair"), "lost", name, &Ok(nar.nar_hash.to_string()));
        self.reconcile_now()?;
        if self.is_local() { self.remove_garbage(self.now()) } else { Ok(()) }
    }

    /// Brings back paths that were removed because their NARs were not there, if they are there now and everything that the paths refer to
    /// is. Only in a bucket: in a folder, what was removed is gone.
    pub(super) fn restore_lost(&self) -> Result<(), Rejection> {
        if !self.storage().publishes_later() {
            return Ok(());
        }
        let mut by_file: BTreeMap<String, Vec<LostPath>> = BTreeMap::new();
        for path in self.index().lost(self.id())? {
            by_file.entry(path.file.clone()).or_default().push(path);
        }
        let (mut found, mut done) = (Vec::new(), Vec::new());
        for (file, paths) in by_file {
            let parts: Vec<HashPart> = paths.iter().map(|path| path.hash_part).collect();
            let present = self.index().present(self.id(), &parts)?;
            // Somebody has pushed it again.
            let (again, gone): (Vec<_>, Vec<_>) =
                paths.into_iter().zip(present).partition(|(_, is_present)| *is_present);
            done.extend(again.into_iter().map(|(path, _)| path.hash_part));
            let Some((LostPath { nar, .. }, _)) = gone.first() else { continue };
            let fail = |error: io::Error| Rejection::of_file("look at", &file, &error);
            if self.files().check_nar(&file, nar).map_err(fail)? && self.is_recorded_again(&file, nar)? {
                found.extend(gone.into_iter().map(|(path, _)| path));
            }
        }
        // What had no signature of this cache's gets none.
        let grant = Grant { scopes: Scopes::default().with(Scope::Push), ..Grant::administrator("repair") };
        // References before referrers: as long as one more of them succeeds.
        let mut before = usize::MAX;
        while found.len() < before {
            before = found.len();
            found.retain(|path| {
                let is_back = self.commit_narinfos(&[(path.hash_part, &path.narinfo)], &grant).is_ok();
                if is_back {
                    tracing::info!(
                        "cache '{}': the NAR of {} is found again, and so is the path",
                        self.name(),
                        path.hash_part
                    );
                    done.push(path.hash_part);
                }
                !is_back
            });
        }
        if done.is_empty() { Ok(()) } else { Ok(self.index().forget_lost(self.id(), &done)?) }
    }

    /// Records a NAR whose object is there again. Returns `false` if it is not any more.
    fn is_recorded_again(&self, file: &str, nar: &NarRecord) -> Result<bool, Rejection> {
        if self.index().file(self.id(), file)?.is_some_and(|(own, _)| own == file) {
            return Ok(true);
        }
        self.index().record_all(self.id(), vec![(file.to_owned(), nar.clone())], (self.now(), u64::MAX))?;
        // Nobody knew whose it was: it may have been removed before.
        let exists = self.files().check_nar(file, nar).map_err(|error| Rejection::of_file("look at", file, &error))?;
        if !exists {
            self.index().remove_file(self.id(), file, false, self.now())?;
        }
        Ok(exists)
    }
}
