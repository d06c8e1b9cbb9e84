//! Finds out when an upstream answers again: one thread for each that has failed, so that no client is made to try.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use narval_client::random_fraction;

use super::health::Standing;
use crate::upstream::remote::Remote;

/// The time before the first probe; it doubles.
const PROBE_AFTER: Duration = Duration::from_millis(200);
/// The longest time between probes: what comes back is used within five seconds.
const PROBE_AFTER_MAX: Duration = Duration::from_secs(2);

/// Probes an upstream until it answers in time, or is no longer used.
pub(in crate::upstream) fn start(remote: &Arc<Remote>) {
    let weak = Arc::downgrade(remote);
    let started = thread::Builder::new().name("probe-upstream".into()).spawn(move || run(&weak));
    if let Err(error) = started {
        tracing::error!("upstreams: no thread to probe {}: {error}", remote.url());
        remote.health.gives_up_probing();
    }
}

fn run(remote: &Weak<Remote>) {
    let mut after = PROBE_AFTER;
    loop {
        // Not all servers that wait for this upstream ask at the same moment.
        thread::sleep(after.mul_f64(0.5 + random_fraction() / 2.0));
        let Some(remote) = remote.upgrade() else { return };
        if remote.health.ends_probing() {
            return;
        }
        if remote.health.rests_for() > Duration::ZERO {
            continue;
        }
        // What was asked for last shows most: the rest of the upstream may work.
        drop(remote.narinfo(remote.last()));
        if remote.standing() == Standing::Good {
            tracing::info!("upstream {} answers again", remote.url());
        }
        after = (after * 2).min(PROBE_AFTER_MAX);
    }
}
