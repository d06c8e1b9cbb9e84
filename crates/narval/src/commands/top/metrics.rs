//! Parses `/metrics`, and computes rates from two readings.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::upstreams::Upstreams;

/// The maximum number of buckets read of a histogram.
const BUCKETS_MAX: usize = 256;

/// The totals that are read: the name here, the name of the sample, and the label it must have.
const SERIES: [(Series, &str, &str); 24] = [
    (Series::Requests, "narval_http_requests_total", ""),
    (Series::CacheRequests, "narval_requests_total", ""),
    (Series::NarInfos, "narval_requests_total", "route=\"narinfo\""),
    (Series::Nars, "narval_requests_total", "route=\"nar\""),
    (Series::Absent, "narval_requests_total", "status=\"404\""),
    (Series::Failed, "narval_http_responses_total", "code=\"5"),
    (Series::Sent, "narval_http_sent_bytes_total", ""),
    (Series::Received, "narval_http_received_bytes_total", ""),
    (Series::Connections, "narval_http_connections_open", ""),
    (Series::Queue, "narval_http_queue_depth", ""),
    (Series::Bodies, "narval_http_bodies_waiting", ""),
    (Series::Workers, "narval_http_workers", ""),
    (Series::Busy, "narval_http_worker_busy_seconds_total", ""),
    (Series::Overloaded, "narval_http_requests_overloaded_total", ""),
    (Series::Overloaded, "narval_http_connections_refused_total", ""),
    (Series::Aborted, "narval_http_answers_aborted_total", ""),
    (Series::Hits, "narval_narinfo_memo_hits_total", ""),
    (Series::Misses, "narval_narinfo_memo_misses_total", ""),
    (Series::NarHits, "narval_nar_cache_hits_total", ""),
    (Series::NarMisses, "narval_nar_cache_misses_total", ""),
    (Series::Upstream, "narval_nar_bytes_total", "encoding=\"from upstream\""),
    (Series::Stored, "narval_uploads_stored_total", ""),
    (Series::Refused, "narval_uploads_refused_total", ""),
    (Series::StoreErrors, "narval_store_errors_total", ""),
];
/// The histogram of request durations.
const LATENCY: &str = "narval_http_request_seconds_bucket";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Series {
    Requests,
    CacheRequests,
    NarInfos,
    Nars,
    Absent,
    Failed,
    Sent,
    Received,
    Connections,
    Queue,
    Bodies,
    Workers,
    Busy,
    Overloaded,
    Aborted,
    Hits,
    Misses,
    NarHits,
    NarMisses,
    Upstream,
    Stored,
    Refused,
    StoreErrors,
}

/// The totals of one reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Totals {
    series: BTreeMap<Series, f64>,
    /// Upper bounds in seconds, with the number of requests up to each.
    buckets: Vec<(f64, f64)>,
    upstreams: Upstreams,
}

impl Totals {
    /// Parses the OpenMetrics text of a server. `None` if it has none of our counters.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut totals = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((sample, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
            let Some(value) = value.parse().ok().filter(|value: &f64| value.is_finite()) else { continue };
            totals.upstreams.take(name, labels, value);
            if name == LATENCY {
                let bound = labels.split_once("le=\"").and_then(|(_, rest)| rest.split('"').next()?.parse().ok());
                totals
                    .buckets
                    .extend(bound.filter(|_| totals.buckets.len() < BUCKETS_MAX).map(|bound: f64| (bound, value)));
            }
            for (series, _, _) in SERIES.iter().filter(|(_, known, label)| *known == name && labels.contains(label)) {
                *totals.series.entry(*series).or_default() += value;
            }
        }
        let is_narval =
            totals.series.contains_key(&Series::CacheRequests) || totals.series.contains_key(&Series::Requests);
        is_narval.then_some(totals)
    }

    fn get(&self, series: Series) -> Option<f64> {
        self.series.get(&series).copied()
    }
}

/// The figures between two readings: counts and bytes per second, unless stated otherwise. `None` if the server does not
/// report it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) requests: Option<f64>,
    pub(super) narinfos: Option<f64>,
    pub(super) nars: Option<f64>,
    pub(super) sent_bytes: Option<f64>,
    pub(super) received_bytes: Option<f64>,
    pub(super) upstream_bytes: Option<f64>,
    /// Now.
    pub(super) connections: Option<f64>,
    /// Requests that wait for a worker, now.
    pub(super) queue: Option<f64>,
    /// Percent of the workers' time.
    pub(super) busy: Option<f64>,
    /// Percent of the lookups of narinfos.
    pub(super) hits: Option<f64>,
    /// Percent of the compressed NARs.
    pub(super) nar_hits: Option<f64>,
    /// Seconds that one in two, and all but one in a hundred requests took at most, if they were not answered from memory.
    pub(super) median_seconds: Option<f64>,
    pub(super) slowest_seconds: Option<f64>,
    pub(super) uploads: Option<f64>,
    pub(super) refused: Option<f64>,
    pub(super) absent: Option<f64>,
    pub(super) failed: Option<f64>,
    pub(super) overloaded: Option<f64>,
    pub(super) aborted: Option<f64>,
    pub(super) store_errors: Option<f64>,
    /// Since the server was started.
    pub(super) upstreams: Upstreams,
}

impl Figures {
    /// `None` if the server was restarted in between.
    pub(super) fn between(before: &Totals, now: &Totals, elapsed: Duration) -> Option<Self> {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let requests = if now.get(Series::Requests).is_some() { Series::Requests } else { Series::CacheRequests };
        let grown = |series| Some(now.get(series)? - before.get(series).unwrap_or_default());
        let rate = |series| Some(grown(series)?.max(0.0) / seconds);
        if grown(requests)? < 0.0 {
            return None;
        }
        let share = |part: Option<f64>, rest: Option<f64>| {
            let all = part? + rest?;
            (all > 0.0).then(|| 100.0 * part.unwrap_or_default() / all)
        };
        let waiting = now.get(Series::Queue).map(|queue| queue + now.get(Series::Bodies).unwrap_or_default());
        let workers = now.get(Series::Workers).filter(|workers| *workers > 0.0);
        Some(Self {
            requests: rate(requests),
            narinfos: rate(Series::NarInfos),
            nars: rate(Series::Nars),
            sent_bytes: rate(Series::Sent),
            received_bytes: rate(Series::Received),
            upstream_bytes: rate(Series::Upstream),
            connections: now.get(Series::Connections),
            queue: waiting,
            busy: rate(Series::Busy).zip(workers).map(|(busy, workers)| (100.0 * busy / workers).min(100.0)),
            hits: share(grown(Series::Hits), grown(Series::Misses)),
            nar_hits: share(grown(Series::NarHits), grown(Series::NarMisses)),
            median_seconds: quantile(&before.buckets, &now.buckets, 0.5),
            slowest_seconds: quantile(&before.buckets, &now.buckets, 0.99),
            uploads: rate(Series::Stored),
            refused: rate(Series::Refused),
            absent: rate(Series::Absent),
            failed: rate(Series::Failed).or_else(|| now.get(Series::Requests).map(|_| 0.0)),
            overloaded: rate(Series::Overloaded),
            aborted: rate(Series::Aborted),
            store_errors: rate(Series::StoreErrors),
            upstreams: now.upstreams.clone(),
        })
    }

    /// As JSON; what the server does not report is `null`.
    pub(super) fn json(&self) -> Value {
        // Three decimals are enough for rates.
        let short = |value: Option<f64>| value.map(|value| (value * 1000.0).round() / 1000.0);
        json!({
            "requests": short(self.requests),
            "narinfos": short(self.narinfos),
            "nars": short(self.nars),
            "sent_bytes": short(self.sent_bytes),
            "received_bytes": short(self.received_bytes),
            "upstream_bytes": short(self.upstream_bytes),
            "connections": self.connections,
            "queue": self.queue,
            "busy_percent": short(self.busy),
            "hits_percent": short(self.hits),
            "nar_hits_percent": short(self.nar_hits),
            "median_seconds": self.median_seconds,
            "slowest_seconds": self.slowest_seconds,
            "uploads": short(self.uploads),
            "uploads_refused": short(self.refused),
            "absent": short(self.absent),
            "failed": short(self.failed),
            "overloaded": short(self.overloaded),
            "aborted": short(self.aborted),
            "store_errors": short(self.store_errors),
            "upstreams": self.upstreams.json(),
            "neighbours": self.upstreams.neighbours_json(),
        })
    }
}

/// The first bound that this share of the requests between the readings did not exceed.
fn quantile(before: &[(f64, f64)], now: &[(f64, f64)], share: f64) -> Option<f64> {
    let grown = now.iter().enumerate().map(|(at, (bound, count))| {
        let old = before.get(at).filter(|(same, _)| same == bound).map_or(0.0, |(_, count)| *count);
        (*bound, count - old)
    });
    let all = grown.clone().next_back()?.1;
    grown.into_iter().find(|(_, count)| all > 0.0 && *count >= share * all).map(|(bound, _)| bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# TYPE narval_http_requests counter
narval_http_requests_total{where=\"inline\"} 100
narval_http_requests_total{where=\"worker\"} 10
narval_http_responses_total{code=\"200\"} 100
narval_http_sent_bytes_total 1000
narval_http_connections_open 3
narval_http_queue_depth 1
narval_http_bodies_waiting 1
narval_http_workers 4
narval_http_worker_busy_seconds_total 1
narval_http_request_seconds_bucket{le=\"0.001\"} 1
narval_http_request_seconds_bucket{le=\"0.002\"} 1
narval_http_request_seconds_bucket{le=\"+Inf\"} 1
narval_requests_total{route=\"nar\",status=\"200\"} 5
narval_requests_total{route=\"narinfo\",status=\"404\"} 0
narval_narinfo_memo_hits_total 10
narval_narinfo_memo_misses_total 10
# EOF
";

    #[test]
    fn rates_between_two_readings() {
        let before = Totals::parse(BEFORE).unwrap();
        let after = BEFORE
            .replace("worker\"} 10", "worker\"} 30")
            .replace("bytes_total 1000", "bytes_total 3000")
            .replace("seconds_total 1", "seconds_total 3")
            .replace("0.002\"} 1", "0.002\"} 100")
            .replace("+Inf\"} 1", "+Inf\"} 101")
            .replace("404\"} 0", "404\"} 4")
            .replace("hits_total 10", "hits_total 13")
            .replace("misses_total 10", "misses_total 11")
            + "narval_http_responses_total{code=\"503\"} 2\n";
        let figures = Figures::between(&before, &Totals::parse(&after).unwrap(), Duration::from_secs(2)).unwrap();
        assert_eq!((figures.requests, figures.sent_bytes), (Some(10.0), Some(1000.0)));
        assert_eq!((figures.connections, figures.queue, figures.busy), (Some(3.0), Some(2.0), Some(25.0)));
        assert_eq!((figures.nars, figures.narinfos, figures.absent), (Some(0.0), Some(2.0), Some(2.0)));
        assert_eq!((figures.hits, figures.failed), (Some(75.0), Some(1.0)));
        assert_eq!((figures.median_seconds, figures.slowest_seconds), (Some(0.002), Some(0.002)));
        assert_eq!(figures.upstream_bytes, None);
        assert_eq!(figures.json()["requests"], 10.0);
        assert!(figures.json()["upstream_bytes"].is_null());
    }

    #[test]
    fn a_restart_and_other_servers_are_seen() {
        let totals = Totals::parse(BEFORE).unwrap();
        assert_eq!(
            Figures::between(&totals, &Totals::parse("narval_http_requests_total 1").unwrap(), Duration::from_secs(1)),
            None
        );
        assert_eq!(Totals::parse("node_load1 0.5\n<html>\n"), None);
        // Values that are none do not count.
        assert_eq!(Totals::parse("narval_requests_total NaN\nnarval_requests_total x"), None);
    }
}
