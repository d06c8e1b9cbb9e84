//! Jobs.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use narval_files::Permits;
use narval_http::{Event, EventOptions, EventStream, Response};
use narval_keep::{Cache, Job, JobKind, JobState};
use serde::Deserialize;
use serde_json::Value;

use super::call::{ApiAnswer, ApiCall, malformed, not_found};
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
fn one(call: &ApiCall<'_>) -> Result<(Cache, Job), ServeError> {
    let (cache, id) = (call.cache_or_deleted()?, call.part("id"));
    let job = cache.job(id)?.ok_or_else(|| not_found(format!("the cache '{}' has no job '{id}'", cache.name())))?;
    Ok((cache, job))
}

/// `GET caches/{cache}/jobs`
pub(super) fn list(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let cache = call.cache_or_deleted()?;
    let after = call.query("after").map(|id| cache.job(id)).transpose()?.flatten();
    let (jobs, is_full) = cache.jobs(after.as_ref())?;
    let next = jobs.last().filter(|_| is_full).map(|last| last.id.clone());
    ApiAnswer::page(&jobs, next)
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
pub(super) fn start(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let New { kind, options } = call.json()?;
    let kind: JobKind = kind.parse().map_err(malformed)?;
    if kind == JobKind::Delete {
        return Err(malformed("a cache is deleted by DELETE of its path"));
    }
    let (job, is_new) = call.cache()?.start_job(kind, &options.into(), call.key, call.grant()?)?;
    ApiAnswer::new(if is_new { 201 } else { 200 }, &job)
}

/// `GET caches/{cache}/jobs/{id}`
pub(super) fn show(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    ApiAnswer::ok(&one(call)?.1)
}

/// `DELETE caches/{cache}/jobs/{id}`
pub(super) fn cancel(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (cache, job) = one(call)?;
    cache.cancel_job(&job, call.grant()?)?;
    ApiAnswer::ok(&cache.job(&job.id)?.unwrap_or(job))
}

/// `GET caches/{cache}/jobs/{id}/events`
pub(super) fn events(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (cache, job) = one(call)?;
    let permit = STREAMS.take().ok_or(ServeError::Busy)?;
    let (response, stream) = Response::events(EventOptions::default());
    let watching = move || {
        let _permit = permit;
        watch(&cache, job, &stream);
        stream.close();
    };
    std::thread::Builder::new().name("job-events".into()).spawn(watching).map_err(|_| ServeError::Busy)?;
    Ok(ApiAnswer::events(response))
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
