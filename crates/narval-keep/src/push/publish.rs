//! Publishes committed narinfos in the standard layout, for clients that read the storage without a server.
//!
//! In a bucket, several servers publish. Each change of a path adds a pending entry in its transaction. The server that made the change
//! carries it out, and removes the entry unless there is another one for the same path. Others carry out what stays
//! ([`pending`](super::pending)).

use std::time::{Duration, Instant};

use narval_nix::HashPart;

use crate::cache::Cache;
use crate::records::paths::PathRecord;
use crate::storage::{TAKEOVER, WrittenNarinfo, several};
use narval_client::clock;

/// How long after the beginning of a commit its narinfos may be written. Others begin to do so [`TAKEOVER`] after they have seen it; half of
/// that is left for clocks that differ.
const PUBLISH_WITHIN: Duration = Duration::from_secs(TAKEOVER.as_secs() / 2);

/// Threads that write narinfos of one commit to a bucket.
const THREADS_MAX: usize = 16;

impl Cache {
    /// Publishes the narinfos of a commit that began at this time, and whose pending entries have numbers up to this one. It has taken
    /// effect already: the index serves it, and what fails here is done later.
    pub(crate) fn publish_committed(
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
        let publish = |record: &PathRecord| match self.files().publish(record, None, until) {
            Ok(()) => Ok(Some(record.hash_part)),
            Err(error) => {
                fail(record, &error);
                Ok(None)
            }
        };
        // What a thread that panicked has published is unknown.
        let done = several(THREADS_MAX, records, publish).unwrap_or_default();
        let done: Vec<HashPart> = done.into_iter().flatten().collect();
        // Later, another node may have taken over.
        if clock::instant().duration_since(began) < TAKEOVER / 2
            && let Err(error) = self.index().settle_alone(self.id(), &done, up_to)
        {
            tracing::debug!("{error}");
        }
    }
}
