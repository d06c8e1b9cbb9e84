//! NARs of paths that are being copied.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Copying, THREADS, Tally};
use crate::index::{Lost, NarRecord, PathRecord};
use crate::{Begin, NarFileName, Refusal, RefusalKind};

/// The name of a path's NAR in the destination; `None` if the path is gone.
type Named = Option<String>;

impl Copying<'_> {
    /// Copies the NARs of these paths, several at the same time. After the first failure, no other one is begun.
    pub(super) fn copy_nars(&self, records: &[PathRecord]) -> Result<Vec<Named>, Refusal> {
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            let mut done = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(record) = records.get(number) else { return done };
                match self.copy_nar(record) {
                    Ok(named) => done.push((number, named)),
                    Err(refusal) => {
                        next.store(records.len(), Ordering::Relaxed);
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(refusal);
                    }
                }
            }
        };
        let done = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..records.len().min(THREADS)).map(|_| scope.spawn(work)).collect();
            let mut done = work();
            for thread in threads {
                match thread.join() {
                    Ok(copied) => done.extend(copied),
                    Err(_) => {
                        let refusal = Refusal::new(RefusalKind::Failed, "a thread that copies NARs has panicked");
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(refusal);
                    }
                }
            }
            done
        });
        if let Some(refusal) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(refusal);
        }
        let mut named: Vec<Named> = vec![None; records.len()];
        for (number, name) in done {
            if let Some(slot) = named.get_mut(number) {
                *slot = name;
            }
        }
        Ok(named)
    }

    fn copy_nar(&self, record: &PathRecord) -> Result<Named, Refusal> {
        let (from, to) = (self.from, self.to);
        let Some(nar) = from.index().file(from.id(), &record.file)? else { return self.lost(record) };
        // Its own name, even if the path uses one of another encoding.
        let name = NarFileName::new(nar.file_hash, nar.compression).to_string();
        let stored = match to.begin_nar(&name, Some(nar.file_size), self.how.grant)? {
            Begin::Known(stored) => stored,
            Begin::Receive(upload) => {
                let fail = |error: std::io::Error| damaged(record, &format_args!("cannot be read ({error})"));
                let Some(file) = from.files().open_nar(&record.file, &nar).map_err(fail)? else {
                    return self.lost(record);
                };
                let stored = upload.receive(&mut self.work.reading(file) as &mut dyn Read).map_err(|refusal| {
                    match refusal.kind {
                        RefusalKind::Unprocessable | RefusalKind::Malformed => {
                            damaged(record, &format_args!("is damaged ({refusal})"))
                        }
                        _ => refusal,
                    }
                })?;
                Tally::add(&self.tally.nars, 1);
                Tally::add(&self.tally.bytes, nar.file_size);
                stored
            }
        };
        if stored.nar_hash != nar.nar_hash || nar.nar_hash != record.nar_hash {
            return Err(damaged(record, &"has another hash than the index says"));
        }
        self.copy_aliases(&nar, &name)?;
        Ok(Some(name))
    }

    /// Other names of a NAR, which clients may remember.
    fn copy_aliases(&self, nar: &NarRecord, name: &str) -> Result<(), Refusal> {
        let (from, to) = (self.from, self.to);
        for (alias, other) in from.index().files_of(from.id(), &nar.nar_hash)? {
            if alias == name || other != *nar || to.index().file(to.id(), &alias)?.is_some() {
                continue;
            }
            let Some(kept) = to.index().file(to.id(), name)? else { continue };
            let fail = |error: std::io::Error| Refusal::of_file("name", &alias, &error);
            let _no_collection = to.storage().lock_shared().map_err(fail)?;
            let recorded = to.index().add_file(to.id(), &alias, &kept, to.now())?;
            if to.storage().publishes_later() {
                // A name in the index only.
                to.index().settle_file(to.id(), &alias, recorded)?;
            } else if let Err(error) = to.files().add_alias(name, &alias) {
                to.index().remove_file(to.id(), &alias, Lost::Certainly)?;
                return Err(fail(error));
            }
        }
        Ok(())
    }

    /// The NAR of a path cannot be found.
    fn lost(&self, record: &PathRecord) -> Result<Named, Refusal> {
        match self.from.index().path(self.from.id(), &record.hash_part)? {
            // A server has collected or replaced it meanwhile.
            None => Ok(None),
            Some(now) if now.version != record.version => {
                let message = format!("'{}' was changed while it was copied; run the same command again", record.path);
                Err(Refusal::new(RefusalKind::Conflict, message))
            }
            Some(_) => Err(damaged(record, &"is lost")),
        }
    }
}

fn damaged(record: &PathRecord, how: &dyn std::fmt::Display) -> Refusal {
    let message = format!(
        "the NAR of '{}' in the source {how}: 'narval cache fsck --contents --repair' on the source removes the path; then run the same \
         command again",
        record.path
    );
    Refusal::new(RefusalKind::Unprocessable, message)
}
