//! Receiving several small NARs at a time: in a bucket, one transaction records all of them.

use std::collections::HashSet;

use super::pass::Verified;
use super::{Begin, Stored, Upload};
use crate::access::grant::Grant;
use crate::cache::Cache;
use crate::name::NarTarget;
use crate::records::paths::{NamedNar, NarRecord};
use crate::rejection::Rejection;

/// A NAR that was verified, and is to be stored.
struct New<'a> {
    at: usize,
    upload: Box<Upload>,
    nar: NarRecord,
    file: &'a [u8],
}

impl Cache {
    /// Whether [`receive_nars`](Self::receive_nars) takes less than receiving them one by one.
    pub fn takes_many_nars(&self) -> bool {
        self.storage().publishes_later()
    }

    /// Receives, verifies and stores NARs that are in memory, in the given order. When this returns, all are stored, as after
    /// [`Upload::receive`].
    ///
    /// # Errors
    /// For the first that is refused. Others may be stored.
    pub fn receive_nars(&self, nars: &[(NarTarget, &[u8])], grant: &Grant) -> Result<Vec<Stored>, Rejection> {
        let mut stored: Vec<Option<Stored>> = Vec::with_capacity(nars.len());
        let (mut new, mut seen) = (Vec::new(), HashSet::new());
        for (at, (target, file)) in nars.iter().enumerate() {
            let known = match self.begin(*target, Some(file.len() as u64), grant)? {
                Begin::Known(known) => Some(known),
                Begin::Receive(upload) => {
                    if seen.insert(*target) {
                        new.push(upload.examine(at, file)?);
                    }
                    None
                }
            };
            stored.push(known);
        }
        let bytes = new.iter().map(|new| new.nar.file_size).sum();
        self.check_quota(bytes)?;
        let new = if self.takes_many_nars() { self.store_many(new, &mut stored)? } else { new };
        for New { at, upload, mut file, .. } in new {
            let done = upload.receive(&mut file)?;
            if let Some(stored) = stored.get_mut(at) {
                *stored = Some(done);
            }
        }
        // Those that were there twice are known by now.
        let mut all = Vec::with_capacity(nars.len());
        for (stored, (target, mut file)) in stored.into_iter().zip(nars.iter().copied()) {
            all.push(match stored {
                Some(stored) => stored,
                None => match self.begin(target, Some(file.len() as u64), grant)? {
                    Begin::Known(known) => known,
                    Begin::Receive(upload) => upload.receive(&mut file)?,
                },
            });
        }
        Ok(all)
    }

    /// Stores and records NARs in one step. Returns those that the cache has in the meantime, or that are there twice.
    fn store_many<'a>(&self, new: Vec<New<'a>>, stored: &mut [Option<Stored>]) -> Result<Vec<New<'a>>, Rejection> {
        let (mut first, mut rest, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for new in new {
            let is_new = seen.insert((new.nar.nar_hash, new.nar.compression)) && self.same(&new.nar)?.is_none();
            if is_new { first.push(new) } else { rest.push(new) }
        }
        let Some(times) = first.iter().map(|new| new.upload.times()).min_by_key(|(_, until)| *until) else {
            return Ok(rest);
        };
        let named: Vec<NamedNar> = first.iter().map(|new| (new.upload.name.to_string(), new.nar.clone())).collect();
        let files: Vec<_> = named.iter().zip(&first).map(|((name, nar), new)| (name.as_str(), nar, new.file)).collect();
        let storing = self.begin_storing()?;
        self.files().store_all(&files)?;
        self.index().record_all(self.id(), named, times)?;
        storing.recorded();
        for New { at, upload, nar, .. } in first {
            let done = upload.note(Ok(Stored::new(upload.name, &nar)))?;
            if let Some(stored) = stored.get_mut(at) {
                *stored = Some(done);
            }
        }
        Ok(rest)
    }
}

impl Upload {
    /// Verifies a file, which is not written anywhere.
    fn examine(self: Box<Self>, at: usize, file: &[u8]) -> Result<New<'_>, Rejection> {
        let verified = self.verify(&mut &*file, None);
        if let Err(rejection) = &verified {
            self.note(Err(rejection.clone()))?;
        }
        let (Verified { nar, .. }, _) = verified?;
        Ok(New { at, upload: self, nar, file })
    }
}
