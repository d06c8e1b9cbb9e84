//! Long work that servers of this data do: what is under way, and what came of it in the last week.

use maud::{Markup, html};
use narval_keep::{Job, JobState};
use serde_json::Value;

use super::Manage;
use crate::error::ServeError;
use crate::page::view::parts::bar;
use crate::page::view::words::{ago, bytes, name, number};

/// Jobs that are shown.
const JOBS_MAX: usize = 50;
const MINUTE_SECONDS: u64 = 60;

impl Manage<'_> {
    pub(super) fn jobs(&self) -> Result<Markup, ServeError> {
        let (mut jobs, _) = self.cache.jobs(None)?;
        jobs.truncate(JOBS_MAX);
        let is_any_open = jobs.iter().any(|job| job.ended.is_none());
        Ok(html! {
            p { "Long work, which goes on at another server if its own stops. Commands such as " code { "narval cache fsck --at" } " start it, too." }
            (self.form("jobs", "collect", "", &html! { p { button.danger { "Run a collection" } } }))
            @if jobs.is_empty() { p.soft { "There was no job in the last week." } } @else {
                @if is_any_open { p.links { a href=(self.link("jobs")) { "Look again" } } }
                div.scroll tabindex="0" role="region" aria-label="Jobs" {
                    table aria-label="Jobs" {
                        thead { tr {
                            th scope="col" { "Job" } th scope="col" { "State" } th scope="col" { "Result" } th.s scope="col" { "Asked for" }
                        } }
                        tbody { @for job in &jobs { (self.job(job)) } }
                    }
                }
            }
        })
    }

    fn job(&self, job: &Job) -> Markup {
        let is_open = job.ended.is_none();
        html! {
            tr {
                td {
                    b { (job.kind.name()) } " " (options(&job.options))
                    div.soft.mono { (job.id) }
                }
                td.u {
                    @if is_open && job.state == JobState::Running { (progress(&job.progress)) }
                    @else if job.state == JobState::Failed { span.bad { "▲ failed" } }
                    @else { (job.state.name()) }
                    @if let Some(ended) = job.ended { div.soft { (ago(ended)) } }
                    @if is_open {
                        (self.form("jobs", "cancel", "", &html! {
                            input type="hidden" name="id" value=(job.id);
                            button aria-label=(format!("Cancel the job {}", job.id)) { "Cancel" }
                        }))
                    }
                }
                td.u { (result(&job.result)) }
                td.s { (ago(job.created)) div.soft { (name(&job.label)) } }
            }
        }
    }
}

/// Those that are on, and the values of others.
fn options(of: &Value) -> Markup {
    html! {
        @for (option, value) in of.as_object().into_iter().flatten() {
            @match value {
                Value::Bool(false) => {}
                Value::Bool(true) => { span.soft { (option) } " " }
                Value::String(text) => { span.soft { (option) " " (name(text)) } " " }
                value => { span.soft { (option) " " (value) } " " }
            }
        }
    }
}

fn progress(of: &Value) -> Markup {
    let [done, all, part, whole] =
        ["done", "of", "bytes", "ofBytes"].map(|name| of.get(name).and_then(Value::as_u64).unwrap_or(0));
    let text = |name: &str| of.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let step = text("step");
    html! {
        (if step.is_empty() { "running" } else { &step })
        @if all > 0 {
            ": " (number(done)) " of " (number(all)) " " (text("things"))
            @if whole > 0 { div.soft { (bytes(part)) " of " (bytes(whole)) } }
            (if whole > 0 { bar(part.min(whole), whole) } else { bar(done.min(all), all) })
        }
        @if let Some(left) = of.get("secondsLeft").and_then(Value::as_u64) {
            div.soft {
                @if left < MINUTE_SECONDS { "less than a minute left" } @else { "about " (left.div_ceil(MINUTE_SECONDS)) " minutes left" }
            }
        }
    }
}

/// Its numbers, a new key, or why it failed. Lists are in the API.
fn result(of: &Value) -> Markup {
    html! {
        @for (field, value) in of.as_object().into_iter().flatten() {
            @match (field.as_str(), value) {
                ("error", Value::String(text)) => { span.bad { (name(text)) } }
                ("publicKey", Value::String(text)) => { div.mono { (name(text)) } }
                ("bytes", value) => { div { (field) ": " (bytes(value.as_u64().unwrap_or(0))) } }
                ("created" | "ends", _) => {}
                (_, Value::Number(value)) => { div { (field) ": " (number(value.as_u64().unwrap_or(0))) } }
                _ => {}
            }
        }
    }
}
