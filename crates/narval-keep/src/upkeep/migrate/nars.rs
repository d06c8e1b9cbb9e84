//! NARs of paths that are being copied.

use std::io::Read;

use super::Copying;
use super::THREADS;
use super::walk::Tally;
use crate::cache::Cache;
use crate::name::NarFileName;
use crate::receive::Begin;
use crate::records::paths::PathRecord;
use crate::rejection::{Rejection, RejectionKind};
use crate::storage::several;

/// The name of a path's NAR in the destination; `None` if the path is gone.
type Named = Option<String>;

impl Copying<'_> {
    /// Copies the NARs of these paths.
    pub(super) fn copy_nars(&self, records: &[PathRecord]) -> Result<Vec<Named>, Rejection> {
        several(THREADS, records, |record| self.copy_nar(record))
    }

    fn copy_nar(&self, record: &PathRecord) -> Result<Named, Rejection> {
        let (from, to) = (self.from, self.to);
        let Some((_, nar)) = from.index().file(from.id(), &record.file)? else { return lost(from, record) };
        let name = NarFileName::new(nar.file_hash, nar.compression).to_string();
        let stored = match to.begin_nar(&name, Some(nar.file_size), self.how.grant)? {
            Begin::Known(stored) => stored,
            Begin::Receive(upload) => {
                let fail = |error: std::io::Error| damaged(record, &format_args!("cannot be read ({error})"));
                let Some(file) = from.files().open_nar(&record.file, &nar).map_err(fail)? else {
                    return lost(from, record);
                };
                let stored =
                    upload.receive(&mut self.how.work.reading(file) as &mut dyn Read).map_err(|rejection| {
                        match rejection.kind {
                            RejectionKind::Unprocessable | RejectionKind::Malformed => {
                                damaged(record, &format_args!("is damaged ({rejection})"))
                            }
                            _ => rejection,
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
        for former in from.index().former_of(from.id(), &nar.nar_hash)? {
            to.index().remember_former(to.id(), former, nar.nar_hash)?;
        }
        Ok(Some(stored.name.to_string()))
    }
}

/// The NAR of a path cannot be found.
pub(super) fn lost<T>(from: &Cache, record: &PathRecord) -> Result<Option<T>, Rejection> {
    match from.index().path(from.id(), &record.hash_part)? {
        // A server has collected or replaced it meanwhile.
        None => Ok(None),
        Some(now) if now.version != record.version => {
            let message = format!("'{}' was changed while it was copied; run the same command again", record.path);
            Err(Rejection::conflict(message))
        }
        Some(_) => Err(damaged(record, &"is lost")),
    }
}

pub(super) fn damaged(record: &PathRecord, how: &dyn std::fmt::Display) -> Rejection {
    let message = format!(
        "the NAR of '{}' in the source {how}: 'narval cache fsck --contents --repair' on the source removes the path; then run the same \
         command again",
        record.path
    );
    Rejection::unprocessable(message)
}
