//! Reads `/metrics` once a second, on a thread of its own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use narval_client::{Client, Url};

use super::metrics::{Stats, Totals};

/// The interval between readings.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// The maximum size of `/metrics`, in bytes.
const TEXT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The result of a reading.
#[derive(Clone, Debug)]
pub(super) enum Reading {
    /// The figures since the previous reading.
    Stats(Box<Stats>),
    /// The first one, or the first after a restart: there is nothing to compare it with.
    First,
    /// The server could not be read. The next reading tries again.
    Failed(String),
}

/// Starts reading. The thread ends when the receiver is dropped.
///
/// # Errors
/// No thread can be started.
pub(super) fn read_every_second(client: Arc<Client>, url: Url) -> std::io::Result<Receiver<Reading>> {
    let (readings, receiver) = sync_channel(1);
    thread::Builder::new().name("metrics".into()).spawn(move || {
        let mut before: Option<(Totals, Instant)> = None;
        loop {
            let started = Instant::now();
            let reading = match read(&client, &url) {
                Err(trouble) => {
                    before = None;
                    Reading::Failed(trouble)
                }
                Ok(totals) => {
                    let now = Instant::now();
                    let stats =
                        before.as_ref().and_then(|(old, at)| Stats::between(old, &totals, now.duration_since(*at)));
                    before = Some((totals, now));
                    stats.map_or(Reading::First, |stats| Reading::Stats(Box::new(stats)))
                }
            };
            if readings.send(reading).is_err() {
                return;
            }
            thread::sleep(EVERY.saturating_sub(started.elapsed()));
        }
    })?;
    Ok(receiver)
}

fn read(client: &Client, url: &Url) -> Result<Totals, String> {
    match client.metadata_once(url, TEXT_BYTES_MAX) {
        Err(error) => Err(error.to_string()),
        Ok(None) => Err(format!(
            "{url}: not there, or not for everybody; is it a Narval server, and the token in the netrc file?"
        )),
        Ok(Some(text)) => Totals::parse(&String::from_utf8_lossy(&text))
            .ok_or_else(|| format!("{url}: these are not the metrics of a Narval server")),
    }
}
