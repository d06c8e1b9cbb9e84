//! Jobs.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use narval_files::Permits;
use narval_http::{Event, EventOptions, EventStream, Response};
use narval_keep::{Cache, Job, JobKind, JobState};
use serde::Deserialize;
use serde_json::Value;

use super::asked::{Answered, Asked, malformed, not_found};
use crate::error::ServeError;

/// The most streams of events of a process, and of one client: each has a thread.
const STREAMS_MAX: usize = 64;
const STREAMS_OF_ONE_MAX: usize = 8;
/// How often a stream looks for something new.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a stream lasts. Whoever still may opens another one.
const LASTS_MAX: Duration = Duration::from_secs(600);

static STREAMS: LazyLock<Permits> = LazyLock::new(|| Permits::shared(STREAMS_MAX, STREAMS_OF_ONE_MAX));

/// The job of the path.
fn one(asked: &Asked<'_>) -> Result<(Cache, Job), ServeError> {
    let (cache, id) = (asked.cache_or_deleted()?, asked.part("id"));
    let job = cache.job(id)?.ok_or_else(|| not_found(format!("the cache '{}' has no job '{id}'", cache.name())))?;
    Ok((cache, job))
}

/// `GET caches/{cache}/jobs`
pub(super) fn list(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let cache = asked.cache_or_deleted()?;
    let after = asked.query("after").map(|id| cache.job(id)).transpose()?.flatten();
    let (jobs, is_full) = cache.jobs(after.as_ref())?;
    let next = jobs.last().filter(|_| is_full).map(|last| last.id.clone());
    Answered::page(&jobs, next)
}

/// The body of a new job.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    kind: String,
    #[serde(default)]
    options: serde_json::Map<String, Value>,
}

/// `POST caches/{cache}/jobs`
pub(super) fn start(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let New { kind, options } = asked.json()?;
    let kind: JobKind = kind.parse().map_err(malformed)?;
    if kind == JobKind::Delete {
        return Err(malformed("a cache is deleted by DELETE of its path"));
    }
    let (job, is_new) = asked.cache()?.start_job(kind, &options.into(), asked.key, asked.grant()?)?;
    Answered::new(if is_new { 201 } else { 200 }, &job)
}

/// `GET caches/{cache}/jobs/{id}`
pub(super) fn show(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    Answered::ok(&one(asked)?.1)
}

/// `DELETE caches/{cache}/jobs/{id}`
pub(super) fn cancel(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let (cache, job) = one(asked)?;
    cache.cancel_job(&job, asked.grant()?)?;
    Answered::ok(&cache.job(&job.id)?.unwrap_or(job))
}

/// `GET caches/{cache}/jobs/{id}/events`
pub(super) fn events(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let (cache, job) = one(asked)?;
    let permit = STREAMS.take().ok_or(ServeError::Busy)?;
    let (response, stream) = Response::events(EventOptions::default());
    let watching = move || {
        let _permit = permit;
        watch(&cache, job, &stream);
        stream.close();
    };
    std::thread::Builder::new().name("job-events".into()).spawn(watching).map_err(|_| ServeError::Busy)?;
    Ok(Answered::events(response))
}

/// Sends a job whenever it has changed, until it has ended.
fn watch(cache: &Cache, mut job: Job, stream: &EventStream) {
    let (mut sent, begun) = (None, Instant::now());
    while stream.is_open() && begun.elapsed() < LASTS_MAX {
        let text = serde_json::to_string(&job).unwrap_or_default();
        if sent.as_ref() != Some(&text) {
            // One that cannot be queued is followed by the next one.
            let _ = stream.send(&Event::new(&text).name("job"));
            sent = Some(text);
        }
        if !matches!(job.state, JobState::Waiting | JobState::Running) {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
        match cache.job(&job.id) {
            Ok(Some(now)) => job = now,
            Ok(None) => return,
            // It is asked for again.
            Err(error) => tracing::debug!("{error}"),
        }
    }
}
