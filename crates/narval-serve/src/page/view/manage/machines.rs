//! The machines that follow releases, by what they report.

use maud::{Markup, html};
use narval_client::clock;
use narval_keep::{Machine, MachineCursor, MachinePage, MachineState};

use super::Manage;
use crate::error::ServeError;
use crate::page::view::words::{ago, many, name};

impl Manage<'_> {
    pub(super) fn machines(&self) -> Result<Markup, ServeError> {
        let after = self.params.value("after").map(str::parse::<MachineCursor>);
        // What is no cursor is no page.
        let after = after.transpose().map_err(|_| ServeError::NoPath)?;
        let MachinePage { machines, next } = self.cache.machines(after.as_ref())?;
        let now = clock::now();
        let silent = machines.iter().filter(|machine| machine.is_silent(now)).count();
        let failed = machines.iter().filter(|machine| machine.report.error.is_some()).count();
        Ok(html! {
            p { "Machines that follow a release, by what they report themselves. They do so with " code { "narval follow --report" } "." }
            @if machines.is_empty() { p.soft { "No machine has reported in the last 30 days." } } @else {
                p role="status" {
                    (many(machines.len(), "machine"))
                    @if failed > 0 { ", " span.bad { "▲ " (many(failed, "machine")) " with an error" } }
                    @if silent > 0 { ", " span.bad { "▲ " (many(silent, "machine")) " not heard of" } }
                }
                div.scroll tabindex="0" role="region" aria-label="Machines" {
                    table aria-label="Machines" {
                        thead { tr {
                            th scope="col" { "Machine" } th scope="col" { "Runs" } th scope="col" { "State" } th.s scope="col" { "Heard of" }
                            th scope="col" { "Last error" }
                        } }
                        tbody { @for machine in &machines { (self.machine(machine, now)) } }
                    }
                }
                @if let Some(next) = &next { p.links { a rel="next" href=(format!("{}?after={}", self.link("machines"), next.replace('+', "%2B"))) { "More →" } } }
                p.soft { "Machines that report nothing for 30 days are forgotten; " code { "narval machines forget NAME" } " does it at once." }
            }
        })
    }

    fn machine(&self, machine: &Machine, now: u64) -> Markup {
        let Machine { name: of, seen, report, .. } = machine;
        html! {
            tr {
                td { (name(of)) }
                td {
                    a href=(self.visit.link(&format!("releases/{}", report.release.trim_start_matches('@').replace('@', "/")))) { (name(&report.release)) }
                    @match report.revision {
                        Some(revision) => { " " b { (revision) } },
                        None => { div.soft { "no revision of it" } }
                    }
                    @if let Some(since) = report.since { div.soft { "since " (ago(since)) } }
                    @if let Some(generation) = report.generation { div.soft { "generation " (generation) } }
                    @if let Some(path) = &report.path { div.soft { (name(path.rsplit('/').next().unwrap_or(path))) } }
                }
                td {
                    @match report.state {
                        MachineState::WentBack => { span.bad { "▲ " (report.state.text()) } }
                        state => { (state.text()) }
                    }
                    @if let Some(trying) = report.trying { " " (trying) }
                }
                td.s {
                    (ago(*seen))
                    @if machine.is_silent(now) { div.bad { "▲ not heard of since" } }
                }
                td.u {
                    @if let Some(error) = &report.error {
                        (name(error))
                        @if let Some(at) = report.error_at { div.soft { (ago(at)) } }
                    }
                    @if let Some(version) = &report.version { div.soft { "narval " (name(version)) } }
                }
            }
        }
    }
}
