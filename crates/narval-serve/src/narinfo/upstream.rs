//! Narinfos of upstreams.

use std::sync::Arc;

use narval_cache::upstream::{Lookup, Upstreams};
use narval_nix::HashPart;

use super::memo::{Answer, Memo};
use super::render::present;
use crate::config::Dialect;
use crate::error::ServeError;
use crate::metrics::Metrics;

/// The narinfos of all upstreams.
#[derive(Debug)]
pub(crate) struct UpstreamNarinfos {
    pub(crate) upstreams: Upstreams,
    /// Narinfos that exist, each stored with [`Upstreams::forgotten`].
    pub(crate) memo: Memo<u64>,
    pub(crate) metrics: Arc<Metrics>,
}

impl UpstreamNarinfos {
    /// What is remembered of a hash part. Looks at memory only.
    #[inline]
    pub(crate) fn remembered(&self, hash_part: &HashPart) -> Option<Answer> {
        let answer = match self.memo.get(self.upstreams.forgotten(), hash_part) {
            Some(answer) => answer,
            None => matches!(self.upstreams.remembered(hash_part)?, Lookup::Absent).then_some(Answer::Absent)?,
        };
        self.metrics.narinfo_memo_hits.inc();
        Some(answer)
    }

    /// The remembered or kept answer for a hash part. No upstream is asked.
    pub(crate) fn stored(&self, hash_part: &HashPart) -> Answer {
        match self.remembered(hash_part) {
            Some(answer) => answer,
            None => self.upstreams.stored(hash_part).map_or(Answer::Absent, |text| Self::found(&text)),
        }
    }

    /// As [`read`](Self::read), for the page: viewing a closure does not prefetch its NARs. The answer is not remembered here, so that the first
    /// client that asks is counted.
    pub(crate) fn look_up_without_prefetch(&self, hash_part: &HashPart) -> Result<Answer, ServeError> {
        Ok(match self.upstreams.narinfo_to_look_at(hash_part)? {
            Lookup::Absent => Answer::Absent,
            Lookup::Found(text) => Self::found(&text),
        })
    }

    fn found(text: &[u8]) -> Answer {
        Answer::Present(Arc::new(present(Dialect::Narval, text.to_vec())))
    }

    /// Reads what is kept, or asks the upstreams and waits for them.
    pub(crate) fn read(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        self.metrics.narinfo_memo_misses.inc();
        let forgotten = self.upstreams.forgotten();
        Ok(match self.upstreams.narinfo(&hash_part)? {
            // Remembered by the upstreams themselves, who know for how long.
            Lookup::Absent => Answer::Absent,
            Lookup::Found(text) => {
                let answer = Self::found(&text);
                self.memo.insert(forgotten, hash_part, answer.clone());
                answer
            }
        })
    }
}
