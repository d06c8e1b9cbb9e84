//! Medians and ratios, as a table and as JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::{Context, Result};

/// One run of one row on one server.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// Time of all passes.
    pub wall_ns: u64,
    /// Processor time of the server meanwhile; `None` if its process is not known.
    pub cpu_ns: Option<u64>,
    /// Requests in all passes.
    pub requests: u64,
    /// Body bytes in all passes.
    pub bytes: u64,
    /// Median time of one request, if there was only one connection.
    pub p50_ns: Option<u64>,
}

/// The summary of one row on one server.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The row's title.
    pub row: String,
    /// The server.
    pub server: String,
    /// Median time of one pass of the row's requests, in milliseconds.
    pub wall_ms: f64,
    /// The median of the samples' times relative to those of the row's first server, each to the one of the same repetition: what the machine
    /// does meanwhile is then in both.
    pub wall_ratio_to_first: f64,
    /// Median processor time of the server per request, in microseconds.
    pub cpu_us_per_request: Option<f64>,
    /// Median of the samples' medians, in microseconds.
    pub p50_us: Option<f64>,
    /// Median requests per second.
    pub requests_per_s: f64,
    /// Median requests per second of the server's processor time.
    pub requests_per_cpu_s: Option<f64>,
    /// Median body bytes per second.
    pub bytes_per_s: f64,
    /// The samples.
    pub samples: Vec<Sample>,
}

/// The results of a run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// All rows of all servers.
    pub rows: Vec<Measured>,
    /// Memory at the end.
    pub memory: Vec<Memory>,
}

/// Resident memory of one server after the run.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// The server.
    pub server: String,
    /// At the end of the run.
    pub resident_bytes: u64,
    /// The peak.
    pub resident_bytes_max: u64,
}

/// The median; NaN for no numbers.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut numbers = numbers.into_iter().collect::<Vec<_>>();
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match (numbers.get(middle.wrapping_sub(1)), numbers.get(middle)) {
        (Some(lower), Some(upper)) if numbers.len() % 2 == 0 => (lower + upper) / 2.0,
        (_, Some(number)) => *number,
        _ => f64::NAN,
    }
}

/// Summarizes the samples of one row. Ratios are relative to the first server.
pub fn sum_up(row: &str, passes: usize, samples: Vec<(String, Vec<Sample>)>) -> Vec<Measured> {
    let first =
        samples.iter().find(|(_, samples)| !samples.is_empty()).map_or_else(Vec::new, |(_, samples)| samples.clone());
    let summed = samples.into_iter().filter(|(_, samples)| !samples.is_empty()).map(|(server, samples)| {
        let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
        let per_cpu = |value: fn(f64, f64) -> f64| {
            let with_cpu = samples.iter().filter_map(|s| Some(value(s.requests as f64, s.cpu_ns? as f64)));
            let with_cpu = with_cpu.collect::<Vec<_>>();
            (!with_cpu.is_empty()).then(|| median(with_cpu))
        };
        let p50s = samples.iter().filter_map(|s| Some(s.p50_ns? as f64 / 1e3)).collect::<Vec<_>>();
        Measured {
            row: row.to_owned(),
            server,
            wall_ms: of(|s| s.wall_ns as f64 / 1e6) / passes as f64,
            wall_ratio_to_first: median(ratios(&samples, &first)),
            cpu_us_per_request: per_cpu(|requests, cpu| cpu / 1e3 / requests),
            p50_us: (!p50s.is_empty()).then(|| median(p50s)),
            requests_per_s: of(|s| s.requests as f64 / (s.wall_ns as f64 / 1e9)),
            requests_per_cpu_s: per_cpu(|requests, cpu| requests / (cpu / 1e9)),
            bytes_per_s: of(|s| s.bytes as f64 / (s.wall_ns as f64 / 1e9)),
            samples,
        }
    });
    summed.collect()
}

/// The times of samples relative to those of another server in the same repetitions, ascending.
fn ratios(samples: &[Sample], of: &[Sample]) -> Vec<f64> {
    let mut ratios = samples.iter().zip(of).map(|(a, b)| a.wall_ns as f64 / b.wall_ns as f64).collect::<Vec<_>>();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// Formats such ratios: the median, and between what half of them are.
fn relative(samples: &[Sample], of: &Measured) -> String {
    let ratios = ratios(samples, &of.samples);
    let at = |quarter: usize| ratios.get(ratios.len() * quarter / 4).copied().unwrap_or(f64::NAN);
    format!("  {:>5.2} ({:.2} to {:.2})× {}", median(ratios.iter().copied()), at(1), at(3), of.server)
}

/// Formats one row as a block of lines.
pub fn block(measured: &[Measured]) -> String {
    let Some(first) = measured.first() else { return String::new() };
    let mut out = format!("{}\n", first.row);
    let nginx = measured.iter().find(|m| m.server == "nginx").filter(|_| first.server != "nginx");
    for m in measured {
        // writing to a String cannot fail
        let _ = write!(out, "  {:<16} {:>10}{}", m.server, time(m.wall_ms * 1e6), relative(&m.samples, first));
        if let Some(nginx) = nginx {
            out.push_str(&relative(&m.samples, nginx));
        }
        if let Some(p50) = m.p50_us {
            let _ = write!(out, "  p50 {:>9}", time(p50 * 1e3));
        }
        if let Some(cpu) = m.cpu_us_per_request {
            let _ = write!(out, "  cpu/request {:>9}", time(cpu * 1e3));
        }
        if m.requests_per_s >= 1000.0 {
            let _ = write!(out, "  {:>7.0} requests/s", m.requests_per_s);
        } else {
            let _ = write!(out, "  {:>7.0} MB/s", m.bytes_per_s / 1e6);
        }
        out.push('\n');
    }
    out
}

/// Formats nanoseconds for a reader.
pub fn time(ns: f64) -> String {
    match ns {
        _ if ns >= 1e9 => format!("{:.3} s", ns / 1e9),
        _ if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.1} µs", ns / 1e3),
    }
}

/// Writes all figures of a run to a file, if one is given.
///
/// # Errors
/// If it cannot be written.
pub fn write_json(file: Option<&Path>, figures: &impl Serialize) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let text = serde_json::to_vec_pretty(figures).context(|| "cannot write JSON".to_owned())?;
    fs::write(file, text).context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one_or_between_the_two() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn ratios_refer_to_the_first_server() {
        let sample = |wall_ns| Sample { wall_ns, cpu_ns: Some(1000), requests: 10, bytes: 10, p50_ns: None };
        let rows = sum_up("row", 2, vec![("a".into(), vec![sample(2_000_000)]), ("b".into(), vec![sample(6_000_000)])]);
        assert_eq!((rows[0].wall_ms, rows[1].wall_ratio_to_first), (1.0, 3.0));
        assert_eq!(rows[0].cpu_us_per_request, Some(0.1));
        assert!(block(&rows).contains("3.00 (3.00 to 3.00)× a"));
    }

    #[test]
    fn a_repetition_is_compared_with_that_of_the_other_server() {
        let sample = |wall_ns| Sample { wall_ns, cpu_ns: None, requests: 1, bytes: 1, p50_ns: None };
        // the machine was slower in the second repetition, and more so in the third
        let of = |times: [u64; 3]| times.map(sample).to_vec();
        let rows = sum_up("row", 1, vec![("a".into(), of([10, 20, 40])), ("b".into(), of([11, 22, 40]))]);
        assert_eq!(rows[1].wall_ratio_to_first, 1.1);
    }
}
