//! NARs: from the stored files, from a running fetch, or from a new one.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use narval_client::{Trouble, request_id};
use narval_files::{Fill, FillEnd, Start};
use narval_nix::{Compression, HashPart, NarInfo};

use super::fetch::Fetch;
use crate::upstream::Unavailable;
use crate::upstream::known::{Known, wrong_name};
use crate::upstream::lookup::NarAnswer;
use crate::upstream::question::PATIENCE;
use crate::upstream::race::race;
use crate::upstream::remote::Remote;
use crate::upstream::said::Said;
use crate::upstream::shared::Shared;
use crate::upstream::standing::health::Standing;

/// How long other upstreams are asked whether they have the rest of a NAR.
const OTHER_WITHIN: Duration = Duration::from_secs(10);

impl Shared {
    /// Starts fetching a NAR that a client will probably request, if it is not stored and there is room.
    pub(in crate::upstream) fn fetch_ahead(self: &Arc<Self>, hash_part: &HashPart) -> Option<Arc<Fill>> {
        let known = self.known(hash_part)?;
        let kept = format!("nar/{}", known.name.file);
        let mut fills = self.fills.lock();
        if fills.contains_key(&kept) || self.kept.has(&kept) {
            return None;
        }
        let bytes = known.length().unwrap_or(known.info.nar_size);
        if !self.walks.may_fetch(&known.name.file, bytes) {
            return None;
        }
        let begun = self.begin(&known, &kept, &mut fills);
        if begun.is_err() {
            // A client that requests it gets the error.
            self.walks.claimed(&known.name.file);
        }
        begun.ok()
    }

    pub(in crate::upstream) fn nar(self: &Arc<Self>, known: &Arc<Known>) -> Result<Option<NarAnswer>, Unavailable> {
        let kept = format!("nar/{}", known.name.file);
        let fill = {
            let mut fills = self.fills.lock();
            if let Some(fill) = fills.get(&kept) {
                Arc::clone(fill)
            } else if let Some((file, length)) = self.kept.get(&kept) {
                // Ignore a file that was truncated.
                if known.length().is_none_or(|said| said == length) {
                    self.kept_hits.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some(NarAnswer::File(file, length)));
                }
                self.kept.forget(&kept);
                self.begin(known, &kept, &mut fills)?
            } else {
                self.begin(known, &kept, &mut fills)?
            }
        };
        let start = match fill.start(Duration::ZERO) {
            Some(start) => Some(start),
            None => {
                let _permit = self.waiting.take().ok_or_else(Self::busy)?;
                fill.start(PATIENCE)
            }
        };
        if let Some(FillEnd::Failed(reason)) = fill.progress().end
            && start != Some(Start::Absent)
        {
            return Err(Unavailable::new(1, &*reason));
        }
        match start {
            Some(Start::Comes(length)) => Ok(Some(NarAnswer::Fill(fill, length))),
            Some(Start::Absent) => Ok(None),
            Some(Start::Unavailable(reason)) => Err(Unavailable::new(5, reason)),
            None => Err(Unavailable::new(5, "they take too long")),
        }
    }

    /// Another upstream that has the same file, and its narinfo.
    fn same_file(&self, info: &NarInfo, tried: &[Arc<Remote>]) -> Option<(Arc<Remote>, NarInfo)> {
        let (nar_hash, compression, file) = (info.nar_hash, info.compression, info.file_hash);
        let is_same = move |other: &NarInfo| {
            let same_file = compression == Compression::None || file.is_some() && other.file_hash == file;
            other.nar_hash == nar_hash && other.compression == compression && same_file
        };
        let hash_part = info.path.hash_part();
        let mut remotes = self.remotes_for(&hash_part);
        remotes.retain(|remote| !tried.iter().any(|other| Arc::ptr_eq(other, remote)));
        let asked = race(&remotes, &self.hedges, OTHER_WITHIN, move |remote| match remote.narinfo(hash_part) {
            Said::Has(other) if is_same(&other) => Said::Has(other),
            Said::Has(_) => Said::Absent,
            said => said,
        });
        asked.ok().flatten()
    }

    /// Starts fetching a NAR, on its own thread.
    fn begin(
        self: &Arc<Self>,
        known: &Arc<Known>,
        kept: &str,
        fills: &mut HashMap<String, Arc<Fill>>,
    ) -> Result<Arc<Fill>, Unavailable> {
        if known.remote.standing() == Standing::Down && self.remotes().len() == 1 {
            return Err(Unavailable::new(10, format!("{} does not respond", known.remote.url())));
        }
        let permit = self.fetches.take().ok_or_else(Self::busy)?;
        let failed = |error: io::Error| {
            tracing::error!("upstreams: cannot fetch: {error}");
            Unavailable::new(5, error.to_string())
        };
        let file = self.kept.take().map_err(failed)?;
        let fill = Arc::new(Fill::new(file.file().try_clone().map_err(failed)?));
        let (remote, info) = (Arc::clone(&known.remote), Arc::clone(&known.info));
        let fetch = Fetch { remote, info, fill: Arc::clone(&fill), plain: known.plain };
        let (shared, known, name) = (Arc::clone(self), Arc::clone(known), kept.to_owned());
        let id = request_id::current();
        let run = move || {
            let _permit = permit;
            let _entered = request_id::enter(id);
            let base = || shared.bases.find(&known.info, &shared.kept, || shared.kept_narinfos());
            let others = |tried: &[Arc<Remote>]| shared.same_file(&known.info, tried);
            match fetch.run(&file, base, &others) {
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
            shared.fills.lock().remove(&name);
            shared.kept.create_spare();
        };
        thread::Builder::new().name("upstream".into()).spawn(run).map_err(failed)?;
        self.kept_misses.fetch_add(1, Ordering::Relaxed);
        fills.insert(kept.to_owned(), Arc::clone(&fill));
        Ok(fill)
    }
}
