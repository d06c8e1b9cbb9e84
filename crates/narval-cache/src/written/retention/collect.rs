//! Collections: removing what nothing keeps.

use std::io::{self, Read};
use std::time::UNIX_EPOCH;

use narval_nix::HashPart;

use super::mark::{Marks, Why, mark};
use crate::written::index::{Cutoff, Snapshot};
use crate::written::small::{JSON_LEN_MAX, SMALL_FOLDERS};
use crate::written::storage::{Below, StoredFile};
use crate::written::{Cache, Grant, Refusal};

/// How long a NAR without a narinfo is kept, in seconds: a day. Clients that have its old narinfo can still fetch it,
/// and it protects uploads whose narinfo follows last.
pub const COLLECT_GRACE: u64 = 24 * 60 * 60;

/// The minimum time that such a NAR is kept, in seconds, after it was uploaded, its narinfo was hidden, or a client was
/// told that the cache has it: ten minutes. When the disk or a quota is full, those unused for longer are removed
/// immediately.
pub const UNFINISHED_GRACE: u64 = 10 * 60;

/// The number of paths hidden in one step; uploads wait meanwhile.
const STEP: usize = 256;

/// Small files may use at most this fraction of a cache's maximum size, so that logs do not displace paths.
const SMALL_PART: u64 = 4;

const DAY: u64 = 24 * 60 * 60;

/// Options of a collection.
#[derive(Debug, Clone, Copy)]
pub struct CollectOptions {
    /// Only report what would be done.
    pub dry_run: bool,
    /// How long NARs without a narinfo are kept, in seconds.
    pub grace: u64,
    /// The time to use instead of the current one, in seconds since 1970.
    pub now: Option<u64>,
}

impl Default for CollectOptions {
    fn default() -> Self {
        Self { dry_run: false, grace: COLLECT_GRACE, now: None }
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

impl Cache {
    /// Removes what nothing keeps. Uploads and reads continue meanwhile.
    ///
    /// # Errors
    /// If the index or a file fails. The state is consistent then.
    pub fn collect(&self, options: &CollectOptions, grant: &Grant) -> Result<Collected, Refusal> {
        let now = options.now.unwrap_or_else(|| self.now());
        self.record_uses();
        let retention = self.cutoff(now);
        if !options.dry_run {
            // First, because they use part of the maximum size.
            self.sweep_small(retention)?;
        }
        let snapshot = self.index().snapshot(self.id())?;
        let marks = self.marks(&snapshot, now);
        let order = marks.forgotten(&snapshot);
        let mut collected = Collected { kept: snapshot.paths.len() - order.len(), ..Collected::default() };
        for step in order.chunks(STEP) {
            let paths: Vec<_> =
                step.iter().filter_map(|at| Some((snapshot.paths.get(*at)?, *marks.times.get(*at)?))).collect();
            let hidden = if options.dry_run {
                paths.iter().map(|(path, _)| path.hash_part).collect()
            } else {
                self.hide(&paths.iter().map(|(path, _)| (path.hash_part, path.used)).collect::<Vec<_>>(), now)?
            };
            for (path, used) in paths {
                if hidden.contains(&path.hash_part) {
                    collected.forgotten.push(Forgotten {
                        path: path.path.clone(),
                        used,
                        file_size: path.file_size,
                        for_size: used >= retention,
                    });
                } else {
                    // It was requested since.
                    collected.kept += 1;
                }
            }
        }
        if options.dry_run {
            let orphans = self.index().orphans(self.id(), cutoff(options.grace, now))?;
            (collected.files, collected.bytes) = (orphans.len(), orphans.iter().map(|(_, bytes)| bytes).sum());
        } else {
            // There are thousands of short-lived tokens of CI jobs.
            self.index().forget_tokens(now.saturating_sub(DAY))?;
            (collected.files, collected.bytes) = self.sweep(options.grace, now)?;
            self.audit_done(grant, "collect", collected.forgotten.iter().map(|path| (&*path.path, "forgotten")));
        }
        Ok(collected)
    }

    /// Like [`Cache::collect`], in the background: the result is logged.
    pub(in crate::written) fn collect_in_background(&self) {
        match self.collect(&CollectOptions::default(), &Grant::administrator("retention")) {
            Ok(collected) => tracing::info!(
                "cache '{}': removed {} paths, kept {}; deleted {} NARs with {} bytes",
                self.name(),
                collected.forgotten.len(),
                collected.kept,
                collected.files,
                collected.bytes
            ),
            Err(refusal) => tracing::error!("cache '{}': the collection stopped: {refusal}", self.name()),
        }
    }

    /// Why a path is kept; `None` if the cache does not have it.
    ///
    /// # Errors
    /// When the index fails.
    pub fn why(&self, hash_part: &HashPart) -> Result<Option<Why>, Refusal> {
        self.record_uses();
        let snapshot = self.index().snapshot(self.id())?;
        Ok(self.marks(&snapshot, self.now()).why(&snapshot, hash_part))
    }

    fn marks(&self, snapshot: &Snapshot, now: u64) -> Marks {
        let mut marks = mark(snapshot, now, self.cutoff(now));
        if let Some(size_max) = self.settings().size_max {
            // If the size of other files is unknown, more is kept.
            marks.shrink_to(snapshot, size_max.saturating_sub(self.bytes_of_small_files().unwrap_or(0)));
        }
        marks
    }

    /// Paths last used before this are removed.
    fn cutoff(&self, now: u64) -> u64 {
        self.settings().retention_days.map_or(0, |days| now.saturating_sub(u64::from(days) * DAY))
    }

    fn hide(&self, paths: &[(HashPart, u64)], now: u64) -> Result<Vec<HashPart>, Refusal> {
        let fail = |error: io::Error| Refusal::of_file("lock", "the data folder", &error);
        let _alone = self.storage().lock_exclusive().map_err(fail)?;
        let hidden = self.index().hide(self.id(), paths, now)?;
        self.reconcile_now()?;
        Ok(hidden)
    }

    /// Removes logs, realisations, debug information and files of kinds that are not known that were written before this, and
    /// the oldest ones where there are too many for the cache's largest size. Those of outputs that are here stay.
    fn sweep_small(&self, before: u64) -> Result<(), Refusal> {
        let fail = |error: io::Error| Refusal::of_file("look at", "small files", &error);
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
                let fail = |error: io::Error| Refusal::of_file("remove", &name, &error);
                self.files().remove(&name).map_err(fail)?;
                bytes -= len;
            }
        }
        self.small_bytes().forget();
        Ok(())
    }

    /// Whether a realisation or debug information is of something that is here. Logs are of derivations, which nobody pushes.
    fn is_of_a_path(&self, name: &str) -> Result<bool, Refusal> {
        if name.starts_with("log/") {
            return Ok(false);
        }
        let fail = |error: io::Error| Refusal::of_file("read", name, &error);
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

    /// Deletes the files of NARs that have had no narinfo for this many seconds.
    pub(in crate::written) fn sweep(&self, grace: u64, now: u64) -> Result<(usize, u64), Refusal> {
        let fail = |error: io::Error| Refusal::of_file("lock", "the data folder", &error);
        let (mut files, mut bytes) = (0, 0);
        loop {
            let _alone = self.storage().lock_exclusive().map_err(fail)?;
            let swept = self.index().sweep_files(self.id(), cutoff(grace, now), STEP, now)?;
            self.reconcile_now()?;
            files += swept.len();
            bytes += swept.iter().map(|(_, bytes)| bytes).sum::<u64>();
            if swept.len() < STEP {
                return Ok((files, bytes));
            }
        }
    }
}

/// The cutoff for this grace period. A client that was told that the cache has a NAR has some time to send its narinfo,
/// whenever the NAR was uploaded.
fn cutoff(grace: u64, now: u64) -> Cutoff {
    Cutoff { orphaned: now.saturating_sub(grace), used: now.saturating_sub(grace.min(UNFINISHED_GRACE)) }
}
