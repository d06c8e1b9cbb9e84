//! Stats as text.

use super::metrics::Stats;
use crate::args::client::human_bytes;

/// Shown for what the server does not report.
const UNKNOWN: &str = "-";

pub(super) fn count(value: Option<f64>) -> String {
    match value {
        None => UNKNOWN.to_owned(),
        Some(value) if value > 0.0 && value < 9.95 && value.fract() != 0.0 => format!("{value:.1}"),
        Some(value) if value < 10_000.0 => format!("{value:.0}"),
        Some(value) if value < 10_000_000.0 => format!("{:.0} k", value / 1e3),
        Some(value) => format!("{:.0} M", value / 1e6),
    }
}

pub(super) fn bytes(value: Option<f64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| human_bytes(value as u64))
}

pub(super) fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| format!("{value:.0} %"))
}

pub(super) fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => UNKNOWN.to_owned(),
        Some(seconds) if seconds.is_infinite() => "> 30 s".to_owned(),
        Some(seconds) if seconds < 0.000_999_5 => format!("{:.0} µs", seconds * 1e6),
        Some(seconds) if seconds < 0.999_5 => format!("{:.0} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

/// One line for logs and pipes.
pub(super) fn line(stats: &Stats) -> String {
    format!(
        "requests/s {}  sent/s {}  received/s {}  connections {}  queue {}  busy {}  hits {}  p99 {}  404/s {}  errors/s {}",
        count(stats.requests),
        bytes(stats.sent_bytes),
        bytes(stats.received_bytes),
        count(stats.connections),
        count(stats.queue),
        percent(stats.busy_percent),
        percent(stats.hits_percent),
        time(stats.slowest_seconds),
        count(stats.absent),
        count(stats.failed),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let counts = [0.0, 0.25, 9.0, 9.97, 1234.5, 12_345.0, 12_345_678.0].map(|value| count(Some(value)));
        assert_eq!(counts, ["0", "0.2", "9", "10", "1234", "12 k", "12 M"]);
        let times = [0.000_016_4, 0.000_999_9, 0.002_048, 2.1, f64::INFINITY].map(|value| time(Some(value)));
        assert_eq!(times, ["16 µs", "1 ms", "2 ms", "2.1 s", "> 30 s"]);
        assert_eq!((percent(None), bytes(Some(1_500_000.0))), ("-".to_owned(), "1.5 MB".to_owned()));
    }
}
