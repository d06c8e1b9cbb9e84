//! Parses `/metrics`, and computes rates from two readings.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::upstreams::Upstreams;

/// The maximum number of buckets read of a histogram.
const BUCKETS_MAX: usize = 256;

/// All requests; a server without an engine's figures has those of its caches.
const REQUESTS: &str = "narval_http_requests_total";
const CACHE_REQUESTS: &str = "narval_requests_total";
/// The histogram of request durations.
const LATENCY: &str = "narval_http_request_seconds_bucket";

/// The totals of one reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Totals {
    /// The name of each sample, its labels and its value.
    samples: Vec<(String, String, f64)>,
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
            totals.samples.push((name.to_owned(), labels.to_owned(), value));
        }
        let is_narval = [REQUESTS, CACHE_REQUESTS].into_iter().any(|name| totals.sum(name, "").is_some());
        is_narval.then_some(totals)
    }

    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.samples.iter().filter(move |(sample, ..)| sample == name).map(|(_, labels, value)| (&**labels, *value))
    }

    /// The sum of the samples of this name that have this among their labels.
    fn sum(&self, name: &str, label: &str) -> Option<f64> {
        let values = self.of(name).filter(|(labels, _)| labels.contains(label)).map(|(_, value)| value);
        values.reduce(|sum, value| sum + value)
    }

    /// Upper bounds of request durations in seconds, with the number of requests up to each.
    fn buckets(&self) -> Vec<(f64, f64)> {
        let bound =
            |labels: &str| labels.split_once("le=\"").and_then(|(_, rest)| rest.split('"').next()?.parse().ok());
        self.of(LATENCY).filter_map(|(labels, value)| Some((bound(labels)?, value))).take(BUCKETS_MAX).collect()
    }
}

/// The figures between two readings: counts and bytes per second, unless stated otherwise. `None` if the server does not
/// report it. The names are those in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Stats {
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
    pub(super) busy_percent: Option<f64>,
    /// Percent of the lookups of narinfos.
    pub(super) hits_percent: Option<f64>,
    /// Percent of the compressed NARs.
    pub(super) nar_hits_percent: Option<f64>,
    /// Seconds that one in two, and all but one in a hundred requests took at most, if they were not answered from memory.
    pub(super) median_seconds: Option<f64>,
    pub(super) slowest_seconds: Option<f64>,
    pub(super) uploads: Option<f64>,
    pub(super) uploads_refused: Option<f64>,
    pub(super) absent: Option<f64>,
    pub(super) failed: Option<f64>,
    pub(super) overloaded: Option<f64>,
    pub(super) aborted: Option<f64>,
    pub(super) store_errors: Option<f64>,
    /// Since the server was started.
    #[serde(skip)]
    pub(super) upstreams: Upstreams,
}

impl Stats {
    /// `None` if the server was restarted in between.
    pub(super) fn between(before: &Totals, now: &Totals, elapsed: Duration) -> Option<Self> {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let grown = |name, label| Some(now.sum(name, label)? - before.sum(name, label).unwrap_or_default());
        let rate = |name, label| Some(grown(name, label)?.max(0.0) / seconds);
        let requests = if now.sum(REQUESTS, "").is_some() { REQUESTS } else { CACHE_REQUESTS };
        if grown(requests, "")? < 0.0 {
            return None;
        }
        let share = |part: Option<f64>, rest: Option<f64>| {
            let all = part? + rest?;
            (all > 0.0).then(|| 100.0 * part.unwrap_or_default() / all)
        };
        let waiting = now.sum("narval_http_queue_depth", "");
        let waiting = waiting.map(|queue| queue + now.sum("narval_http_bodies_waiting", "").unwrap_or_default());
        let workers = now.sum("narval_http_workers", "").filter(|workers| *workers > 0.0);
        let busy = rate("narval_http_worker_busy_seconds_total", "").zip(workers);
        let overloaded = ["narval_http_requests_overloaded_total", "narval_http_connections_refused_total"];
        let (before_buckets, buckets) = (before.buckets(), now.buckets());
        Some(Self {
            requests: rate(requests, ""),
            narinfos: rate(CACHE_REQUESTS, "route=\"narinfo\""),
            nars: rate(CACHE_REQUESTS, "route=\"nar\""),
            sent_bytes: rate("narval_http_sent_bytes_total", ""),
            received_bytes: rate("narval_http_received_bytes_total", ""),
            upstream_bytes: rate("narval_nar_bytes_total", "encoding=\"from upstream\""),
            connections: now.sum("narval_http_connections_open", ""),
            queue: waiting,
            busy_percent: busy.map(|(busy, workers)| (100.0 * busy / workers).min(100.0)),
            hits_percent: share(
                grown("narval_narinfo_memo_hits_total", ""),
                grown("narval_narinfo_memo_misses_total", ""),
            ),
            nar_hits_percent: share(
                grown("narval_nar_cache_hits_total", ""),
                grown("narval_nar_cache_misses_total", ""),
            ),
            median_seconds: quantile(&before_buckets, &buckets, 0.5),
            slowest_seconds: quantile(&before_buckets, &buckets, 0.99),
            uploads: rate("narval_uploads_stored_total", ""),
            uploads_refused: rate("narval_uploads_refused_total", ""),
            absent: rate(CACHE_REQUESTS, "status=\"404\""),
            failed: rate("narval_http_responses_total", "code=\"5").or_else(|| now.sum(REQUESTS, "").map(|_| 0.0)),
            overloaded: overloaded.into_iter().filter_map(|name| rate(name, "")).reduce(|sum, rate| sum + rate),
            aborted: rate("narval_http_answers_aborted_total", ""),
            store_errors: rate("narval_store_errors_total", ""),
            upstreams: now.upstreams.clone(),
        })
    }

    /// As JSON; what the server does not report is `null`.
    pub(super) fn json(&self) -> Value {
        let mut fields = serde_json::to_value(self).unwrap_or_default();
        for (name, value) in fields.as_object_mut().into_iter().flatten() {
            // Three decimals are enough for rates.
            if let Some(rate) = value.as_f64().filter(|_| !name.ends_with("_seconds")) {
                *value = json!((rate * 1000.0).round() / 1000.0);
            }
        }
        fields["upstreams"] = self.upstreams.json();
        fields["neighbours"] = self.upstreams.neighbours_json();
        fields
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
        let stats = Stats::between(&before, &Totals::parse(&after).unwrap(), Duration::from_secs(2)).unwrap();
        assert_eq!((stats.requests, stats.sent_bytes), (Some(10.0), Some(1000.0)));
        assert_eq!((stats.connections, stats.queue, stats.busy_percent), (Some(3.0), Some(2.0), Some(25.0)));
        assert_eq!((stats.nars, stats.narinfos, stats.absent), (Some(0.0), Some(2.0), Some(2.0)));
        assert_eq!((stats.hits_percent, stats.failed), (Some(75.0), Some(1.0)));
        assert_eq!((stats.median_seconds, stats.slowest_seconds), (Some(0.002), Some(0.002)));
        assert_eq!(stats.upstream_bytes, None);
        assert_eq!(stats.json()["requests"], 10.0);
        assert!(stats.json()["upstream_bytes"].is_null());
    }

    #[test]
    fn a_restart_and_other_servers_are_seen() {
        let totals = Totals::parse(BEFORE).unwrap();
        assert_eq!(
            Stats::between(&totals, &Totals::parse("narval_http_requests_total 1").unwrap(), Duration::from_secs(1)),
            None
        );
        assert_eq!(Totals::parse("node_load1 0.5\n<html>\n"), None);
        // Values that are none do not count.
        assert_eq!(Totals::parse("narval_requests_total NaN\nnarval_requests_total x"), None);
    }
}
