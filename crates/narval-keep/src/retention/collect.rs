//! Collections: removing what nothing keeps.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::time::{Duration, Instant, UNIX_EPOCH};

use narval_files::Work;
use narval_nix::HashPart;

use super::grace::COLLECT_GRACE;
use super::lease::{Collection, keep_while};
use super::mark::{Marks, Why, chain, mark};
use super::steps::Steps;
use crate::access::grant::Grant;
use crate::cache::Cache;
use crate::index::Snapshot;
use crate::records::paths::Listed;
use crate::rejection::{Rejection, RejectionKind};
use crate::small::{JSON_LEN_MAX, SMALL_FOLDERS};
use crate::storage::{Below, StoredFile};
use crate::tokens::EXCHANGED_FOR;

/// The most paths hidden in one step; uploads wait meanwhile: with four times as many, one in a hundred of them waits for a quarter of a second.
const STEP: usize = 64;

/// Small files may use at most this fraction of a cache's maximum size, so that logs do not displace paths.
const SMALL_PART: u64 = 4;

const DAY: u64 = 24 * 60 * 60;

/// Options of a collection.
#[derive(Debug, Clone, Copy)]
pub struct CollectOptions<'a> {
    /// Only report what would be done.
    pub dry_run: bool,
    /// How long NARs without a narinfo are kept, in seconds.
    pub grace: u64,
    /// The time to use instead of the current one, in seconds since 1970.
    pub now: Option<u64>,
    /// How far it is.
    pub work: &'a Work,
}

impl Default for CollectOptions<'_> {
    fn default() -> Self {
        Self { dry_run: false, grace: COLLECT_GRACE, now: None, work: Work::unwatched() }
    }
}

/// A path removed by a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forgotten {
    /// Base name.
    pub path: String,
    /// When it, or a path that refers to it, was last pushed or requested, in seconds since 1970.
    pub used: u64,
    /// The size of its NAR's file in bytes. Other paths may share the file.
    pub file_size: u64,
    /// Whether it was removed because of the cache's size, within its retention.
    pub for_size: bool,
}

/// The result of a collection or of a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Collected {
    /// The removed paths, referrers first.
    pub forgotten: Vec<Forgotten>,
    /// The number of remaining paths.
    pub kept: usize,
    /// The number of NAR files deleted after their grace period, or that would be.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

fn busy() -> Rejection {
    let message = "another process is collecting, or was killed less than two minutes ago; try again";
    Rejection::new(RejectionKind::Busy, message)
}

/// An error if the work shall stop.
pub(super) fn stopped(work: &Work) -> Result<(), Rejection> {
    work.check().map_err(|_| Rejection::interrupted("collection"))
}

impl Cache {
    /// Removes what nothing keeps. Uploads and reads continue meanwhile.
    ///
    /// # Errors
    /// If the index or a file fails, or another process is collecting ([`RejectionKind::Busy`]). The state is consistent then.
    pub fn collect(&self, options: &CollectOptions<'_>, grant: &Grant) -> Result<Collected, Rejection> {
        let work = options.work;
        let (now, began) = (options.now.unwrap_or_else(|| self.now()), Instant::now());
        self.record_uses();
        let retention = self.cutoff(now);
        let collection = if options.dry_run { None } else { Some(Collection::begin(self)?.ok_or_else(busy)?) };
        if collection.is_some() {
            // First, because they count towards the maximum size.
            self.sweep_small(retention)?;
        }
        work.begin("looking for what nothing keeps", "", 0, 0);
        let keeper = collection.as_ref();
        let (snapshot, marks, order) = keep_while(keeper, || {
            let snapshot = self.index().snapshot(self.id(), None)?;
            let marks = self.marks(&snapshot, now)?;
            let order = marks.forgotten(&snapshot);
            Ok((snapshot, marks, order))
        })?;
        let mut collected = Collected { kept: snapshot.len() - order.len(), ..Collected::default() };
        work.begin("removing", "paths", order.len() as u64, 0);
        let (mut rest, mut steps) = (&order[..], Steps::of(STEP));
        while !rest.is_empty() && !work.is_stopped() {
            let (step, later) = rest.split_at(steps.len().min(rest.len()));
            rest = later;
            let ids: Vec<i64> = step.iter().filter_map(|at| snapshot.ids.get(*at as usize).copied()).collect();
            let mut names: HashMap<i64, Listed> = self.index().names(self.id(), &ids)?.into_iter().collect();
            // In the order of the step. Those that are gone are left out.
            let paths: Vec<(u32, Listed)> =
                step.iter().zip(&ids).filter_map(|(at, id)| Some((*at, names.remove(id)?))).collect();
            let hidden: HashSet<HashPart> = match &collection {
                None => paths.iter().map(|(_, path)| path.hash_part).collect(),
                Some(collection) => {
                    let used = |at: u32| snapshot.used.get(at as usize).copied().map_or(0, u64::from);
                    let parts: Vec<_> = paths.iter().map(|(at, path)| (path.hash_part, used(*at))).collect();
                    self.hide(collection, &parts, now, &mut steps)?.into_iter().collect()
                }
            };
            work.count(step.len() as u64);
            for (at, Listed { hash_part, path, file_size, .. }) in paths {
                if hidden.contains(&hash_part) {
                    let used = u64::from(marks.time(at));
                    collected.forgotten.push(Forgotten { path, used, file_size, for_size: used >= retention });
                } else {
                    // It has been requested since the snapshot.
                    collected.kept += 1;
                }
            }
        }
        if let Some(collection) = collection {
            // What is hidden stays hidden, whatever comes next.
            self.audit_done(grant, "collect", collected.forgotten.iter().map(|path| (&*path.path, "forgotten")));
            stopped(work)?;
            // There are thousands of short-lived tokens of CI jobs.
            self.index().forget_tokens(now.saturating_sub(EXCHANGED_FOR.as_secs()))?;
            (collected.files, collected.bytes) = self.sweep_in(&collection, options.grace, now, work)?;
            self.remove_leftovers(&collection)?;
            collection.completed(self.id())?;
            let removed = (collected.forgotten.len() as u64, collected.bytes);
            self.state().collections.done(removed, began.elapsed());
        } else {
            let orphans = self.index().orphans(self.id(), self.nar_cutoff(options.grace, now)?)?;
            (collected.files, collected.bytes) = (orphans.len(), orphans.iter().map(|(_, bytes)| bytes).sum());
        }
        Ok(collected)
    }

    /// Who is collecting now, in words for a message. One that was killed is named for a minute.
    ///
    /// # Errors
    /// If the index fails.
    pub fn collector(&self) -> Result<Option<String>, Rejection> {
        Ok(self.index().collector()?)
    }

    /// How many paths a collection at this time keeps, and how many it removes, without doing so.
    #[cfg(test)]
    pub(crate) fn mark_only(&self, now: u64) -> Result<(usize, usize), Rejection> {
        let snapshot = self.index().snapshot(self.id(), None)?;
        let forgotten = self.marks(&snapshot, now)?.forgotten(&snapshot).len();
        Ok((snapshot.len() - forgotten, forgotten))
    }

    /// Like [`Cache::collect_in_background`], unless another server has collected within this time.
    pub(crate) fn collect_in_turn(&self, every: Duration) {
        match self.index().collected(self.id()) {
            // A little less, because servers do not check at the same moment.
            Ok(Some(ago)) if self.is_shared() && ago < every - every / 10 => {}
            Ok(_) => self.collect_in_background(),
            Err(error) => tracing::error!("cache '{}': the collection is put off: {error}", self.name()),
        }
    }

    /// Like [`Cache::collect`], in the background: the result is logged.
    pub(crate) fn collect_in_background(&self) {
        match self.collect(&CollectOptions::default(), &Grant::administrator("retention")) {
            Ok(collected) => tracing::info!(
                "cache '{}': removed {} paths, kept {}; deleted {} NARs with {} bytes",
                self.name(),
                collected.forgotten.len(),
                collected.kept,
                collected.files,
                collected.bytes
            ),
            Err(rejection) if matches!(rejection.kind, RejectionKind::Conflict | RejectionKind::Busy) => {
                tracing::debug!("cache '{}': {rejection}", self.name());
            }
            Err(rejection) => tracing::error!("cache '{}': the collection stopped: {rejection}", self.name()),
        }
    }

    /// Why a path is kept; `None` if the cache does not have it.
    ///
    /// # Errors
    /// When the index fails.
    pub fn why(&self, hash_part: &HashPart) -> Result<Option<Why>, Rejection> {
        self.record_uses();
        let (snapshot, now) = (self.index().snapshot(self.id(), Some(hash_part))?, self.now());
        let Some((hold, chain)) = chain(&snapshot, now) else { return Ok(None) };
        let ids: Vec<i64> = chain.iter().filter_map(|at| snapshot.ids.get(*at as usize).copied()).collect();
        let mut names = HashMap::new();
        for step in ids.chunks(STEP) {
            names.extend(self.index().names(self.id(), step)?.into_iter().map(|(id, path)| (id, path.path)));
        }
        let kept = chain.last().map_or(Ok(false), |last| Ok(self.marks(&snapshot, now)?.is_kept(*last)));
        let chain = ids.iter().filter_map(|id| names.remove(id)).collect();
        kept.map(|kept| Some(Why { hold, chain, kept }))
    }

    fn marks(&self, snapshot: &Snapshot, now: u64) -> Result<Marks, Rejection> {
        let mut marks = mark(snapshot, now, self.cutoff(now));
        if let Some(size_max) = self.settings().size_max {
            // If the size of other files is unknown, more is kept.
            let small = self.bytes_of_small_files().unwrap_or(0);
            marks.shrink_to(snapshot, &self.index().sizes(self.id())?, size_max.saturating_sub(small));
        }
        Ok(marks)
    }

    /// Paths last used before this are removed.
    fn cutoff(&self, now: u64) -> u64 {
        self.settings().retention_days.map_or(0, |days| now.saturating_sub(u64::from(days) * DAY))
    }

    fn hide(
        &self,
        collection: &Collection<'_>,
        paths: &[(HashPart, u64)],
        now: u64,
        steps: &mut Steps,
    ) -> Result<Vec<HashPart>, Rejection> {
        let _alone = self.alone()?;
        steps.time(|_| {
            let hidden = collection.step(|fence| self.index().hide(fence, self.id(), paths, now))?;
            self.reconcile_now()?;
            Ok(hidden)
        })
    }

    /// Removes logs, realisations, debug information and files of unknown kinds that were written before `before`, and then the
    /// oldest ones that exceed their share of the cache's maximum size. Those of outputs that the cache has are kept.
    fn sweep_small(&self, before: u64) -> Result<(), Rejection> {
        let fail = |error: io::Error| Rejection::of_file("look at", "small files", &error);
        let mut kept = Vec::new();
        for folder in SMALL_FOLDERS {
            for StoredFile { name, len, modified } in self.files().list(Below::Folder(folder)).map_err(fail)? {
                let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                if modified.is_none_or(|time| time.as_secs() >= before) || self.is_of_a_path(&name)? {
                    kept.push((modified, len, name));
                } else {
                    self.files().remove(&name).map_err(fail)?;
                }
            }
        }
        let mut bytes: u64 = kept.iter().map(|(_, len, _)| len).sum();
        let bytes_max = self.settings().size_max.map_or(u64::MAX, |size_max| size_max / SMALL_PART);
        kept.sort_unstable();
        for (_, len, name) in kept {
            if bytes <= bytes_max {
                break;
            }
            if !self.is_of_a_path(&name)? {
                let fail = |error: io::Error| Rejection::of_file("remove", &name, &error);
                self.files().remove(&name).map_err(fail)?;
                bytes -= len;
            }
        }
        self.small_bytes().forget();
        Ok(())
    }

    /// Whether a realisation or debug information belongs to a path in this cache. Logs belong to derivations, which nobody pushes.
    fn is_of_a_path(&self, name: &str) -> Result<bool, Rejection> {
        if name.starts_with("log/") {
            return Ok(false);
        }
        let fail = |error: io::Error| Rejection::of_file("read", name, &error);
        let Some((file, _)) = self.files().open(name).map_err(fail)? else { return Ok(false) };
        let mut text = Vec::new();
        file.take(JSON_LEN_MAX).read_to_end(&mut text).map_err(fail)?;
        let Ok(json) = serde_json::from_slice::<serde_json::Value>(&text) else { return Ok(false) };
        let field = |key: &str| json.get(key).and_then(serde_json::Value::as_str);
        if let Some(part) = field("outPath").and_then(|path| path.get(..32)?.parse::<HashPart>().ok()) {
            return Ok(self.index().path(self.id(), &part)?.is_some());
        }
        match field("archive").and_then(|archive| archive.rsplit('/').next()) {
            Some(name) => Ok(self.index().file(self.id(), name)?.is_some()),
            None => Ok(false),
        }
    }
}
