//! Narinfos of the writable cache: remembered as they are sent, and never served stale.

use std::sync::Arc;

use narval_keep::{Cache, KeptNarinfo, Stamp};
use narval_nix::HashPart;

use super::memo::{Answer, Memo, Present};
use super::render::present;
use crate::config::Dialect;
use crate::error::ServeError;
use crate::metrics::Metrics;

/// The narinfos of one cache.
#[derive(Debug)]
pub(crate) struct WritableNarinfos {
    cache: Cache,
    memo: Memo<Stamp>,
    metrics: Arc<Metrics>,
}

impl WritableNarinfos {
    pub(crate) fn new(cache: Cache, memory_bytes: u64, metrics: Arc<Metrics>) -> Self {
        Self { cache, memo: Memo::new(memory_bytes), metrics }
    }

    /// What is remembered of a hash part, if nothing has changed since. Looks at memory only.
    #[inline]
    pub(crate) fn remembered(&self, hash_part: &HashPart) -> Option<Answer> {
        let answer = self.memo.get(self.cache.stamp(), hash_part)?;
        if let Answer::Present(present) = &answer
            && !self.cache.note_hit(hash_part, present.until)
        {
            return None;
        }
        self.metrics.narinfo_memo_hits.inc();
        Some(answer)
    }

    /// A narinfo for somebody who only looks: it is no use of the path.
    pub(crate) fn look_up_without_prefetch(&self, hash_part: &HashPart) -> Result<Answer, ServeError> {
        if let Some(remembered) = self.memo.get(self.cache.stamp(), hash_part) {
            return Ok(remembered);
        }
        let text = self.cache.narinfo_to_look_at(hash_part)?;
        Ok(text.map_or(Answer::Absent, |text| Answer::Present(Arc::new(present(Dialect::Narval, text)))))
    }

    /// Reads a narinfo from the index, and remembers it.
    pub(crate) fn read(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        self.metrics.narinfo_memo_misses.inc();
        // Before the index is read: what is remembered can only be newer than its stamp says.
        let stamp = self.cache.stamp();
        let answer = match self.cache.narinfo_until(&hash_part) {
            Ok(None) => Answer::Absent,
            // Reading it has noted the use.
            Ok(Some(KeptNarinfo { text, until })) => {
                Answer::Present(Arc::new(Present { until, ..present(Dialect::Narval, text.to_vec()) }))
            }
            // Without the index, nobody collects either.
            Err(error) if error.is_unavailable() => match self.memo.get(stamp, &hash_part) {
                Some(remembered) => {
                    self.cache.note_used(&hash_part);
                    return Ok(remembered);
                }
                None => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        };
        // Other servers may add it at any time, and whoever was told so there asks here next.
        if matches!(answer, Answer::Present(_)) || !self.cache.is_shared() {
            self.memo.insert(stamp, hash_part, answer.clone());
        }
        Ok(answer)
    }
}
