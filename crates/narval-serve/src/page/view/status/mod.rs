//! Status: whether all is well, in words, and what there is to know of clients, traffic, room and upstreams. What is of the whole server is only
//! told to its operator.

mod chart;
mod details;
mod flows;
mod room;
mod upstreams;

use maud::{Markup, html};

use super::words;
use super::words::{ago, many, plain};
use crate::error::ServeError;
use crate::origins::Origins;
use crate::page::parts::Parts;
use crate::page::visit::Visit;
use crate::state::ServerState;
use crate::watch::problems::Problem;

/// What the view is made of.
struct Status<'a> {
    service: &'a Origins,
    /// Of the whole server.
    state: &'a ServerState,
    visit: &'a Visit,
    problems: Vec<Problem>,
}

/// The title and the contents.
pub(super) fn status(parts: &Parts, visit: &Visit) -> Result<(String, Markup), ServeError> {
    let service = &*parts.service(&visit.cache).ok_or(ServeError::NoPath)?;
    let problems = service.problems(&parts.state, visit.is_operator());
    let status = Status { service, state: &parts.state, visit, problems };
    let main = html! {
        div #view data-view="status" {
            div #verdict data-live { (status.verdict()) }
            div.blocks {
                (block("clients", "Clients", &status.clients()))
                (block("traffic", "Traffic", &status.traffic()))
                (block("room", "Room", &status.room()))
                @if let Some(upstreams) = status.upstreams() { (block("upstreams", "Upstreams", &upstreams)) }
            }
            details #details {
                summary { "Details" }
                div #figures data-live { (status.details()) }
            }
            p #live.soft role="status" {}
        }
    };
    Ok(("Status".to_owned(), main))
}

fn block(id: &str, title: &str, contents: &Markup) -> Markup {
    html! {
        section aria-labelledby=(format!("{id}-title")) {
            h2 id=(format!("{id}-title")) { (title) }
            div id=(id) data-live { (contents) }
        }
    }
}

impl Status<'_> {
    fn verdict(&self) -> Markup {
        html! {
            @if self.problems.is_empty() {
                h1.overall.good { "● All is well" }
            } @else {
                h1.overall.bad { "▲ " (many(self.problems.len(), "problem")) }
                ol.problems {
                    @for problem in &self.problems {
                        li {
                            p {
                                strong class=(if problem.kind.is_critical { "bad" } else { "warn" }) {
                                    @if problem.kind.is_critical { "▲ Critical" } @else { "△ Warning" }
                                }
                                " " b { (plain(&problem.what)) } "."
                                span.soft { " First seen " (ago(problem.since)) "." }
                            }
                            p.soft {
                                "Clients: " (words::with_code(problem.kind.clients)) " "
                                a href=(problem.runbook()) rel="noreferrer" { "What to do" }
                            }
                        }
                    }
                }
            }
        }
    }
}
