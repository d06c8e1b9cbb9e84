//! Delivers pending paths to one cache.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use narval_cache::{CacheError, Wanted};
use narval_client::Url;
use narval_nix::{PathInfo, StorePath};

use super::options::{DELIVERED_MAX, WatchOptions};
use super::state::{DestinationId, WatcherState};
use super::stop::Stop;
use narval_transfer::{Destination, Error};

use crate::push::{Missing, Target};

/// The maximum number of paths per push.
const BATCH_MAX: u32 = 256;

/// The first pause if a cache does not respond; doubled each time.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// How often a watcher that is stopping tries a cache that does not respond.
const ATTEMPTS_ONCE: u32 = 3;

/// How long an idle watcher waits before it reads the state again.
const IDLE: Duration = Duration::from_secs(3600);

/// One cache, and its pending paths.
pub(super) struct Delivery<'a> {
    pub(super) options: &'a WatchOptions,
    pub(super) state: &'a WatcherState,
    pub(super) id: DestinationId,
    pub(super) url: Url,
    pub(super) stop: &'a Stop,
}

/// The result of a delivery.
#[derive(Default)]
pub(super) struct Delivered {
    pub(super) pushed: u64,
    pub(super) already: u64,
    pub(super) sent: u64,
    pub(super) paths: Vec<StorePath>,
    /// With their sizes: what it would push.
    pub(super) lacking: BTreeMap<StorePath, u64>,
    pub(super) left: u64,
    pub(super) failure: Option<String>,
}

impl Delivered {
    fn add(&mut self, paths: Vec<StorePath>) {
        let room = DELIVERED_MAX.saturating_sub(self.paths.len());
        self.paths.extend(paths.into_iter().take(room));
    }

    /// Of two roots in two batches, both may refer to a path.
    fn would_push(&mut self, lacking: Vec<PathInfo>) {
        for info in lacking {
            if self.lacking.len() < DELIVERED_MAX {
                self.lacking.insert(info.path, info.nar_size);
            }
        }
    }
}

impl Delivery<'_> {
    /// Delivers until the watcher ends.
    pub(super) fn run(&self) -> Delivered {
        let (mut delivered, mut target, mut failures) = (Delivered::default(), None, 0);
        while !self.stop.is_stopped() {
            // Before the state is read: later changes end the wait.
            let (seen, is_over) = self.stop.changes();
            let done = self.state.due(self.id, BATCH_MAX).and_then(|due| {
                self.push(&due, &mut target, &mut delivered)?;
                Ok(due.is_empty())
            });
            match done {
                Ok(is_idle) => {
                    failures = 0;
                    delivered.failure = None;
                    if is_idle && is_over {
                        break;
                    }
                    if is_idle {
                        self.stop.wait(seen, self.longest_wait());
                    }
                }
                Err(_) if self.stop.is_stopped() => break,
                Err(error) => {
                    // The connection may be the cause.
                    target = None;
                    failures += 1;
                    delivered.failure = Some(self.named(&error));
                    // Who finishes is stopped when its time is over.
                    let is_hopeless = !self.stop.is_finishing() || is_refused(&error);
                    if is_over && is_hopeless && failures >= ATTEMPTS_ONCE {
                        break;
                    }
                    let pause = if is_over { PAUSE } else { pause(failures) };
                    tracing::warn!("{}; trying again in {} s", self.named(&error), pause.as_secs());
                    self.stop.pause_or_over(pause, is_over);
                }
            }
        }
        match self.state.left(self.id) {
            Ok((left, _)) => delivered.left = left,
            Err(error) => delivered.failure = Some(error.to_string()),
        }
        delivered
    }

    /// The time until a refused path is tried again.
    fn longest_wait(&self) -> Duration {
        match self.state.left(self.id) {
            Ok((_, Some(seconds))) => Duration::from_secs(seconds.max(1)).min(IDLE),
            _ => IDLE,
        }
    }

    /// An error message with the cache's name.
    fn named(&self, error: &Error) -> String {
        let (text, url) = (error.to_string(), self.url.to_string());
        if text.contains(&url) { text } else { format!("{url}: {text}") }
    }

    /// Pushes paths with their closures. An error concerns the cache or the state; failures of single paths are
    /// recorded in the state.
    fn push(&self, paths: &[StorePath], target: &mut Option<Target>, delivered: &mut Delivered) -> Result<(), Error> {
        // A separate destination: it protects paths from collections for the duration of this push.
        let from = Destination::new(self.options.store.clone());
        let (mut infos, mut valid, mut gone) = (BTreeMap::new(), Vec::new(), Vec::new());
        for path in paths {
            match self.closure(&from, path, &mut infos) {
                Ok(true) => valid.push(path.clone()),
                Ok(false) => gone.push(path.clone()),
                Err(error) => self.refuse(path, &error)?,
            }
        }
        if !gone.is_empty() {
            gone.iter().for_each(|path| tracing::info!("{path} is no longer valid and is not pushed"));
            self.state.done(self.id, &gone)?;
        }
        if infos.is_empty() {
            return Ok(());
        }
        let opened = match target.take() {
            Some(opened) => opened,
            None if self.options.is_dry => Target::look(&self.url, &self.options.client, from.store_dir())?,
            None => Target::open(&self.url, &self.options.client, from.store_dir())?,
        };
        let (target_now, selection, progress) =
            (&*target.insert(opened), &self.options.selection, self.stop.progress());
        if self.options.is_dry {
            let Missing { infos: lacking, already, .. } = selection.missing(&infos, &[], target_now, progress)?;
            self.state.done(self.id, &valid)?;
            delivered.already += already as u64;
            delivered.would_push(lacking);
            delivered.add(valid);
            return Ok(());
        }
        let result = selection.push(&from, &infos, &[], target_now, (&self.options.push, progress));
        // Not displayed.
        progress.take_finished();
        progress.take_resumed();
        match result {
            Ok(pushed) => {
                self.state.done(self.id, &valid)?;
                delivered.pushed += pushed.pushed as u64;
                delivered.already += pushed.already as u64;
                delivered.sent += pushed.sent;
                delivered.add(valid);
                tracing::info!(
                    "{}: pushed {}, already there {}, {} bytes sent",
                    self.url,
                    pushed.pushed,
                    pushed.already,
                    pushed.sent
                );
                Ok(())
            }
            Err(error) if is_the_caches(&error) || self.stop.is_stopped() => Err(error),
            Err(error) => match valid.as_slice() {
                [path] => self.refuse(path, &error),
                // One of them blocks the others.
                several => several.iter().try_for_each(|path| self.push(std::slice::from_ref(path), target, delivered)),
            },
        }
    }

    /// Adds a path, with its closure if that is pushed, and protects them from collections. Returns whether all of them are valid.
    fn closure(
        &self,
        from: &Destination,
        root: &StorePath,
        infos: &mut BTreeMap<StorePath, PathInfo>,
    ) -> Result<bool, Error> {
        if from.find_and_keep(&Wanted::Path(root.clone()))?.is_none() {
            return Ok(false);
        }
        if infos.contains_key(root) {
            return Ok(true);
        }
        let (mut own, mut level) = (BTreeMap::new(), vec![root.clone()]);
        while let Some(path) = level.pop() {
            if infos.contains_key(&path) || own.contains_key(&path) {
                continue;
            }
            let Some(info) = from.store().path_info(&path)? else { return Ok(false) };
            if !self.options.selection.no_closure {
                level.extend(info.references.iter().cloned());
            }
            own.insert(path, info);
        }
        infos.append(&mut own);
        Ok(true)
    }

    fn refuse(&self, path: &StorePath, error: &Error) -> Result<(), Error> {
        let is_tried_again = self.state.refused(self.id, path)?;
        let then = if is_tried_again { "it is tried again later" } else { "it is not tried again" };
        tracing::warn!("{path} was not pushed: {}; {then}", self.named(error));
        Ok(())
    }
}

/// Whether the cache does not allow it.
const fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Refused { status: 401 | 403, .. })
}

/// Whether a failure concerns the cache or its connection, so that no other path would succeed now.
fn is_the_caches(error: &Error) -> bool {
    match error {
        Error::Cache(CacheError::Fetch { .. } | CacheError::Refused { .. }) => true,
        // Statuses that concern this path, not all of them.
        Error::Refused { status, .. } => !matches!(status, 400 | 409 | 411 | 413 | 415 | 422),
        Error::CacheFolder { .. } | Error::Copy { .. } | Error::Space { .. } | Error::File { .. } => true,
        Error::Several { first, .. } => is_the_caches(first),
        _ => false,
    }
}

/// The pause after this many consecutive failures, with a quarter of it random, so that several machines do not retry
/// at the same time.
fn pause(failures: u32) -> Duration {
    let whole = PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PAUSE_MAX);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    whole.mul_f64(1.0 - f64::from(nanos % 1000) / 4000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let within = |failures, seconds: f64| {
            let pause = pause(failures).as_secs_f64();
            pause <= seconds && pause >= seconds * 0.74
        };
        assert!(within(1, 1.0) && within(2, 2.0) && within(4, 8.0) && within(60, 300.0));
    }

    #[test]
    fn whose_fault_a_failure_is() {
        let refused = |status| Error::Refused { cache: "c".into(), what: "w".into(), status, message: "m".into() };
        assert!([401, 403, 404, 405, 429, 500, 503, 507].into_iter().all(|status| is_the_caches(&refused(status))));
        assert!(![400, 409, 413, 422].into_iter().any(|status| is_the_caches(&refused(status))));
        assert!(!is_the_caches(&Error::Usage("its files have been changed".into())));
    }
}
