//! Carries out pending entries: what a server that was killed has left undone, and removals.
//!
//! In a bucket, a request that was not answered may take effect later than one that was sent after it, as long as its signature is valid.
//! So an entry of a narinfo has a number that says whose requests may be on their way:
//!
//! - Whoever carries it out gives it a new number before. The server that had the old one settles nothing any more.
//! - Others take it over when they have seen its number for [`TAKEOVER`]: then no request for that number can take effect.
//! - It is removed by the server that has its number, if all requests were answered and no other entry of the same narinfo is there.
//!
//! So when the last entry of a narinfo is removed, no request for it is on its way, and the last one was sent by a server that had read the
//! index after all changes. Nothing of this is asked of the database during a push: the server that commits has the number of its entry.

use std::collections::{BTreeMap, HashMap, HashSet};

use narval_nix::HashPart;

use crate::cache::Cache;
use crate::data::Data;
use crate::error::DataError;
use crate::records::paths::CacheId;
use crate::rejection::Rejection;
use crate::rule::holds;
use crate::shared::Seen;
use crate::storage::{TAKEOVER, VALID_FOR};
use narval_client::clock;

/// The most entries that are taken over in one transaction. Their requests have to be sent within [`VALID_FOR`].
const TAKEN_MAX: usize = 64;

/// The age at which unfinished uploads in parts are aborted, in seconds.
const UNFINISHED_FOR: u64 = 2 * 24 * 60 * 60;

/// Which pending entries to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhichPending {
    /// All: another process may have been killed.
    All,
    /// Narinfos of paths that were removed.
    Removed,
    /// Only those that are old enough.
    Due,
}

/// The entries of one narinfo.
struct Entries {
    numbers: Vec<i64>,
    /// Whether no request of another server can take effect any more.
    is_due: bool,
    is_done: bool,
}

/// By cache and hash part.
type Narinfos = BTreeMap<(CacheId, HashPart), Entries>;

impl Data {
    /// Carries out pending entries: the given ones, if this process has not done so, and those that are old enough to be taken over, which
    /// are then removed.
    pub(crate) fn publish_pending(&self, which: WhichPending) -> Result<(), DataError> {
        let shared = self.shared();
        let pending = shared.index.pending()?;
        let mut seen = clock::lock(&shared.seen_pending.0);
        let numbers: HashSet<i64> = pending.iter().map(|(number, ..)| *number).collect();
        seen.retain(|number, _| numbers.contains(number));
        if pending.is_empty() {
            return Ok(());
        }
        let now = clock::instant();
        let mut narinfos = Narinfos::new();
        for (number, id, part) in pending {
            let seen = *seen.entry(number).or_insert(Seen { first: now, is_done: false });
            let none = Entries { numbers: Vec::new(), is_due: true, is_done: true };
            let entries = narinfos.entry((id, part)).or_insert(none);
            entries.numbers.push(number);
            entries.is_due &= now.duration_since(seen.first) >= TAKEOVER || !holds!(Takeover);
            entries.is_done &= seen.is_done;
        }
        self.publish_narinfos(narinfos, &mut seen, which)
    }

    fn publish_narinfos(
        &self,
        narinfos: Narinfos,
        seen: &mut HashMap<i64, Seen>,
        which: WhichPending,
    ) -> Result<(), DataError> {
        let index = &self.shared().index;
        let mut wanted = Vec::new();
        for ((id, part), entries) in narinfos {
            let is_wanted = match which {
                _ if entries.is_due => true,
                _ if entries.is_done => false,
                WhichPending::All => true,
                // Other servers publish what they have just committed.
                WhichPending::Removed => index.present(id, &[part])? == [false],
                WhichPending::Due => false,
            };
            if is_wanted {
                wanted.push((id, part, entries));
            }
        }
        let caches = self.caches()?;
        for some in wanted.chunks(TAKEN_MAX) {
            let until = clock::instant() + VALID_FOR;
            let mut settled = Vec::new();
            for (number, id, part) in self.take_over(some)? {
                let mut mine = Seen { first: clock::instant(), is_done: false };
                let cache = caches.iter().find(|cache| cache.id() == id);
                match cache.map_or(Ok(()), |cache| cache.reconcile(&part, until)) {
                    Ok(()) => {
                        mine.is_done = true;
                        let is_due = |(of, wanted, entries): &(CacheId, HashPart, Entries)| {
                            (*of, *wanted) == (id, part) && entries.is_due
                        };
                        if some.iter().any(is_due) {
                            settled.push(number);
                        }
                    }
                    Err(error) => tracing::warn!("{error}"),
                }
                seen.insert(number, mine);
            }
            if !settled.is_empty() {
                index.settle_these(&settled)?;
            }
        }
        Ok(())
    }

    /// Gives the entries of narinfos new numbers: one for each narinfo.
    fn take_over(&self, narinfos: &[(CacheId, HashPart, Entries)]) -> Result<Vec<(i64, CacheId, HashPart)>, DataError> {
        if !holds!(Renumbered) {
            let all = narinfos
                .iter()
                .flat_map(|(id, part, Entries { numbers, .. })| numbers.iter().map(|number| (*number, *id, *part)));
            return Ok(all.collect());
        }
        let numbers: Vec<i64> = narinfos.iter().flat_map(|(_, _, entries)| &entries.numbers).copied().collect();
        Ok(self.shared().index.take_over(&numbers)?)
    }

    /// Aborts uploads in parts that nobody will complete.
    pub(crate) fn end_unfinished(&self) {
        let before = self.shared().index.now().saturating_sub(UNFINISHED_FOR);
        match self.shared().storage.end_unfinished(before) {
            Ok(0) => {}
            Ok(ended) => tracing::info!("ended {ended} uploads that were not completed"),
            Err(error) => tracing::warn!("uploads that were not completed cannot be ended: {error}"),
        }
    }
}

impl Cache {
    /// Removes the narinfos of removed paths from the bucket. Returns whether all of them are gone: another process may have removed a path
    /// without learning so, or the object store may be away.
    pub(crate) fn withdraw_removed(&self) -> Result<bool, Rejection> {
        let shared = self.shared();
        if !shared.storage.publishes_later() || !holds!(Hidden) {
            return Ok(true);
        }
        self.reconcile_now()?;
        let pending = shared.index.pending()?;
        let mut left = Vec::new();
        {
            let seen = clock::lock(&shared.seen_pending.0);
            for (number, id, part) in pending {
                if id == self.id() && !seen.get(&number).is_some_and(|seen| seen.is_done) {
                    left.push(part);
                }
            }
        }
        Ok(left.is_empty() || !shared.index.present(self.id(), &left)?.contains(&false))
    }

    /// Writes the narinfo of a path again, as the index has it, or removes it: while nobody else has the lock, in a folder.
    pub(crate) fn publish_again(&self, part: HashPart) -> Result<(), DataError> {
        let until = clock::instant() + VALID_FOR;
        let number = self.index().note_pending(self.id(), part)?;
        self.reconcile(&part, until)?;
        Ok(self.index().settle_these(&[number])?)
    }
}
