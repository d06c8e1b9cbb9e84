//! Clients and traffic.

use maud::{Markup, html};
use narval_client::clock;

use super::Status;
use super::chart::{self, Layer, columns};
use crate::page::view::words::{ago, bytes, duration, many, name, number};
use crate::watch::history::{EVERY, Past, Sample};
use crate::watch::under_way::{Transfer, Transfers};

/// Samples of a minute.
const MINUTE: usize = 12;
/// Transfers that are listed.
const LISTED_MAX: usize = 20;

/// The sum of these samples.
fn sum(samples: &[Sample]) -> Sample {
    samples.iter().fold(Sample::default(), |sum, sample| sum.and(sample))
}

fn last_minute(past: &Past) -> Sample {
    sum(past.samples.get(past.samples.len().saturating_sub(MINUTE)..).unwrap_or_default())
}

/// Seconds of a minute that have passed since the server started.
fn seconds(past: &Past) -> f64 {
    (past.samples.len().clamp(1, MINUTE) as u64 * EVERY.as_secs()) as f64
}

/// A rate with one digit, or none if it is large.
fn rate(count: f64) -> String {
    if count >= 10.0 { number(count.round() as u64) } else { format!("{count:.1}") }
}

/// A time in milliseconds or seconds.
fn time(micros: u32) -> String {
    match micros {
        0..1_000 => format!("{} ms", f64::from(micros) / 1e3),
        1_000..1_000_000 => format!("{} ms", micros / 1_000),
        10_000_000.. => "more than 3 seconds".to_owned(),
        _ => many(micros / 1_000_000, "second"),
    }
}

impl Status<'_> {
    pub(super) fn clients(&self) -> Markup {
        let past = self.service.metrics.history.past();
        let (minute, hour) = (last_minute(&past), sum(&past.samples));
        let uptime = self.state.uptime().as_secs();
        let in_time = past.samples.get(past.samples.len().saturating_sub(MINUTE)..).unwrap_or_default();
        let slowest = in_time.iter().map(|sample| sample.p99_micros).max().unwrap_or(0);
        let layers = [
            ("l0", "hit", hour.hits, (|it| it.hits) as fn(&Sample) -> u32),
            ("l1", "absent", hour.absent, |it| it.absent),
            ("l2", "refused", hour.refused, |it| it.refused),
            ("l3", "failed", hour.failed, |it| it.failed),
        ];
        let layers: Vec<Layer> = layers
            .into_iter()
            .map(|(class, what, count, of)| Layer {
                class,
                words: format!("{what} {}", number(count)),
                values: columns(&past.samples, |sample| u64::from(of(sample))),
            })
            .filter(|layer| layer.values.iter().any(|value| *value > 0))
            .collect();
        html! {
            p.says {
                @if minute.requests() > 0 {
                    b { (rate(f64::from(minute.requests()) / seconds(&past))) " requests per second" } " in the last minute"
                    @if slowest > 0 { "; 99 of 100 answers begin within " (time(slowest)) }
                    "."
                } @else if let Some(last) = past.last_request {
                    b { "Idle." } " Last request " (ago(last)) "."
                } @else {
                    b { "Idle." } " No request since the server started, " (ago(clock::now().saturating_sub(uptime))) "."
                }
            }
            @if !layers.is_empty() {
                (chart::stacked("Requests of the last hour by result", &layers, |peak| format!("peak {} per second", rate(peak as f64 / 30.0))))
            }
        }
    }

    pub(super) fn traffic(&self) -> Markup {
        let metrics = &self.service.metrics;
        let past = metrics.history.past();
        let minute = last_minute(&past);
        let per_second = |kib: u32| match kib {
            0 => "nothing".to_owned(),
            kib => format!("{}/s", bytes((f64::from(kib) * 1024.0 / seconds(&past)) as u64)),
        };
        let up = columns(&past.samples, |sample| u64::from(sample.sent_kib) * 1024);
        let down = columns(&past.samples, |sample| u64::from(sample.received_kib) * 1024);
        let hour = sum(&past.samples);
        let [sent, received] = [hour.sent_kib, hour.received_kib].map(|kib| u64::from(kib) * 1024);
        let layers = [
            Layer { class: "l0", words: format!("sent {}", bytes(sent)), values: up },
            Layer { class: "l1", words: format!("received {}", bytes(received)), values: down },
        ];
        html! {
            p.says {
                @if minute.sent_kib > 0 || minute.received_kib > 0 {
                    "Sends " b { (per_second(minute.sent_kib)) } " and receives " b { (per_second(minute.received_kib)) } " of NARs, by the last minute."
                } @else if sent > 0 || received > 0 {
                    b { "Nothing is on its way now." } " In the last hour, " (bytes(sent)) " of NARs were sent and " (bytes(received)) " received."
                } @else {
                    b { "Nothing is on its way." } " No NAR was sent or received in the last hour."
                }
            }
            @if sent > 0 || received > 0 {
                (chart::mirrored("NARs sent and received in the last hour", &layers, |peak| format!("peak {}/s", bytes(peak / 30))))
            }
            (self.transfers("Downloads", &metrics.downloads))
            (self.transfers("Uploads", &metrics.uploads))
        }
    }

    fn transfers(&self, title: &str, transfers: &Transfers) -> Markup {
        let (count, listed) = (transfers.count(), transfers.list(LISTED_MAX));
        let more = count.saturating_sub(listed.len() as u64);
        html! {
            @if !listed.is_empty() {
                div.scroll tabindex="0" role="region" aria-label=(title) {
                    table aria-label=(title) {
                        thead { tr {
                            th scope="col" { (title) }
                            th.n scope="col" { "So far" }
                            th.n.w scope="col" { "Per second" }
                            th.n scope="col" { "Left" }
                        } }
                        tbody { @for transfer in &listed { (self.transfer(transfer)) } }
                    }
                }
                @if more > 0 { p.soft { "and " (number(more)) " more" } }
            }
        }
    }

    fn transfer(&self, transfer: &Transfer) -> Markup {
        let (done, elapsed) = (transfer.done(), transfer.began.elapsed().as_secs_f64().max(0.001));
        let done = transfer.length.map_or(done, |length| done.min(length));
        let rate = done as f64 / elapsed;
        let left = transfer.length.filter(|_| rate >= 1.0).map(|length| (length - done) as f64 / rate);
        html! {
            tr {
                td { (name(&self.service.name_of_nar(&transfer.name))) }
                td.n { (bytes(done)) @if let Some(length) = transfer.length { " of " (bytes(length)) } }
                td.n.w { (bytes(rate as u64)) }
                td.n { @if let Some(left) = left { (duration(left as u64)) } @else { "not known" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_in_words() {
        assert_eq!([rate(0.25), rate(9.96), rate(1234.6)], ["0.2", "10.0", "1,235"]);
        assert_eq!([time(300), time(30_000), time(1_000_000)], ["0.3 ms", "30 ms", "1 second"]);
        assert_eq!(time(10_000_000), "more than 3 seconds");
    }
}
