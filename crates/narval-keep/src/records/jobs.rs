//! Jobs, and how far they are.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::Value;

use crate::name::CacheName;

/// How long a server may be silent about a job before another one goes on with it.
pub(crate) const JOB_LEASE_SECONDS: u64 = 15;

/// The most jobs of a cache that are known after their ends.
pub(crate) const JOBS_KEPT_MAX: u64 = 1000;

/// The most jobs of a page.
pub const JOBS_LISTED_MAX: u32 = 100;

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
