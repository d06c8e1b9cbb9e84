//! The last lines of the audit log.

use maud::{Markup, html};
use narval_client::clock;
use narval_keep::AuditLine;

use super::Manage;
use crate::api::governs;
use crate::error::ServeError;
use crate::page::view::words::{ago, name};

/// Lines that are shown, and how old they may be in days.
const LINES_MAX: usize = 100;
const LINES_DAYS: u64 = 30;
const DAY_SECONDS: u64 = 24 * 60 * 60;

impl Manage<'_> {
    pub(super) fn audit(&self) -> Result<Markup, ServeError> {
        let (token, path) =
            (self.params.value("token").unwrap_or_default(), self.params.value("path").unwrap_or_default());
        // What is about no cache, such as tokens, is for those who administer all of them.
        let sees_all = governs(&self.who.grant, &["*".to_owned()]);
        let is_wanted = |line: &AuditLine| {
            let is_seen = match &line.cache {
                Some(cache) => cache == self.cache.name().as_str(),
                None => sees_all,
            };
            let is_token = line.token.contains(token) || line.label.contains(token);
            is_seen && is_token && line.subject.contains(path)
        };
        let since = clock::now().saturating_sub(LINES_DAYS * DAY_SECONDS);
        let lines = self.data.last_audit(since, LINES_MAX, is_wanted).map_err(|error| {
            tracing::error!("{error}");
            ServeError::Upload("the audit log cannot be read; see the server's log".to_owned())
        })?;
        Ok(html! {
            p { "Who changed what: the last hundred lines of " code { "narval cache audit" } "." }
            form.fields action=(self.link("audit")) {
                (super::field("token", "Token", &html! { input #token name="token" value=(token) placeholder="label or id" autocomplete="off" spellcheck="false"; }))
                (super::field("path", "Path", &html! { input #path name="path" value=(path) placeholder="part of it" autocomplete="off" spellcheck="false"; }))
                button { "Show" }
            }
            @if lines.is_empty() { p.soft { "There is no such line of the last " (LINES_DAYS) " days." } } @else {
                div.scroll tabindex="0" role="region" aria-label="Audit log" {
                    table aria-label="Audit log" {
                        thead { tr {
                            th.s scope="col" { "When" } th scope="col" { "Who" } th scope="col" { "Did" } th scope="col" { "With" } th scope="col" { "Result" }
                        } }
                        tbody {
                            @for line in &lines {
                                tr {
                                    td.s { (ago(line.time)) }
                                    td.u { (name(&line.label)) @if let Some(peer) = &line.peer { div.soft.mono { (peer) } } }
                                    td { (line.action) }
                                    td { (name(&line.subject)) }
                                    td {
                                        @if line.result == "ok" { (name(&line.detail)) }
                                        @else { span.bad { "▲ " (line.result) } " " (name(&line.detail)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        })
    }
}
