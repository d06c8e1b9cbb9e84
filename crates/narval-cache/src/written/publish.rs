//! Publishes committed narinfos in the standard layout, for clients that read the storage without a server.
//!
//! In a bucket, several servers publish. Each change of a path adds a pending row in its transaction. The server that made the change
//! carries it out, and removes the row unless there is another one for the same path. Rows that stay are carried out by any server
//! after [`TAKEOVER`], when no request of another server can take effect any more. So the last server to write a narinfo has read the
//! state after all changes.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use narval_nix::HashPart;

use super::index::{PathRecord, Pending};
use super::storage::{TAKEOVER, VALID_FOR, WrittenNarinfo};
use super::{Cache, Data, DataError};
use crate::clock;
use crate::rule::{Rule, holds};

/// How long after the beginning of a commit its narinfos may be written. Others begin to do so [`TAKEOVER`] after they have seen it; half of
/// that is left for clocks that differ.
const PUBLISH_WITHIN: Duration = Duration::from_secs(TAKEOVER.as_secs() / 2);

/// Threads that write narinfos of one commit to a bucket.
const THREADS_MAX: usize = 16;

/// The age at which unfinished uploads in parts are aborted, in seconds.
const UNFINISHED_FOR: u64 = 2 * 24 * 60 * 60;

/// What this process knows of each pending row.
#[derive(Default)]
pub(super) struct SeenPending(Mutex<HashMap<i64, Seen>>);

struct Seen {
    first: Instant,
    /// Whether this process has carried it out.
    is_done: bool,
    /// Until when a request that failed, or was not answered, may still take effect: before that, the row stays.
    doubted_until: Instant,
}

/// Which pending rows to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhichPending {
    /// All: another process may have been killed.
    All,
    /// Narinfos of paths that were removed.
    Removed,
    /// Only those that are old enough.
    Due,
}

impl Cache {
    /// Publishes the narinfos of a commit that began at this time, and whose pending entries have numbers up to this one. It has taken effect already: the index serves it, and what fails here
    /// is done later.
    pub(super) fn publish_committed(
        &self,
        records: &[PathRecord],
        written: Vec<WrittenNarinfo>,
        (began, up_to): (Instant, i64),
    ) {
        let fail = |record: &PathRecord, error: &dyn std::fmt::Display| {
            tracing::warn!("cannot write '{}.narinfo': {error}", record.hash_part);
        };
        let until = began + PUBLISH_WITHIN;
        if !self.storage().publishes_later() {
            let mut written = written.into_iter();
            for record in records {
                if let Err(error) = self.files().publish(record, written.next(), until) {
                    fail(record, &error);
                }
            }
            return;
        }
        let next = AtomicUsize::new(0);
        let done: Vec<HashPart> = std::thread::scope(|scope| {
            let publish = || {
                let mut done = Vec::new();
                while let Some(record) = records.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match self.files().publish(record, None, until) {
                        Ok(()) => done.push(record.hash_part),
                        Err(error) => fail(record, &error),
                    }
                }
                done
            };
            let threads_max = if clock::has_threads() { THREADS_MAX } else { 1 };
            let threads: Vec<_> = (1..records.len().min(threads_max)).map(|_| scope.spawn(publish)).collect();
            let mut done = publish();
            // What a thread that panicked has published is unknown.
            done.extend(threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()));
            done
        });
        // Later, another node may have taken over.
        if clock::instant().duration_since(began) < TAKEOVER / 2
            && let Err(error) = self.index().settle_alone(self.id(), &done, up_to)
        {
            tracing::debug!("{error}");
        }
    }
}

impl Data {
    /// Carries out pending entries: the given ones, if this process has not done so, and those that are old enough to be taken over, which
    /// are then removed.
    pub(super) fn publish_pending(&self, which: WhichPending) -> Result<(), DataError> {
        let shared = self.shared();
        let pending = shared.index.pending(0)?;
        let mut seen = clock::lock(&shared.seen_pending.0);
        let numbers: std::collections::HashSet<i64> = pending.iter().map(|(number, ..)| *number).collect();
        seen.retain(|number, _| numbers.contains(number));
        if pending.is_empty() {
            return Ok(());
        }
        let caches = self.caches()?;
        let mut settled = Vec::new();
        for (number, id, what) in pending {
            let now = clock::instant();
            let seen = seen.entry(number).or_insert(Seen { first: now, is_done: false, doubted_until: now });
            let is_settled = now >= seen.doubted_until || !holds(Rule::Unsettled);
            let is_due = (now.duration_since(seen.first) >= TAKEOVER || !holds(Rule::Takeover)) && is_settled;
            let cache = caches.iter().find(|cache| cache.id() == id);
            let is_wanted = match (which, &what, cache) {
                (WhichPending::All, ..) => true,
                // Other servers publish what they have just committed.
                (WhichPending::Removed, Pending::Path(part), Some(cache)) => {
                    !seen.is_done && shared.index.present(cache.id(), &[*part])? == [false]
                }
                _ => false,
            };
            if !is_due && (seen.is_done || !is_wanted) {
                continue;
            }
            match cache.map_or(Ok(()), |cache| cache.carry_out(&what, number, is_due)) {
                Ok(()) => seen.is_done = true,
                Err(error) => {
                    seen.doubted_until = clock::instant() + VALID_FOR;
                    tracing::warn!("{error}");
                    continue;
                }
            }
            if is_due || matches!(what, Pending::Blob(..)) {
                settled.push(number);
            }
        }
        drop(seen);
        if !settled.is_empty() {
            shared.index.settle_these(&settled)?;
        }
        Ok(())
    }

    /// Aborts uploads in parts that nobody will complete.
    pub(super) fn end_unfinished(&self) {
        let before = super::now().saturating_sub(UNFINISHED_FOR);
        match self.shared().storage.end_unfinished(before) {
            Ok(0) => {}
            Ok(ended) => tracing::info!("ended {ended} uploads that were not completed"),
            Err(error) => tracing::warn!("uploads that were not completed cannot be ended: {error}"),
        }
    }
}

impl Cache {
    fn carry_out(&self, pending: &Pending, number: i64, is_due: bool) -> Result<(), DataError> {
        let until = clock::instant() + VALID_FOR;
        match pending {
            Pending::Path(_) => self.reconcile(pending, number, until),
            // Before that, the upload may be in progress. A collection removes what it has condemned itself.
            Pending::File(name) if is_due && self.index().file(self.id(), name)?.is_some() => {
                self.reconcile(pending, number, until)
            }
            Pending::File(_) | Pending::Blob(..) => Ok(()),
        }
    }
}
