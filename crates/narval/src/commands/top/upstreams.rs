//! What a server reports of each of its upstreams, since it was started.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::args::client::human_bytes;

/// The maximum number of upstreams that are read.
const UPSTREAMS_MAX: usize = 64;

/// The figures of one upstream, over all caches that have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Upstream {
    /// Whether one of the caches does not ask it, or asks it after the others.
    is_down: bool,
    is_doubtful: bool,
    /// Answers that were used.
    used: f64,
    /// Requests to it although another one might still have answered in time.
    hedges: f64,
    /// Requests to it because another one had used up its time.
    failovers: f64,
    /// How much longer clients would have waited for it alone, in seconds.
    saved_seconds: f64,
    answers: f64,
    answers_seconds: f64,
}

/// What has passed between neighbours, by the names of the metrics.
const NEIGHBOURS: [&str; 6] =
    ["given_total", "given_bytes_total", "taken_total", "taken_bytes_total", "refused_total", "failed_total"];

/// The upstreams by address.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Upstreams {
    all: BTreeMap<String, Upstream>,
    /// How many neighbours there are, if the server takes part.
    neighbours: Option<f64>,
    passed: [f64; NEIGHBOURS.len()],
}

impl Upstreams {
    /// Takes up a sample of the metrics, if it is about an upstream.
    pub(super) fn take(&mut self, name: &str, labels: &str, value: f64) {
        if name == "narval_neighbours" {
            *self.neighbours.get_or_insert_default() += value;
        }
        if let Some(name) = name.strip_prefix("narval_neighbour_")
            && let Some(passed) =
                NEIGHBOURS.iter().position(|known| *known == name).and_then(|at| self.passed.get_mut(at))
        {
            *passed += value;
        }
        let Some(name) = name.strip_prefix("narval_upstream_") else { return };
        let Some(url) = labels.split_once("upstream=\"").and_then(|(_, rest)| rest.split('"').next()) else { return };
        if self.all.len() >= UPSTREAMS_MAX && !self.all.contains_key(url) {
            return;
        }
        let upstream = self.all.entry(url.to_owned()).or_default();
        match name {
            "up" => upstream.is_down |= value == 0.0,
            "doubtful" => upstream.is_doubtful |= value > 0.0,
            "used_total" => upstream.used += value,
            "hedges_total" => upstream.hedges += value,
            "failovers_total" => upstream.failovers += value,
            "saved_seconds_total" => upstream.saved_seconds += value,
            "seconds_sum" => upstream.answers_seconds += value,
            "seconds_count" => upstream.answers += value,
            _ => {}
        }
    }

    /// A line of text for each, and one for neighbours.
    pub(super) fn lines(&self) -> Vec<String> {
        let used: f64 = self.all.values().map(|upstream| upstream.used).sum();
        let line = |(url, upstream): (&String, &Upstream)| {
            let time = upstream.mean_seconds().map_or("-".to_owned(), |mean| format!("{:.0} ms", mean * 1000.0));
            let share = if used > 0.0 { 100.0 * upstream.used / used } else { 0.0 };
            let Upstream { hedges, failovers, saved_seconds, .. } = upstream;
            let state = upstream.state();
            format!(
                "{state:<4} {time:>7} {share:>3.0} % {hedges:>5} hedges {failovers:>4} failovers {saved_seconds:>6.1} s saved  {url}"
            )
        };
        let near = self.neighbours.map(|neighbours| {
            let [given, given_bytes, taken, taken_bytes, refused, failed] = self.passed;
            let [given_bytes, taken_bytes] = [given_bytes, taken_bytes].map(|bytes| human_bytes(bytes as u64));
            format!(
                "near  {neighbours} neighbours: {taken} NARs taken ({taken_bytes}), {given} given ({given_bytes}), {refused} refused, {failed} failed"
            )
        });
        self.all.iter().map(line).chain(near).collect()
    }

    /// What has passed between neighbours, as JSON.
    pub(super) fn neighbours_json(&self) -> Value {
        let [given, given_bytes, taken, taken_bytes, refused, failed] = self.passed;
        self.neighbours.map_or(Value::Null, |neighbours| {
            json!({
                "neighbours": neighbours,
                "given": given,
                "given_bytes": given_bytes,
                "taken": taken,
                "taken_bytes": taken_bytes,
                "refused": refused,
                "failed": failed,
            })
        })
    }

    /// As JSON.
    pub(super) fn json(&self) -> Value {
        let one = |(url, upstream): (&String, &Upstream)| {
            json!({
                "url": url,
                "state": upstream.state(),
                "mean_seconds": upstream.mean_seconds(),
                "used": upstream.used,
                "hedges": upstream.hedges,
                "failovers": upstream.failovers,
                "saved_seconds": upstream.saved_seconds,
            })
        };
        self.all.iter().map(one).collect()
    }
}

impl Upstream {
    const fn state(&self) -> &'static str {
        match (self.is_down, self.is_doubtful) {
            (true, _) => "down",
            (false, true) => "slow",
            (false, false) => "up",
        }
    }

    fn mean_seconds(&self) -> Option<f64> {
        (self.answers > 0.0).then(|| self.answers_seconds / self.answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_with_the_same_upstream_are_added() {
        let mut upstreams = Upstreams::default();
        for cache in ["a", "b"] {
            for (name, value) in [("up", 1.0), ("used_total", 3.0), ("hedges_total", 1.0), ("seconds_count", 4.0)] {
                let labels = format!("cache=\"{cache}\",upstream=\"http://one\"}}");
                upstreams.take(&format!("narval_upstream_{name}"), &labels, value);
            }
        }
        upstreams.take("narval_upstream_seconds_sum", "upstream=\"http://one\"}", 0.8);
        upstreams.take("narval_upstream_up", "cache=\"a\",upstream=\"http://two\"}", 0.0);
        upstreams.take("narval_upstream_used_total", "cache=\"a\",upstream=\"http://two\"}", 2.0);
        upstreams.take("narval_upstream_failovers_total", "cache=\"a\",upstream=\"http://two\"}", 3.0);
        upstreams.take("narval_upstream_kept_hits_total", "cache=\"a\"}", 9.0);
        let lines = upstreams.lines();
        assert_eq!(lines[0], "up    100 ms  75 %     2 hedges    0 failovers    0.0 s saved  http://one");
        assert_eq!(lines[1], "down       -  25 %     0 hedges    3 failovers    0.0 s saved  http://two");
        assert_eq!(upstreams.json()[1]["state"], "down");
        assert!(upstreams.neighbours_json().is_null());
        for (name, value) in [("s", 3.0), ("_taken_total", 2.0), ("_taken_bytes_total", 5e6), ("_given_total", 1.0)] {
            upstreams.take(&format!("narval_neighbour{name}"), "cache=\"a\"}", value);
        }
        let near = "near  3 neighbours: 2 NARs taken (5.0 MB), 1 given (0 B), 0 refused, 0 failed";
        assert_eq!(upstreams.lines()[2], near);
        assert_eq!(upstreams.neighbours_json()["taken_bytes"], 5e6);
    }
}
