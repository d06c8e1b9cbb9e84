//! All other figures, as a table that is folded.

use maud::{Markup, html};

use super::Status;
use crate::metrics::RouteLabel;
use crate::page::view::words::{bytes, duration, number};

/// A share in percent. `None`: nothing was asked.
fn share(hits: u64, misses: u64) -> Option<String> {
    let all = hits + misses;
    (all > 0).then(|| format!("{} % of {}", hits * 100 / all, number(all)))
}

impl Status<'_> {
    pub(super) fn details(&self) -> Markup {
        let metrics = &self.service.metrics;
        let mut rows: Vec<(&str, String)> = vec![
            ("Requests for narinfos", number(metrics.requests_of(RouteLabel::NarInfo))),
            ("Requests for NARs", number(metrics.requests_of(RouteLabel::Nar))),
        ];
        let mut some = |what, text: Option<String>| rows.extend(text.map(|text| (what, text)));
        some("Narinfos from memory", share(metrics.narinfo_memo_hits.get(), metrics.narinfo_memo_misses.get()));
        some("Compressed NARs that were there", share(metrics.nar_cache_hits.get(), metrics.nar_cache_misses.get()));
        some("NARs being compressed", self.service.compresses().then(|| number(metrics.compressions.count())));
        if self.service.cache().is_some() {
            let totals = metrics.totals();
            rows.push(("Uploads stored", number(metrics.uploads_stored.get())));
            rows.push(("Uploads of what was there", number(metrics.uploads_known.get())));
            rows.push(("Uploads refused", number(totals.not_taken)));
            rows.push(("Wrong tokens", number(metrics.logins_failed.get() + metrics.logins_throttled.get())));
        }
        let engine = self.service.engine(self.state).filter(|_| self.visit.is_operator());
        let uptime = self.state.uptime();
        let mut of_server = Vec::new();
        if let Some(engine) = engine {
            let workers = engine.workers.max(1) as f64;
            let busy = engine.worker_busy.as_secs_f64() / workers / uptime.as_secs_f64().max(1.0);
            of_server = vec![
                ("Requests, of all caches and the page", number(engine.requests())),
                ("Sent", bytes(engine.bytes_sent)),
                ("Received", bytes(engine.bytes_received)),
                (
                    "Connections",
                    format!("{} of at most {}", number(engine.connections_open), number(engine.connections_max)),
                ),
                (
                    "Waiting for a worker",
                    format!("{} of at most {}", number(engine.queue_depth), number(engine.queue_max)),
                ),
                ("Workers busy", format!("{:.0} % of {}", 100.0 * busy.min(1.0), number(engine.workers))),
                ("Turned away: the queue was full", number(engine.overloaded)),
                ("Connections refused", number(engine.connections_refused)),
                ("Answers aborted", number(engine.aborts)),
            ];
        }
        html! {
            p.soft { "Since the server started, " (duration(uptime.as_secs())) " ago." }
            (table("This cache", &rows))
            @if !of_server.is_empty() { (table("The whole server", &of_server)) }
        }
    }
}

fn table(title: &str, rows: &[(&str, String)]) -> Markup {
    html! {
        table.figures aria-label=(title) {
            thead { tr { th scope="col" { (title) } th.n scope="col" { "Figure" } } }
            tbody { @for (what, text) in rows { tr { td { (what) } td.n { (text) } } } }
        }
    }
}
