//! Receiving several small NARs at a time: in a bucket, one transaction records all of them.

use std::collections::HashSet;

use super::super::index::NarRecord;
use super::super::{Cache, Grant, NarFileName, NarTarget, Refusal};
use super::pass::Verified;
use super::{Begin, Receipts, Stored, Upload};

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
    pub fn receive_nars(
        &self,
        nars: &[(NarTarget, &[u8])],
        receipts: Receipts,
        grant: &Grant,
    ) -> Result<Vec<Stored>, Refusal> {
        let mut stored: Vec<Option<Stored>> = Vec::with_capacity(nars.len());
        let (mut new, mut seen) = (Vec::new(), HashSet::new());
        for (at, (target, file)) in nars.iter().enumerate() {
            let known = match self.begin_with(*target, Some(file.len() as u64), receipts, grant)? {
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
        let new = if receipts == Receipts::Wanted { self.store_many(new, &mut stored)? } else { new };
        let files: Vec<(NarRecord, &[u8])> = new.iter().map(|new| (new.nar.clone(), new.file)).collect();
        let are_stored = self.files().keep_new(self.index(), self.id(), &files, self.now())?;
        for (New { at, upload, nar, mut file }, is_stored) in new.into_iter().zip(are_stored) {
            let done = match is_stored {
                true => {
                    let name = NarFileName::new(nar.file_hash, nar.compression);
                    upload.note(Ok(Stored::new(name, &nar)))
                }
                false => upload.receive(&mut file),
            };
            if let Some(stored) = stored.get_mut(at) {
                *stored = Some(done?);
            }
        }
        // Those that were there twice are known by now.
        let mut all = Vec::with_capacity(nars.len());
        for (stored, (target, mut file)) in stored.into_iter().zip(nars.iter().copied()) {
            all.push(match stored {
                Some(stored) => stored,
                None => match self.begin_with(target, Some(file.len() as u64), receipts, grant)? {
                    Begin::Known(known) => known,
                    Begin::Receive(upload) => upload.receive(&mut file)?,
                },
            });
        }
        Ok(all)
    }

    /// Stores those that may be stored before they are recorded. Returns the others.
    fn store_many<'a>(&self, new: Vec<New<'a>>, stored: &mut [Option<Stored>]) -> Result<Vec<New<'a>>, Refusal> {
        let nars: Vec<&NarRecord> = new.iter().map(|new| &new.nar).collect();
        let Some(leave) = self.store_first(&nars)? else { return Ok(new) };
        let (first, rest): (Vec<_>, Vec<_>) = new.into_iter().zip(&leave.are_new).partition(|(_, is_new)| **is_new);
        let first: Vec<New<'a>> = first.into_iter().map(|(new, _)| new).collect();
        let files: Vec<(&NarRecord, &[u8])> = first.iter().map(|new| (&new.nar, new.file)).collect();
        if let Err(refusal) = self.files().store_all(&files) {
            self.was_not_stored(&first.iter().map(|new| &new.nar).collect::<Vec<_>>());
            return Err(refusal);
        }
        for New { at, upload, nar, .. } in first {
            let done = Stored::with_receipt(&nar, self.was_stored(&leave, &nar));
            if let Some(stored) = stored.get_mut(at) {
                *stored = Some(upload.note(Ok(done))?);
            }
        }
        Ok(rest.into_iter().map(|(new, _)| new).collect())
    }
}

impl Upload {
    /// Verifies a file, which is not written anywhere.
    fn examine(self: Box<Self>, at: usize, file: &[u8]) -> Result<New<'_>, Refusal> {
        let verified = self.verify(&mut &*file, None);
        if let Err(refusal) = &verified {
            self.note(Err(refusal.clone()))?;
        }
        let (Verified { nar, .. }, _) = verified?;
        Ok(New { at, upload: self, nar, file })
    }
}
