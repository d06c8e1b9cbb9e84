//! Upstreams: one row each.

use maud::{Markup, html};

use super::Status;
use crate::page::view::words::{ago, bytes, many, number, plain};

impl Status<'_> {
    /// `None`: there are none.
    pub(super) fn upstreams(&self) -> Option<Markup> {
        let stats = self.service.upstreams()?;
        let down = stats.upstreams.iter().filter(|upstream| !upstream.is_up).count();
        let since = |url: &str| {
            let problem = self.problems.iter().find(|problem| problem.what.contains(url));
            problem.map(|problem| problem.since)
        };
        let used: u64 = stats.upstreams.iter().map(|upstream| upstream.used).sum();
        let total = stats.kept_hits + stats.kept_misses;
        Some(html! {
            p.says {
                @if down == 0 { b { (if stats.upstreams.len() == 1 { "It responds" } else { "All respond" }) } ", as far as the last requests show." }
                @else { b { (number(down)) " of " (many(stats.upstreams.len(), "upstream")) } (if down == 1 { " does" } else { " do" }) " not respond." }
            }
            div.scroll tabindex="0" role="region" aria-label="Upstreams" {
                table aria-label="Upstreams" {
                    thead { tr {
                        th scope="col" { "Upstream" } th scope="col" { "State" } th.n scope="col" { "Answers in" }
                        th.n scope="col" { "Has it" } th.n.w scope="col" { "Share" } th.n.w scope="col" { "Hedges" }
                        th.n.w scope="col" { "Failovers" } th.n.w scope="col" { "Saved" } th.n.w scope="col" { "Failed" }
                    } }
                    tbody {
                        @for upstream in &stats.upstreams {
                            tr {
                                td.u { (plain(&upstream.url)) }
                                td.s {
                                    @if upstream.is_doubtful && upstream.is_up { span.bad { "▲ slow or failing" } }
                                    @else if upstream.is_up { span.good { "● up" } }
                                    @else { span.bad { "▲ down" } @if let Some(since) = since(&upstream.url) { ", first seen " (ago(since)) } }
                                }
                                td.n {
                                    @if let Some(usual) = upstream.usual { (usual.as_millis()) " ms" }
                                    @else { (if upstream.failed > 0 { "no answer" } else { "not asked" }) }
                                }
                                td.n {
                                    @let total = upstream.found + upstream.absent;
                                    @if total > 0 { (upstream.found * 100 / total) " % of " (number(total)) } @else { (if upstream.failed > 0 { "not known" } else { "not asked" }) }
                                }
                                td.n.w { @if used > 0 { (upstream.used * 100 / used) " %" } }
                                td.n.w { (number(upstream.hedges)) }
                                td.n.w { (number(upstream.failovers)) }
                                td.n.w { (number(upstream.saved.as_secs())) " s" }
                                td.n.w { (number(upstream.failed)) }
                            }
                        }
                    }
                }
            }
            p.soft {
                "Share: of the answers that were used. Hedges: requests although another one might still have answered. Failovers: because another one had used up its time. Saved: how much longer clients would have waited for it alone. "
                "Of them, " (bytes(stats.kept_bytes)) " are kept"
                @if total > 0 { "; " (stats.kept_hits * 100 / total) " % of " (many(total, "NAR")) " came from what is kept" }
                "."
            }
        })
    }
}
