//! Narinfos of the cache that is written: remembered as they are sent, and never served stale.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use narval_cache::written::{Cache, Stamp};
use narval_nix::HashPart;

use crate::Face;
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::narinfo::memo::{Answer, Memo};
use crate::narinfo::render::present;

/// The narinfos of one cache.
#[derive(Debug)]
pub(crate) struct WrittenNarinfos {
    cache: Cache,
    memo: Memo<Stamp>,
    metrics: Arc<Metrics>,
    started: Instant,
}

/// The use of a narinfo that is answered from memory is noted once in this time: retention counts in days.
const NOTE_EVERY_SECONDS: u64 = 600;

impl WrittenNarinfos {
    pub(crate) fn new(cache: Cache, memory_bytes: u64, metrics: Arc<Metrics>) -> Self {
        Self { cache, memo: Memo::new(memory_bytes), metrics, started: Instant::now() }
    }

    /// What is remembered of a hash part, if nothing has changed since. Looks at memory only.
    #[inline]
    pub(crate) fn remembered(&self, hash_part: &HashPart) -> Option<Answer> {
        let answer = self.memo.get(self.cache.stamp(), hash_part)?;
        self.metrics.narinfo_memo_hits.inc();
        if let Answer::Present(present) = &answer {
            let period = self.period();
            if present.noted.load(Ordering::Relaxed) != period
                && present.noted.swap(period, Ordering::Relaxed) != period
            {
                self.cache.note_used(hash_part);
            }
        }
        Some(answer)
    }

    /// Reads a narinfo from the index, and remembers it.
    pub(crate) fn read(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        self.metrics.narinfo_memo_misses.inc();
        // Before the index is read: what is remembered can only be newer than its stamp says.
        let stamp = self.cache.stamp();
        let answer = match self.cache.narinfo(&hash_part)? {
            None => Answer::Absent,
            // Reading it has noted the use.
            Some(text) => {
                let present = present(Face::Narval, text.to_vec());
                present.noted.store(self.period(), Ordering::Relaxed);
                Answer::Present(Arc::new(present))
            }
        };
        self.memo.insert(stamp, hash_part, answer.clone());
        Ok(answer)
    }

    /// The present period of [`NOTE_EVERY_SECONDS`], counted from 1.
    fn period(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs() / NOTE_EVERY_SECONDS).unwrap_or(u32::MAX - 1) + 1
    }
}
