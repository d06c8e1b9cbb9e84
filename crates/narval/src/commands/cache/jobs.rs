//! `narval cache jobs`, and what other commands have a server do.

use std::time::Duration;

use narval_files::Work;
use narval_http::Method;
use serde_json::{Value, json};

use crate::args::administered::{AdministeredArgs, AdministeredCache, escaped, number, text};
use crate::args::data::ago;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;

/// How often a job is asked how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(super) struct JobsArgs {
    #[command(flatten)]
    place: AdministeredArgs,
    /// Cancel the job with this id. What was done by then stays so
    #[arg(long, value_name = "ID")]
    cancel: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &JobsArgs) -> Result<(), Failure> {
    let place = args.place.open()?;
    if let Some(id) = &args.cancel {
        return place.ask(&Method::DELETE, &format!("jobs/{}", escaped(id)), None).map(drop);
    }
    let jobs = place.each("jobs", |job| {
        if args.json {
            json::event("job", job);
            return Ok(());
        }
        let [id, kind, state, label] = ["id", "kind", "state", "label"].map(|name| text(&job, name));
        let progress = job.get("progress").cloned().unwrap_or_default();
        let far = match (&*state, number(&progress, "done"), number(&progress, "of")) {
            ("running", Some(done), Some(of)) if of > 0 => format!(", {} {done} of {of}", text(&progress, "step")),
            _ => String::new(),
        };
        let error = job.get("result").map(|result| text(result, "error")).filter(|error| !error.is_empty());
        let error = error.map(|error| format!(": {error}")).unwrap_or_default();
        out!("{id}  {kind}  {state}{far}{error}  started {} by {label}", ago(number(&job, "created").unwrap_or(0)));
        Ok(())
    })?;
    if args.json {
        json::summary(json!({"jobs": jobs}));
    }
    Ok(())
}

/// Has a server do a job, and shows how far it is. A signal cancels it. Returns its result, and the failure to end with if it was cancelled.
pub(crate) fn perform(
    place: &AdministeredCache,
    kind: &str,
    options: &Value,
    (output, kept): (OutputArgs, &'static str),
) -> Result<(Value, Result<(), Failure>), Failure> {
    let mut job = place.ask(&Method::POST, "jobs", Some(&json!({"kind": kind, "options": options})))?;
    let path = format!("jobs/{}", escaped(&text(&job, "id")));
    note!("the server does this as the job {}", text(&job, "id"));
    watched(output, (kept, "starts another job"), |work| {
        let (mut step, mut is_cancelled) = (String::new(), false);
        while ["waiting", "running"].contains(&&*text(&job, "state")) {
            show(work, &mut step, job.get("progress").unwrap_or(&Value::Null));
            if work.is_stopped() && !std::mem::replace(&mut is_cancelled, true) {
                place.ask(&Method::DELETE, &path, None)?;
            }
            std::thread::sleep(LOOK_EVERY);
            job = place.ask(&Method::GET, &path, None)?;
        }
        let result = job.get("result").cloned().unwrap_or_default();
        match &*text(&job, "state") {
            "done" => Ok(result),
            "cancelled" if is_cancelled => Ok(Value::Null),
            "cancelled" => Err(Failure::runtime(format!("somebody has cancelled the job; {kept}"))),
            _ => Err(Failure::runtime(text(&result, "error"))),
        }
    })
}

/// Shows the progress of a job as that of this process.
fn show(work: &Work, step: &mut String, progress: &Value) {
    let [of, bytes] = ["of", "ofBytes"].map(|name| number(progress, name).unwrap_or(0));
    let (now, done) = (text(progress, "step"), work.done());
    if now.is_empty() {
        return;
    }
    if now != *step || done.step.count != of || done.step.bytes != bytes {
        *step = now;
        work.begin("at the server:", "done", of, bytes);
    }
    let done = work.done();
    work.count(number(progress, "done").unwrap_or(0).saturating_sub(done.count));
    work.count_bytes(number(progress, "bytes").unwrap_or(0).saturating_sub(done.bytes));
}
