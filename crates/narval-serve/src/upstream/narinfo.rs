//! Narinfos of upstreams.

use std::sync::Arc;

use narval_cache::upstream::{Lookup, Upstreams};
use narval_nix::HashPart;

use crate::Face;
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::narinfo::memo::{Answer, Memo};
use crate::narinfo::render::present;

/// The narinfos of all upstreams.
#[derive(Debug)]
pub(crate) struct UpstreamNarinfos {
    pub(crate) upstreams: Upstreams,
    /// Those that are there, under the count of those that were forgotten.
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

    /// Takes up what is kept, or asks the upstreams. It waits for them.
    pub(crate) fn read(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        self.metrics.narinfo_memo_misses.inc();
        let forgotten = self.upstreams.forgotten();
        Ok(match self.upstreams.narinfo(&hash_part)? {
            // Remembered by the upstreams themselves, who know for how long.
            Lookup::Absent => Answer::Absent,
            Lookup::Found(text) => {
                let answer = Answer::Present(Arc::new(present(Face::Narval, text.to_vec())));
                self.memo.insert(forgotten, hash_part, answer.clone());
                answer
            }
        })
    }
}
