//! Jobs: long work on a cache that somebody asks for, and a server does.
//!
//! A job is a row of the index. Each server looks for one that nobody does and takes a lease of it, so one server at a time does a job, and another one goes
//! on when that is killed. All kinds can be done again from their beginning: what was done before is not done twice. A cache has one job of a kind at a time.

mod destination;
mod run;

use std::fmt;
use std::str::FromStr;

use narval_nix::{Sha256Hasher, nix32};
use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) use self::run::run;
use crate::cache::Cache;
use crate::data::Data;
use crate::index::IndexError;
use crate::name::CacheName;
use crate::rejection::Rejection;
use crate::tokens::{Grant, Scope};

/// How long a server may be silent about a job before another one goes on with it.
pub(crate) const JOB_LEASE_SECONDS: u64 = 15;

/// How long jobs are known after their ends, in seconds: a week.
pub const JOBS_KEPT_FOR: u64 = 7 * 24 * 60 * 60;

/// The most jobs of a cache that are known after their ends.
pub(crate) const JOBS_KEPT_MAX: u64 = 1000;

/// The most jobs of a page.
pub const JOBS_LISTED_MAX: u32 = 100;

/// The most lines of a result: paths that were removed, problems that were found.
pub(crate) const RESULT_LINES_MAX: usize = 1000;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Removes what nothing keeps. Options: `dryRun`, `unfinished`.
    Gc,
    /// Compares the index with the files. Options: `contents`, `repair`.
    Fsck,
    /// Removes what is in a cache that was deleted.
    Delete,
    /// Recompresses NARs to zstd.
    Recompress,
    /// Copies the cache to the data of other servers. Options: `to`, a [`Destination`](crate::Destination).
    Migrate,
    /// Copies it to a plain binary cache. Options: `to`, a [`Destination`](crate::Destination).
    Export,
    /// Makes a new key, and signs with it what keys of before have signed. Options: `overlapSeconds`.
    Rotate,
}

/// What the value of an option is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Flag,
    Seconds,
    /// The name of a destination. It must be given.
    Destination,
}

impl Kind {
    const fn words(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Seconds => "a number of seconds",
            Self::Destination => "the name of a destination",
        }
    }

    fn is(self, value: &Value) -> bool {
        match self {
            Self::Flag => value.is_boolean(),
            Self::Seconds => value.is_u64(),
            Self::Destination => value.is_string(),
        }
    }
}

/// The option that says where a cache is copied to.
const TO: &str = "to";

impl JobKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Gc, Self::Fsck, Self::Delete, Self::Recompress, Self::Migrate, Self::Export, Self::Rotate];

    /// Its name in requests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gc => "gc",
            Self::Fsck => "fsck",
            Self::Delete => "delete",
            Self::Recompress => "recompress",
            Self::Migrate => "migrate",
            Self::Export => "export",
            Self::Rotate => "rotate",
        }
    }

    /// Its options.
    const fn options(self) -> &'static [(&'static str, Kind)] {
        match self {
            Self::Gc => &[("dryRun", Kind::Flag), ("unfinished", Kind::Flag)],
            Self::Fsck => &[("contents", Kind::Flag), ("repair", Kind::Flag)],
            Self::Delete | Self::Recompress => &[],
            Self::Migrate | Self::Export => &[(TO, Kind::Destination)],
            Self::Rotate => &[("overlapSeconds", Kind::Seconds)],
        }
    }
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for JobKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("there is no job '{text}'; there are {}", names()))
    }
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// No server has begun it.
    Waiting,
    /// A server does it, or did it and was killed: then another one goes on.
    Running,
    /// It is done.
    Done,
    /// It could not be done; the result says why.
    Failed,
    /// It was cancelled. What was done by then stays so.
    Cancelled,
}

impl JobState {
    const ALL: [Self; 5] = [Self::Waiting, Self::Running, Self::Done, Self::Failed, Self::Cancelled];

    /// Its name in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub(crate) fn of(name: &str) -> Self {
        Self::ALL.into_iter().find(|state| state.name() == name).unwrap_or(Self::Failed)
    }
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// The cache that it works on.
    pub cache: CacheName,
    /// What it does.
    pub kind: JobKind,
    /// How, as it was asked for.
    pub options: Value,
    /// The id of the token of whoever asked for it.
    pub token: String,
    /// Its label.
    pub label: String,
    /// How far it is.
    pub state: JobState,
    /// Who does it, or did it last: `process 123 on host`.
    pub server: Option<String>,
    /// When it was asked for, in seconds since 1970.
    pub created: u64,
    /// When a server began it.
    pub started: Option<u64>,
    /// When it ended.
    pub ended: Option<u64>,
    /// What is done at the moment, of how much.
    pub progress: Value,
    /// What came of it.
    pub result: Value,
    /// Who does it: counts up with each server that takes it.
    pub(crate) fence: i64,
    pub(crate) is_cancelled: bool,
}

impl Serialize for Job {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            id,
            cache,
            kind,
            options,
            token,
            label,
            state,
            server,
            created,
            started,
            ended,
            progress,
            result,
            ..
        } = self;
        serde_json::json!({
            "id": id, "cache": cache.as_str(), "kind": kind.name(), "options": options, "token": token, "label": label,
            "state": state.name(), "server": server, "created": created, "started": started, "ended": ended, "progress": progress, "result": result,
        })
        .serialize(serializer)
    }
}

impl Cache {
    /// Asks for a job. One that was asked for with the same key by the same token is returned as it is, and so is one that does the same already, with `false`.
    ///
    /// # Errors
    /// If the token may not administer the cache, an option is not known, or a job of this kind with other options is under way.
    pub fn start_job(
        &self,
        kind: JobKind,
        options: &Value,
        key: Option<&str>,
        grant: &Grant,
    ) -> Result<(Job, bool), Rejection> {
        grant.require(self.name(), Scope::Admin)?;
        self.check_options(kind, options, grant)?;
        // A rotation makes a key that is newer than itself: not the one of another rotation in the same second.
        let keys = if kind == JobKind::Rotate { self.keys()? } else { Vec::new() };
        let created = keys.last().map_or(0, |key| key.created).max(self.now());
        let job = Job {
            id: new_id(key.map(|key| [&*grant.token, key]))?,
            cache: self.name().clone(),
            kind,
            options: options.clone(),
            token: grant.token.clone(),
            label: grant.label.clone(),
            state: JobState::Waiting,
            server: None,
            created,
            started: None,
            ended: None,
            progress: Value::Object(Map::new()),
            result: Value::Null,
            fence: 0,
            is_cancelled: false,
        };
        match self.index().add_job(job.clone())? {
            None => {
                self.audit(grant, "start job", kind.name(), &Ok(job.id.clone()));
                Ok((job, true))
            }
            Some(before) if before.cache == job.cache && before.kind == kind && before.options == job.options => {
                Ok((before, false))
            }
            Some(before) => {
                let message = format!(
                    "the job '{}' ({kind}) of the cache '{}' is under way: wait for it, or cancel it",
                    before.id, before.cache
                );
                Err(Rejection::conflict(message))
            }
        }
    }

    fn check_options(&self, kind: JobKind, options: &Value, grant: &Grant) -> Result<(), Rejection> {
        let malformed = |message: String| Rejection::malformed(message);
        for (name, value) in options.as_object().into_iter().flatten() {
            if !kind.options().iter().any(|(known, of)| known == name && of.is(value)) {
                let known: Vec<_> =
                    kind.options().iter().map(|(name, of)| format!("'{name}', {}", of.words())).collect();
                let known = if known.is_empty() { "it has none".to_owned() } else { known.join("; ") };
                return Err(malformed(format!("a job '{kind}' has no option '{name}' of this value: {known}")));
            }
        }
        if kind == JobKind::Migrate && !grant.caches.cover("*") {
            let message = "only those who administer all caches can copy one to other servers, with its tokens";
            return Err(Rejection::forbidden(message));
        }
        if kind.options().iter().any(|(name, _)| *name == TO) {
            self.data().destination(kind, options)?;
        }
        Ok(())
    }

    /// A job of this cache.
    ///
    /// # Errors
    /// If the index fails.
    pub fn job(&self, id: &str) -> Result<Option<Job>, IndexError> {
        Ok(self.index().job(id)?.filter(|job| job.cache == *self.name()))
    }

    /// A page of its jobs, the newest first, after one of them; and whether there may be more.
    ///
    /// # Errors
    /// If the index fails.
    pub fn jobs(&self, after: Option<&Job>) -> Result<(Vec<Job>, bool), IndexError> {
        let jobs = self.index().jobs(self.name(), after.map(|job| (job.created, &*job.id)))?;
        let is_full = jobs.len() == JOBS_LISTED_MAX as usize;
        Ok((jobs, is_full))
    }

    /// Has a job end. What was done stays so.
    ///
    /// # Errors
    /// If the token may not administer the cache, or the job has ended.
    pub fn cancel_job(&self, job: &Job, grant: &Grant) -> Result<(), Rejection> {
        grant.require(self.name(), Scope::Admin)?;
        if !self.index().cancel_job(&job.id)? {
            return Err(Rejection::conflict(format!("the job '{}' has ended", job.id)));
        }
        self.audit(grant, "cancel job", job.kind.name(), &Ok(job.id.clone()));
        Ok(())
    }
}

impl Data {
    /// Forgets jobs that ended long ago.
    pub(crate) fn forget_old_jobs(&self) {
        let index = &self.shared().index;
        if let Err(error) = index.forget_jobs(index.now().saturating_sub(JOBS_KEPT_FOR)) {
            tracing::warn!("{error}");
        }
    }
}

/// Random, or that of a request's key: one that is sent again asks for the same job.
fn new_id(of: Option<[&str; 2]>) -> Result<String, Rejection> {
    let mut bytes = [0; 10];
    match of {
        Some(parts) => {
            let mut hasher = Sha256Hasher::new();
            for part in ["job"].into_iter().chain(parts) {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part.as_bytes());
            }
            bytes.iter_mut().zip(hasher.finish().as_bytes()).for_each(|(to, from)| *to = *from);
        }
        None => getrandom::fill(&mut bytes).map_err(|error| {
            tracing::error!("no random numbers from the system: {error}");
            Rejection::failed("the system provides no random numbers")
        })?,
    }
    Ok(nix32::encode(&bytes))
}
