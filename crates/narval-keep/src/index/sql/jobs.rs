//! Jobs: long work that one server at a time does, and another one goes on with.
//!
//! Whoever does a job has a lease of its row, as collections have (`work.rs`). One that was paused for longer finds out when it renews that: its number is
//! not the row's any more.

use crate::index::tx::{NOTE, NOTE_LATER, Reading, Refused, Row, Tx, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::name::CacheName;
use crate::records::jobs::{JOB_LEASE_SECONDS, JOBS_KEPT_MAX, JOBS_LISTED_MAX, Job, JobState};

macro_rules! columns {
    () => {
        "id, cache, kind, options, token, label, state, created, started, ended, progress, result, fence, cancelled, owner"
    };
}

statements! {
    ADD(Text, Text, Text, Text, Text, Text, Int) = "insert into narval.jobs (id, cache, kind, options, token, label, state, created, progress, result, \
         owner, fence, until, cancelled) values ($1, $2, $3, $4, $5, $6, 'waiting', $7, '{}', 'null', '', 0, 0, 0) on conflict do nothing";
    FIND(Text) = concat!("select ", columns!(), " from narval.jobs where id = $1");
    OPEN(Text, Text) = concat!("select ", columns!(), " from narval.jobs where cache = $1 and kind = $2 and ended is null");
    LIST(Text, Int, Text, Int) = concat!("select ", columns!(), " from narval.jobs where cache = $1 and (created, id) < ($2, $3) \
         order by created desc, id desc limit $4");
    /// Nobody does it, or whoever did was killed.
    FREE() = "select id from narval.jobs where ended is null and until < {now} order by until limit 1";
    CLAIM(Text, Int, Text) = concat!("update narval.jobs set owner = $1, until = {now} + $2, fence = fence + 1, state = 'running', \
         started = coalesce(started, {now}) where id = $3 and ended is null and until < {now} returning ", columns!());
    RENEW(Int, Text, Text, Int) = "update narval.jobs set until = {now} + $1, progress = $2 where id = $3 and fence = $4 and ended is null \
         returning cancelled";
    /// The row stays locked until the end of the transaction: nobody takes the job meanwhile.
    HOLD(Int, Text, Int) = "update narval.jobs set until = {now} + $1 where id = $2 and fence = $3 and ended is null";
    END(Text, Text, Text, Int) = "update narval.jobs set ended = {now}, until = 0, state = $1, result = $2 where id = $3 and fence = $4 and ended is null";
    RELEASE(Text, Int) = "update narval.jobs set until = 0 where id = $1 and fence = $2 and ended is null";
    CANCEL(Text) = "update narval.jobs set cancelled = 1 where id = $1 and ended is null";
    /// A cache has at most some. More than one is there only if the number that is kept has become smaller.
    TRIM(Text, Int) = "delete from narval.jobs where id in (select id from narval.jobs where cache = $1 and ended is not null \
         order by created desc, id desc limit 100 offset $2)";
    FORGET(Int) = "delete from narval.jobs where ended < $1";
}

fn job(row: &dyn Row) -> Result<Job, TxError> {
    let (kind, state): (String, String) = (row.get(2)?, row.get(6)?);
    let (options, progress, result): (String, String, String) = (row.get(3)?, row.get(10)?, row.get(11)?);
    Ok(Job {
        id: row.get(0)?,
        cache: row.parsed(1)?,
        kind: kind.parse().map_err(|_| "a job of a kind that is not known")?,
        options: serde_json::from_str(&options)?,
        token: row.get(4)?,
        label: row.get(5)?,
        state: JobState::of(&state),
        created: row.get(7)?,
        started: row.get(8)?,
        ended: row.get(9)?,
        progress: serde_json::from_str(&progress)?,
        result: serde_json::from_str(&result)?,
        fence: row.get(12)?,
        is_cancelled: row.get::<i64>(13)? != 0,
        server: Some(row.get(14)?).filter(|owner: &String| !owner.is_empty()),
    })
}

/// To be called at the beginning of a transaction of a job: nothing is done if another process does that job, or it has ended. Its lease is renewed.
pub(in crate::index) fn hold(tx: &mut dyn Tx, id: &str, fence: i64) -> Result<(), TxError> {
    let held = tx.execute(&HOLD, &args![JOB_LEASE_SECONDS, id, fence])?;
    if held > 0 { Ok(()) } else { Err(Refused::Superseded.into()) }
}

impl dyn Index + '_ {
    /// Adds a job that nobody does yet. Returns the one that is in its way, if any: with its id, or of its kind and cache.
    pub(crate) fn add_job(&self, job_to_add: Job) -> Result<Option<Job>, IndexError> {
        self.write(NOTE, move |tx| {
            let Job { id, cache, kind, options, token, label, created, .. } = &job_to_add;
            let options = options.to_string();
            if tx.execute(&ADD, &args![id, cache.as_str(), kind.name(), &options, token, label, *created])? > 0 {
                tx.execute(&TRIM, &args![cache.as_str(), JOBS_KEPT_MAX])?;
                return Ok(None);
            }
            match tx.first(&FIND, &args![id], job)? {
                Some(same) => Ok(Some(same)),
                None => tx.first(&OPEN, &args![cache.as_str(), kind.name()], job),
            }
        })
    }

    /// A job.
    pub(crate) fn job(&self, id: &str) -> Result<Option<Job>, IndexError> {
        self.read(Reading::Some, |tx| tx.first(&FIND, &args![id], job))
    }

    /// The jobs of a cache before one (its time and id), the newest first.
    pub(crate) fn jobs(&self, cache: &CacheName, before: Option<(u64, &str)>) -> Result<Vec<Job>, IndexError> {
        let (created, id) = before.unwrap_or((i64::MAX.cast_unsigned(), ""));
        let args = args![cache.as_str(), created, id, u64::from(JOBS_LISTED_MAX)];
        self.read(Reading::Some, |tx| tx.all(&LIST, &args, job))
    }

    /// Takes a job that nobody does.
    pub(crate) fn claim_job(&self) -> Result<Option<Job>, IndexError> {
        let free = self.read(Reading::Some, |tx| tx.first(&FREE, &[], |row| row.get::<String>(0)))?;
        let Some(id) = free else { return Ok(None) };
        let owner = super::work::this_process();
        self.write(NOTE, move |tx| tx.first(&CLAIM, &args![&owner, JOB_LEASE_SECONDS, &id], job))
    }

    /// Says that a job is still done, and how far it is. Returns whether it was cancelled; `None` if another process does it.
    pub(crate) fn renew_job(&self, id: &str, fence: i64, progress: String) -> Result<Option<bool>, IndexError> {
        let id = id.to_owned();
        self.write(NOTE, move |tx| {
            let args = args![JOB_LEASE_SECONDS, &progress, &id, fence];
            tx.first(&RENEW, &args, |row| Ok(row.get::<i64>(0)? != 0))
        })
    }

    /// Ends a job. Returns `false` if another process does it, or it has ended.
    pub(crate) fn end_job(
        &self,
        id: &str,
        fence: i64,
        (state, result): (JobState, String),
    ) -> Result<bool, IndexError> {
        let id = id.to_owned();
        self.write(NOTE, move |tx| Ok(tx.execute(&END, &args![state.name(), &result, &id, fence])? > 0))
    }

    /// Lets another process go on with a job.
    pub(crate) fn release_job(&self, id: &str, fence: i64) -> Result<(), IndexError> {
        let id = id.to_owned();
        self.write(NOTE, move |tx| tx.execute(&RELEASE, &args![&id, fence]).map(drop))
    }

    /// Has a job end. Returns `false` if it has ended, or there is none.
    pub(crate) fn cancel_job(&self, id: &str) -> Result<bool, IndexError> {
        let id = id.to_owned();
        self.write(NOTE, move |tx| Ok(tx.execute(&CANCEL, &args![&id])? > 0))
    }

    /// Removes jobs that ended before this time.
    pub(crate) fn forget_jobs(&self, before: u64) -> Result<(), IndexError> {
        self.write(NOTE_LATER, move |tx| tx.execute(&FORGET, &args![before]).map(drop))
    }
}
