//! A server that does jobs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use narval_files::{Work, renewed, uptime};
use serde_json::{Value, json};

use super::RESULT_LINES_MAX;
use super::destination;
use crate::access::grant::Grant;
use crate::cache::Cache;
use crate::data::Data;
use crate::error::DataError;
use crate::keys::OVERLAP_SECONDS;
use crate::options::Destination;
use crate::records::jobs::{JOB_LEASE_SECONDS, Job, JobKind, JobState};
use crate::rejection::{Rejection, RejectionKind};
use crate::retention::{COLLECT_GRACE, CollectOptions, Collected, Forgotten, UNFINISHED_GRACE};
use crate::shared::Shared;
use crate::upkeep::{FsckOptions, FsckReport, MigrateError, Migrated, Recompressed};

/// How often a server looks for a job.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it says how far it is.
const RENEW_EVERY: Duration = Duration::from_secs(JOB_LEASE_SECONDS / 5);
/// Jobs that a server does at the same time.
const RUNNING_MAX: usize = 4;
/// Everything is older than that, in seconds.
const CENTURY: u64 = 100 * 365 * 24 * 60 * 60;
/// How often a collection looks whether another one has ended.
const COLLECTION_EVERY: Duration = Duration::from_millis(500);

/// Does jobs for as long as the data is open.
pub(crate) fn run(shared: &Weak<Shared>) {
    let running = Arc::new(AtomicUsize::new(0));
    loop {
        std::thread::sleep(LOOK_EVERY);
        let Some(shared) = shared.upgrade() else { return };
        while running.load(Ordering::Acquire) < RUNNING_MAX {
            let started_at = uptime();
            let job = match shared.index.claim_job() {
                Ok(Some(job)) => job,
                Ok(None) => break,
                Err(error) => {
                    if !error.is_unavailable() {
                        tracing::warn!("cannot look for jobs: {error}");
                    }
                    break;
                }
            };
            running.fetch_add(1, Ordering::AcqRel);
            let (shared, running) = (Arc::clone(&shared), Arc::clone(&running));
            let id = job.id.clone();
            let doing = move || {
                // Also if it panics.
                let _running = Counted(running);
                execute(&Data::of(shared), &job, started_at);
            };
            // It is not begun: after its lease, this or another server tries again.
            if let Err(error) = std::thread::Builder::new().name("job".into()).spawn(doing) {
                tracing::error!("cannot start a thread for the job '{id}': {error}");
            }
        }
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Does a job whose lease is from `claimed` on.
fn execute(data: &Data, job: &Job, claimed: Duration) {
    let (work, is_cancelled) = (Work::new(), AtomicBool::new(job.is_cancelled));
    // A server that was paused for longer stops before it writes anything else: the index would refuse it, but a destination does not.
    let lease = Duration::from_secs(JOB_LEASE_SECONDS);
    work.stop_at(claimed + lease);
    if job.is_cancelled {
        work.stop();
    }
    let (mut step, mut since) = (0, Instant::now());
    let mut renew = || {
        let number = work.done().step.number;
        if number != step {
            (step, since) = (number, Instant::now());
        }
        let progress = progress(&work, since.elapsed()).to_string();
        let started_at = uptime();
        match data.shared().index.renew_job(&job.id, job.fence, progress) {
            Ok(Some(false)) => work.stop_at(started_at + lease),
            Ok(Some(true)) => {
                is_cancelled.store(true, Ordering::Release);
                work.stop();
            }
            Ok(None) => work.stop(),
            // What is done needs the index, too, and fails, or waits for it.
            Err(error) => tracing::debug!("{error}"),
        }
    };
    renew();
    let perform = || data.shared().index.as_job(&job.id, job.fence, || perform(data, job, &work));
    let result = renewed(RENEW_EVERY, renew, perform);
    if work.is_stopped() && !is_cancelled.load(Ordering::Acquire) {
        tracing::warn!("the job '{}' took too long, and another server goes on with it", job.id);
        return;
    }
    let (state, value) = match result {
        _ if is_cancelled.load(Ordering::Acquire) => (JobState::Cancelled, Value::Null),
        Ok(value) => (JobState::Done, value),
        Err(rejection) if rejection.kind == RejectionKind::Unavailable => {
            // Later, or at another server.
            tracing::warn!("the job '{}': {rejection}", job.id);
            data.shared().index.release_job(&job.id, job.fence).unwrap_or_else(|error| tracing::debug!("{error}"));
            return;
        }
        Err(rejection) => (JobState::Failed, json!({"error": rejection.message})),
    };
    let outcome = if state == JobState::Failed { Err(value.to_string()) } else { Ok(state.name().to_owned()) };
    match data.shared().index.end_job(&job.id, job.fence, (state, value.to_string())) {
        Ok(true) => data.audit().note(&grant_of(job), Some(&job.cache), "end job", job.kind.name(), &outcome),
        Ok(false) => tracing::warn!("another server has ended the job '{}'", job.id),
        Err(error) => tracing::warn!("the job '{}' is done again: {error}", job.id),
    }
}

/// Whoever asked for it, and may administer its cache.
fn grant_of(job: &Job) -> Grant {
    Grant { token: job.token.clone(), ..Grant::administrator(&job.label) }
}

fn perform(data: &Data, job: &Job, work: &Work) -> Result<Value, Rejection> {
    let gone = || Rejection::not_found(format!("there is no cache '{}' any more", job.cache));
    // With the settings of now: it may have been deleted, or created again, a moment ago.
    let caches = data.refreshed().map_err(of_data)?;
    let cache = caches.into_iter().find(|cache| *cache.name() == job.cache).ok_or_else(gone)?;
    let is = |name: &str| job.options.get(name).and_then(Value::as_bool).unwrap_or(false);
    match job.kind {
        JobKind::Gc => {
            let grace = if is("unfinished") { UNFINISHED_GRACE } else { COLLECT_GRACE };
            let options = CollectOptions { dry_run: is("dryRun"), grace, work, ..CollectOptions::default() };
            Ok(collect(&cache, &options, &grant_of(job))?.to_value(is("dryRun"), RESULT_LINES_MAX))
        }
        JobKind::Fsck => {
            let options = FsckOptions { contents: is("contents"), repair: is("repair") };
            Ok(cache.fsck(options, work)?.to_value(RESULT_LINES_MAX))
        }
        JobKind::Delete => empty(&cache, work, &grant_of(job)),
        JobKind::Recompress => Ok(cache.recompress(work)?.to_value()),
        JobKind::Rotate => {
            let overlap = job.options.get("overlapSeconds").and_then(Value::as_u64).unwrap_or(OVERLAP_SECONDS);
            Ok(cache.rotate(overlap, job.created, &grant_of(job), work)?.to_value())
        }
        JobKind::Export | JobKind::Migrate => match data.destination(job.kind, &job.options)? {
            Destination::Export(url) => Ok(cache.copy_to(&url, work)?.to_value()),
            Destination::Migrate { place, database } => {
                let failed = |error: &dyn std::fmt::Display| {
                    tracing::error!("the job '{}': {error}", job.id);
                    Rejection::failed("the destination cannot be used; see the server's log")
                };
                let to = destination::open(&place, database).map_err(|error| failed(&error))?;
                match data.migrate_to(&to, Some(&job.cache), &grant_of(job), work) {
                    Ok(migrated) => Ok(migrated.to_value()),
                    Err(MigrateError::Rejected { rejection, .. }) => Err(rejection),
                    Err(MigrateError::Data(error)) => Err(of_data(error)),
                }
            }
        },
    }
}

/// An index that is away comes back: then the job is done later.
fn of_data(error: DataError) -> Rejection {
    match error {
        DataError::Index(error) => error.into(),
        error => {
            tracing::error!("a job: {error}");
            Rejection::failed("the data cannot be read or written; see the server's log")
        }
    }
}

/// Removes what is in a cache that was deleted: nothing keeps it any more, at a time when all of it is old.
fn empty(cache: &Cache, work: &Work, grant: &Grant) -> Result<Value, Rejection> {
    if !cache.settings().deleted {
        return Err(Rejection::conflict("the cache was created again"));
    }
    cache.forget_keys()?;
    while let Some(release) = cache.releases(None, None)?.releases.first() {
        stopped(work)?;
        cache.forget_release(&release.release.name, None, grant)?;
    }
    while let Some(pin) = cache.pins()?.first() {
        stopped(work)?;
        cache.unpin(&pin.name, None, grant)?;
    }
    let options =
        CollectOptions { now: Some(cache.now().saturating_add(CENTURY)), grace: 0, work, ..CollectOptions::default() };
    Ok(collect(cache, &options, grant)?.to_value(false, 0))
}

fn stopped(work: &Work) -> Result<(), Rejection> {
    work.check().map_err(|_| Rejection::interrupted("job"))
}

/// Collects as soon as no other process does.
fn collect(cache: &Cache, options: &CollectOptions<'_>, grant: &Grant) -> Result<Collected, Rejection> {
    loop {
        match cache.collect(options, grant) {
            Err(rejection) if rejection.kind == RejectionKind::Busy && !options.work.is_stopped() => {
                std::thread::sleep(COLLECTION_EVERY);
            }
            result => return result,
        }
    }
}

/// How far a job is, and when this step will be done, in seconds.
fn progress(work: &Work, since: Duration) -> Value {
    let done = work.done();
    let (part, all) = if done.step.bytes > 0 { (done.bytes, done.step.bytes) } else { (done.count, done.step.count) };
    let left = (part > 0 && all >= part).then(|| since.as_secs_f64() / part as f64 * (all - part) as f64);
    json!({
        "step": done.step.name, "things": done.step.things, "done": done.count, "of": done.step.count,
        "bytes": done.bytes, "ofBytes": done.step.bytes, "secondsLeft": left.map(|left| left.ceil() as u64),
    })
}

impl Collected {
    /// As `narval cache gc --json` prints it, with so many of the paths.
    pub fn to_value(&self, dry_run: bool, paths_max: usize) -> Value {
        let path = |path: &Forgotten| json!({"path": path.path, "used": path.used, "forSize": path.for_size});
        let paths: Vec<Value> = self.forgotten.iter().take(paths_max).map(path).collect();
        json!({"paths": paths, "removed": self.forgotten.len(), "kept": self.kept, "files": self.files, "bytes": self.bytes,
            "dryRun": dry_run})
    }
}

impl Recompressed {
    /// As JSON.
    pub fn to_value(&self) -> Value {
        json!({"recompressed": self.done, "failed": self.failed})
    }
}

impl Migrated {
    /// As JSON.
    pub fn to_value(&self) -> Value {
        let Self { paths, present, nars, bytes, files, tokens, pins } = self;
        json!({"paths": paths, "present": present, "nars": nars, "bytes": bytes, "files": files, "tokens": tokens, "pins": pins})
    }
}

impl FsckReport {
    /// As JSON, with so many of the problems.
    pub fn to_value(&self, problems_max: usize) -> Value {
        let problems: Vec<&String> = self.problems.iter().take(problems_max).collect();
        json!({"paths": self.paths, "files": self.files, "problems": problems, "found": self.problems.len()})
    }
}
