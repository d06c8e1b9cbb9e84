//! NARs whose objects are stored before their names are recorded, so that a push takes few transactions.
//!
//! An object that nobody knows of would never be collected, and one that somebody else collects may be gone when its name is recorded.
//! So:
//!
//! - Before the first of them, a process gets a row that says so ([`Writer`](crate::index::NarWriter)). If it is killed, a collection finds the
//!   row, and removes the objects that have no name ([`retention`](crate::retention)).
//! - It remembers them, and records them after [`RECORD_AFTER`] unless a commit has done so. A client that commits brings a
//!   [receipt](super::receipt) for each, so any server can record them.
//! - They are stored so only while nobody is collecting, and if the index has no row that is in the way. Only collections remove objects. So
//!   as long as none has begun since, the objects are there; otherwise they are looked for, as those of uploads that were interrupted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use narval_nix::NarInfo;

use super::receipt::{StoredFirst, receipt_in};
use super::receipt_key::ReceiptKey;
use super::unrecorded::{IDLE_FOR, RECORD_AFTER, RENEW_EVERY, Waiting, Writing};
use crate::index::{Fence, NarRecord};
use crate::push::commit::nar_name;
use crate::shared::{CacheState, Shared};
use crate::storage::{Keep, object_name};
use crate::{Cache, NarTarget, Refusal, RefusalKind};
use narval_client::clock;

/// Leave to store NARs before they are recorded.
pub(crate) struct Leave {
    state: Arc<CacheState>,
    writer: (i64, ReceiptKey),
    epoch: Fence,
    /// For each NAR, whether it may be stored.
    pub(crate) are_new: Vec<bool>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        clock::lock(&self.state.unrecorded.0).storing -= 1;
    }
}

impl Cache {
    /// Asks whether these NARs may be stored before their names are recorded. `None`: not now.
    pub(crate) fn store_first(&self, nars: &[&NarRecord]) -> Result<Option<Leave>, Refusal> {
        let unrecorded = &self.state().unrecorded;
        if !self.takes_many_nars() || nars.is_empty() {
            return Ok(None);
        }
        if !unrecorded.has_room(nars.len()) {
            self.record_now()?;
        }
        let writer = {
            let mut state = clock::lock(&unrecorded.0);
            let now = clock::instant();
            let writer = match &mut state.writer {
                Some(writer) => writer,
                none => {
                    let random = |error: getrandom::Error| Refusal::new(RefusalKind::Failed, error);
                    let key = ReceiptKey::random().map_err(random)?;
                    let number = self.index().begin_writer(self.id(), &key)?;
                    none.insert(Writing { number, key, renewed: now, used: now })
                }
            };
            writer.used = now;
            let writer = (writer.number, writer.key.clone());
            state.storing += 1;
            writer
        };
        let (number, state) = (writer.0, Arc::clone(self.state()));
        // From here on, it counts as storing.
        let mut leave = Leave { state, writer, epoch: Fence(0), are_new: Vec::new() };
        let named: Vec<(String, NarRecord)> =
            nars.iter().map(|nar| (object_name(nar), NarRecord::clone(nar))).collect();
        let may = self.index().may_store(self.id(), number, &named)?;
        if !may.has_writer {
            // It was paused for hours, and counts as dead.
            let mut state = clock::lock(&unrecorded.0);
            state.writer.take_if(|writer| writer.number == number);
            return Ok(None);
        }
        let Some(epoch) = may.epoch else { return Ok(None) };
        leave.epoch = epoch;
        let fits = nars.iter().map(|nar| StoredFirst::fits(nar));
        leave.are_new = may.are_new.iter().zip(fits).map(|(is_new, fits)| *is_new && fits).collect();
        Ok(Some(leave))
    }

    /// Remembers a NAR that was stored with this leave. Returns its receipt.
    pub(crate) fn was_stored(&self, leave: &Leave, nar: &NarRecord) -> String {
        let stored = StoredFirst { nar: nar.clone(), epoch: leave.epoch };
        let receipt = stored.receipt(self.id(), (leave.writer.0, &leave.writer.1));
        let waiting = Waiting { stored, receipt: receipt.clone(), since: clock::instant() };
        clock::lock(&self.state().unrecorded.0).waiting.insert(object_name(nar), waiting);
        receipt
    }

    /// Storing NARs has failed, which may take effect later: their names are pending from now on.
    pub(crate) fn was_not_stored(&self, nars: &[&NarRecord]) {
        let named: Vec<(String, NarRecord)> =
            nars.iter().map(|nar| (object_name(nar), NarRecord::clone(nar))).collect();
        if let Err(error) = self.index().add_objects(self.id(), &named, self.now()) {
            tracing::debug!("{error}");
        }
    }

    /// An upload that this process has stored and not recorded, with its receipt, unless a collection has begun since.
    pub(crate) fn stored_first(&self, target: &NarTarget) -> Result<Option<(NarRecord, String)>, Refusal> {
        let Some((stored, receipt)) = self.state().unrecorded.find(target) else { return Ok(None) };
        let is_current = self.index().may_store(self.id(), 0, &[])?.epoch == Some(stored.epoch);
        Ok(is_current.then_some((stored.nar, receipt)))
    }

    /// Records the unrecorded NARs of this process now.
    pub(crate) fn record_now(&self) -> Result<(), Refusal> {
        self.shared().record_due(self.state(), Duration::ZERO)
    }

    /// Records the NARs of narinfos that come with a receipt, unless the index has them. Receipts that are not valid count for nothing: then
    /// the commit lacks a NAR.
    pub(crate) fn record_receipts(&self, narinfos: &[&NarInfo]) -> Result<(), Refusal> {
        let mut receipts: HashMap<String, &str> = HashMap::new();
        for info in narinfos {
            if let (Ok(name), Some(receipt)) = (nar_name(info), receipt_in(info)) {
                receipts.insert(name, receipt);
            }
        }
        if receipts.is_empty() {
            return Ok(());
        }
        let mut receipts: Vec<(String, &str)> = receipts.into_iter().collect();
        receipts.sort_unstable();
        let names: Vec<&str> = receipts.iter().map(|(name, _)| name.as_str()).collect();
        let known = self.index().files_named(self.id(), &names)?;
        let writers = self.index().writers(self.id())?;
        let (mut stored, mut recorded) = (Vec::new(), Vec::new());
        for ((name, receipt), known) in receipts.iter().zip(known) {
            if known.is_some() {
                recorded.push(name.clone());
            } else if let Some(read) = StoredFirst::read(self.id(), receipt, &writers)
                && read.name().to_string() == *name
            {
                recorded.push(name.clone());
                stored.push(read);
            }
        }
        if !stored.is_empty() {
            self.check_recorded_quota(stored.iter().map(|stored| stored.nar.file_size).sum())?;
            self.shared().record_stored(self.state(), &stored)?;
        }
        // This process records the others itself.
        self.state().unrecorded.forget(&recorded);
        Ok(())
    }
}

impl Shared {
    /// Records NARs that are stored. If a collection has begun since, or something is in the way, their names are pending: whoever needs
    /// them looks for the objects.
    fn record_stored(&self, state: &CacheState, stored: &[StoredFirst]) -> Result<(), Refusal> {
        let (index, now) = (&*self.index, self.index.now());
        let Some(epoch) = stored.iter().map(|stored| stored.epoch).min() else { return Ok(()) };
        // One of each NAR: the others are other names of it.
        let (mut seen, mut rest) = (HashSet::new(), Vec::new());
        let mut objects = Vec::with_capacity(stored.len());
        for StoredFirst { nar, .. } in stored {
            match seen.insert((nar.nar_hash, nar.compression)) {
                true => objects.push((object_name(nar), nar.clone())),
                false => rest.push(nar),
            }
        }
        // With the oldest of the numbers: if they differ, a collection has begun since.
        if !index.add_stored(state.id, &objects, epoch, now)? {
            let numbers = index.add_objects(state.id, &objects, now)?;
            rest.extend(objects.iter().zip(numbers).filter(|(_, number)| number.is_none()).map(|((_, nar), _)| nar));
        }
        for nar in rest {
            let keep = Keep {
                index,
                cache: state.id,
                target: &NarTarget::File(crate::NarFileName::new(nar.file_hash, nar.compression)),
                nar: nar.clone(),
                listing: None,
                now,
                is_unverified: false,
                check_quota: &|_| Ok(()),
                one_by_one: state.nar_lock(&nar.nar_hash),
            };
            state.files.record(&keep)?;
        }
        Ok(())
    }

    /// Records the NARs of a cache that have waited for so long.
    fn record_due(&self, state: &CacheState, after: Duration) -> Result<(), Refusal> {
        let due = state.unrecorded.due(after);
        if due.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = due.iter().map(|(name, _)| name.as_str()).collect();
        // Those that a commit at another server has recorded have a row.
        let known = self.index.have_rows(state.id, &names)?;
        let unknown = due.iter().zip(known).filter(|(_, is_known)| !is_known);
        let stored: Vec<StoredFirst> = unknown.map(|((_, stored), _)| stored.clone()).collect();
        self.record_stored(state, &stored)?;
        state.unrecorded.forget(due.iter().map(|(name, _)| name));
        Ok(())
    }

    /// Records what is unrecorded and due, or all of it at the end of the process, and says that this process is alive, or is no writer any
    /// more.
    pub(crate) fn record_unrecorded(&self, is_end: bool) {
        // Not locked while the index is asked: a cache may be opened meanwhile.
        let states: Vec<Arc<CacheState>> =
            self.caches.read().unwrap_or_else(std::sync::PoisonError::into_inner).values().cloned().collect();
        for state in states {
            let after = if is_end { Duration::ZERO } else { RECORD_AFTER };
            if let Err(refusal) = self.record_due(&state, after) {
                if refusal.kind != RefusalKind::Away {
                    tracing::warn!("cache '{}': NARs cannot be recorded: {refusal}", state.name);
                }
            } else if let Err(error) = self.keep_writer(&state, is_end)
                && !error.is_away()
            {
                tracing::warn!("{error}");
            }
        }
    }

    fn keep_writer(&self, cache: &CacheState, is_end: bool) -> Result<(), crate::index::IndexError> {
        let mut state = clock::lock(&cache.unrecorded.0);
        let now = clock::instant();
        let is_needed = state.storing > 0 || !state.waiting.is_empty();
        let Some(writer) = &mut state.writer else { return Ok(()) };
        let is_idle = is_end || now.saturating_duration_since(writer.used) >= IDLE_FOR;
        if is_idle && !is_needed {
            self.index.end_writer(writer.number)?;
            state.writer = None;
        } else if now.saturating_duration_since(writer.renewed) >= RENEW_EVERY {
            if self.index.renew_writer(writer.number)? {
                writer.renewed = now;
            } else {
                state.writer = None;
            }
        }
        Ok(())
    }
}
