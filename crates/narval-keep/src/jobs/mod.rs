//! Jobs: long work on a cache that somebody asks for, and a server does.
//!
//! A job is a row of the index. Each server looks for one that nobody does and takes a lease of it, so one server at a time does a job, and another one goes
//! on when that is killed. All kinds can be done again from their beginning: what was done before is not done twice. A cache has one job of a kind at a time.

mod destination;
mod run;

use narval_nix::{Sha256Hasher, nix32};
use serde_json::{Map, Value};

pub(crate) use self::run::run;
use crate::access::grant::{Grant, Scope};
use crate::cache::Cache;
use crate::data::Data;
use crate::index::IndexError;
use crate::records::jobs::{JOBS_LISTED_MAX, Job, JobKind, JobState};
use crate::rejection::Rejection;

/// How long jobs are known after their ends, in seconds: a week.
pub const JOBS_KEPT_FOR: u64 = 7 * 24 * 60 * 60;

/// The most lines of a result: paths that were removed, problems that were found.
pub(crate) const RESULT_LINES_MAX: usize = 1000;

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
