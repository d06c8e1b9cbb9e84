//! Narinfos of the writable cache: remembered as they are sent, and never served stale.

use std::sync::Arc;

use narval_keep::{Cache, Stamp};
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
}

impl WrittenNarinfos {
    pub(crate) fn new(cache: Cache, memory_bytes: u64, metrics: Arc<Metrics>) -> Self {
        Self { cache, memo: Memo::new(memory_bytes), metrics }
    }

    /// What is remembered of a hash part, if nothing has changed since. Looks at memory only.
    #[inline]
    pub(crate) fn remembered(&self, hash_part: &HashPart) -> Option<Answer> {
        let answer = self.memo.get(self.cache.stamp(), hash_part)?;
        self.metrics.narinfo_memo_hits.inc();
        if matches!(answer, Answer::Present(_)) {
            self.cache.note_used(hash_part);
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
            Some(text) => Answer::Present(Arc::new(present(Face::Narval, text.to_vec()))),
        };
        // Other servers may add it at any time, and whoever was told so there asks here next.
        if matches!(answer, Answer::Present(_)) || !self.cache.is_shared() {
            self.memo.insert(stamp, hash_part, answer.clone());
        }
        Ok(answer)
    }
}
