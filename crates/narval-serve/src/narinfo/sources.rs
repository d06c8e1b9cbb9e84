//! Where narinfos come from, in order: the live store, the writable cache, the upstreams. All but what is remembered is read on a worker.

use std::sync::Arc;

use narval_client::trace::{self, Work};
use narval_http::Prepared;
use narval_nix::{HashPart, PathInfo, SecretKey};
use narval_store::{Stamp, Store};

use super::memo::{Answer, Memo};
use super::render::{present, render};
use super::upstream::UpstreamNarinfos;
use super::writable::WritableNarinfos;
use crate::config::Dialect;
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::damaged::DamagedPaths;
use crate::nar::zstd::NarCache;

/// The narinfos of all sources.
#[derive(Debug)]
pub(crate) struct Narinfos {
    pub(crate) live: Option<LiveNarinfos>,
    pub(crate) writable: Option<Arc<WritableNarinfos>>,
    pub(crate) upstream: Option<UpstreamNarinfos>,
    /// The answer for absent paths.
    pub(crate) absent: Arc<Prepared>,
}

impl Narinfos {
    /// Looks up a narinfo that the shard did not find in memory.
    pub(crate) fn read(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        match (&self.live, &self.writable, &self.upstream) {
            (Some(live), None, None) => live.read(hash_part),
            (None, Some(writable), None) => writable.read(hash_part),
            _ => self.look_up(hash_part),
        }
    }

    /// Looks up a narinfo in the writable cache alone.
    pub(crate) fn of_writable(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        match &self.writable {
            Some(writable) => writable.remembered(&hash_part).map_or_else(|| writable.read(hash_part), Ok),
            None => Ok(Answer::Absent),
        }
    }

    /// Looks up the narinfo of a hash part: in each source first in memory, then by reading it.
    pub(crate) fn look_up(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        let answer = self.look_up_own(hash_part)?;
        match (&answer, &self.upstream) {
            (Answer::Absent, Some(upstream)) => {
                upstream.remembered(&hash_part).map_or_else(|| upstream.read(hash_part), Ok)
            }
            _ => Ok(answer),
        }
    }

    /// As [`look_up`](Self::look_up), for the page: viewing a path is no use of it, and does not prefetch its closure.
    pub(crate) fn look_up_without_prefetch(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        let answer = self.own(hash_part, |writable| writable.look_up_without_prefetch(&hash_part))?;
        match (&answer, &self.upstream) {
            (Answer::Absent, Some(upstream)) => {
                upstream.remembered(&hash_part).map_or_else(|| upstream.look_up_without_prefetch(&hash_part), Ok)
            }
            _ => Ok(answer),
        }
    }

    /// As [`look_up`](Self::look_up), but only with what is kept of the upstreams: a presence check causes no fetches.
    pub(crate) fn look_up_local(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        let answer = self.look_up_own(hash_part)?;
        Ok(match (&answer, &self.upstream) {
            (Answer::Absent, Some(upstream)) => upstream.stored(&hash_part),
            _ => answer,
        })
    }

    /// Looks up the live store and the writable cache.
    fn look_up_own(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        self.own(hash_part, |writable| writable.remembered(&hash_part).map_or_else(|| writable.read(hash_part), Ok))
    }

    fn own(
        &self,
        hash_part: HashPart,
        of_cache: impl FnOnce(&WritableNarinfos) -> Result<Answer, ServeError>,
    ) -> Result<Answer, ServeError> {
        let mut answer = Answer::Absent;
        if let Some(live) = &self.live {
            answer = live.remembered(&hash_part).map_or_else(|| live.read(hash_part), Ok)?;
        }
        if let (Answer::Absent, Some(writable)) = (&answer, &self.writable) {
            answer = of_cache(writable)?;
        }
        Ok(answer)
    }
}

/// The narinfos of a live store.
#[derive(Debug)]
pub(crate) struct LiveNarinfos {
    pub(crate) dialect: Dialect,
    pub(crate) sign_keys: Vec<SecretKey>,
    pub(crate) store: Arc<Store>,
    pub(crate) memo: Arc<Memo<Stamp>>,
    pub(crate) damaged: Arc<DamagedPaths>,
    pub(crate) compressed: Option<Arc<NarCache>>,
    pub(crate) metrics: Arc<Metrics>,
}

impl LiveNarinfos {
    #[inline]
    pub(crate) fn remembered(&self, hash_part: &HashPart) -> Option<Answer> {
        let answer = self.memo.get(self.store.stamp()?, hash_part)?;
        self.metrics.narinfo_memo_hits.inc();
        Some(answer)
    }

    /// Reads the path info from the store, renders and signs it, and remembers the answer.
    fn read(&self, hash_part: HashPart) -> Result<Answer, ServeError> {
        self.metrics.narinfo_memo_misses.inc();
        // Before anything is read: what is remembered can only be newer than its stamp says.
        let (stamp, forgotten) = (self.store.stamp(), self.memo.forgotten());
        let span = trace::begin(Work::DatabaseRead, || "path info".to_owned());
        let info = self.store.path_info_by_hash_part(&hash_part)?;
        drop(span);
        let is_damaged =
            |info: &PathInfo| self.damaged.has(hash_part, &info.nar_hash, &self.store.real_path(&info.path));
        let answer = match &info {
            None => Answer::Absent,
            // Not remembered: repairing a path does not change the database.
            Some(info) if is_damaged(info) => return Ok(Answer::Absent),
            Some(info) => {
                let compressed = self.compressed.as_ref().and_then(|cache| cache.find_name(&info.nar_hash));
                let compressed = compressed.map(|stored| (stored.file_hash, stored.file_size));
                let text = render(self.dialect, &self.sign_keys, self.store.store_dir(), hash_part, info, compressed)?;
                Answer::Present(Arc::new(present(self.dialect, text)))
            }
        };
        if let Some(stamp) = stamp {
            self.memo.insert_unless_forgotten(forgotten, stamp, hash_part, answer.clone());
        }
        Ok(answer)
    }
}
