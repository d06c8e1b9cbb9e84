//! NARs: from the stored files, from a running fetch, or from a new one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use narval_client::{Trouble, request_id};
use narval_files::{Fetcher, FetchesLocked, FillEnd, GrowingFile, Start, TemporaryFile};
use narval_nix::HashPart;

use super::fetch::Fetch;
use super::places::Places;
use crate::upstream::answer::{NarAnswer, Unavailable};
use crate::upstream::race::trace::TraceEnd;
use crate::upstream::shared::Shared;
use crate::upstream::shared::known::{Known, wrong_name};
use crate::upstream::shared::question::PATIENCE;
use crate::upstream::standing::health::Standing;

impl Shared {
    /// Starts fetching a NAR that a client will probably request, if it is not stored and there is room.
    pub(in crate::upstream) fn fetch_ahead(self: &Arc<Self>, hash_part: &HashPart) -> Option<Arc<GrowingFile>> {
        let known = self.known(hash_part)?;
        let kept = format!("nar/{}", known.name.file);
        let mut fetches = self.running.lock();
        if fetches.get(&kept).is_some() || self.kept.has(&kept) {
            return None;
        }
        let bytes = known.length().unwrap_or(known.info.nar_size);
        if !self.walks.may_fetch(&known.name.file, bytes) {
            return None;
        }
        let begun = self.begin(&known, &kept, &mut fetches);
        if begun.is_err() {
            // A client that requests it gets the error.
            self.walks.claimed(&known.name.file);
        }
        begun.ok()
    }

    pub(in crate::upstream) fn nar(self: &Arc<Self>, known: &Arc<Known>) -> Result<Option<NarAnswer>, Unavailable> {
        let kept = format!("nar/{}", known.name.file);
        let waits = {
            let mut fetches = self.running.lock();
            if let Some(waits) = fetches.get(&kept).and_then(GrowingFile::waits) {
                waits
            } else if let Some((file, length)) = self.kept.get_whole(&kept, known.length()) {
                self.kept_hits.fetch_add(1, Ordering::Relaxed);
                return Ok(Some(NarAnswer::File(file, length)));
            } else {
                self.begin(known, &kept, &mut fetches)?.waits().ok_or_else(Self::busy)?
            }
        };
        let start = waits.start(PATIENCE, || self.waiting.take().ok_or_else(Self::busy))?;
        if let Some(FillEnd::Failed(reason)) = waits.progress().end
            && start != Some(Start::Absent)
        {
            return Err(Unavailable::new(1, &*reason));
        }
        match start {
            Some(Start::Comes(length)) => Ok(Some(NarAnswer::Growing(waits, length))),
            Some(Start::Absent) => Ok(None),
            Some(Start::Unavailable(reason)) => Err(Unavailable::new(5, reason)),
            None => Err(Unavailable::new(5, "they take too long")),
        }
    }

    /// Starts fetching a NAR, on its own thread.
    fn begin(
        self: &Arc<Self>,
        known: &Arc<Known>,
        kept: &str,
        fetches: &mut FetchesLocked<'_>,
    ) -> Result<Arc<GrowingFile>, Unavailable> {
        // A neighbour may have it.
        let only_near = self.remotes().iter().all(|remote| remote.standing() == Standing::Down);
        if only_near && self.neighbours.ready().is_empty() {
            return Err(Unavailable::new(10, format!("{} does not respond", known.remote.url())));
        }
        let permit = self.fetches.take().ok_or_else(Self::busy)?;
        let failed = |error: io::Error| {
            tracing::error!("upstreams: cannot fetch: {error}");
            Unavailable::new(5, error.to_string())
        };
        let file = self.kept.take().map_err(failed)?;
        let (shared, known, name) = (Arc::clone(self), Arc::clone(known), kept.to_owned());
        let id = request_id::current();
        let run = move |fetcher: Fetcher, file: TemporaryFile| {
            let _permit = permit;
            let _entered = request_id::enter(id);
            let (remote, info) = (Arc::clone(&known.remote), Arc::clone(&known.info));
            let fetch = Fetch {
                places: Places { shared: Arc::clone(&shared), remote, info, near: None },
                fill: Arc::clone(fetcher.fill()),
                plain: known.plain,
                only_near,
            };
            let base = || shared.bases.find(&known.info, &shared.kept, || shared.kept_narinfos());
            let ended = |_: &Result<(), Trouble>| match fetch.fill.progress().end {
                Some(FillEnd::Complete) => TraceEnd::Found,
                Some(FillEnd::Failed(reason)) => TraceEnd::failed(&reason),
                None => TraceEnd::failed("nobody waited for it any more"),
            };
            let part = known.info.path.hash_part();
            match shared.traces.record(part, true, || fetch.run(&file, base), ended) {
                result if fetch.fill.is_abandoned() => drop(result),
                Ok(()) if !shared.walks.may_keep(&known.name.file) => {}
                Ok(()) => {
                    if let Err(error) = shared.kept.keep(&name, file) {
                        tracing::error!("upstreams: the NAR of {} cannot be stored: {error}", known.info.path);
                    }
                    if known.plain {
                        shared.bases.add(&known.info, || shared.kept_narinfos());
                    }
                }
                // A narinfo without its NAR is worse than none.
                Err(Trouble::Absent | Trouble::Wrong(_)) => {
                    shared.note_absent(&wrong_name(&known.remote, &known.info.path.hash_part()));
                    shared.forget(&known);
                }
                Err(Trouble::Unavailable(_) | Trouble::Disk(_)) => {}
            }
            drop(fetcher);
            shared.kept.create_spare();
        };
        let fill = fetches.begin(kept, file, "upstream", run).map_err(failed)?;
        self.kept_misses.fetch_add(1, Ordering::Relaxed);
        Ok(fill)
    }
}
