//! Finds out when an upstream answers again: one thread for each that has failed, so that no client is made to try.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use narval_client::random_fraction;

use super::health::Health;

/// The time before the first probe; it doubles.
const PROBE_AFTER: Duration = Duration::from_millis(200);
/// The longest time between probes: what comes back is used within five seconds.
const PROBE_AFTER_MAX: Duration = Duration::from_secs(2);

/// What is probed.
pub(in crate::upstream) trait Probed: Send + Sync + 'static {
    fn health(&self) -> &Health;
    /// Its name, for the log.
    fn name(&self) -> String;
    /// Asks it for something, which its health takes note of. Returns whether it answers in time.
    fn answers(self: &Arc<Self>) -> bool;
}

/// Probes an upstream until it answers in time, or is no longer used.
pub(in crate::upstream) fn start(probed: &Arc<impl Probed>) {
    let weak = Arc::downgrade(probed);
    let started = thread::Builder::new().name("probe-upstream".into()).spawn(move || run(&weak));
    if let Err(error) = started {
        tracing::error!("upstreams: no thread to probe {}: {error}", probed.name());
        probed.health().gives_up_probing();
    }
}

fn run(probed: &Weak<impl Probed>) {
    let mut after = PROBE_AFTER;
    loop {
        // Not all servers that wait for this upstream ask at the same moment.
        thread::sleep(after.mul_f64(0.5 + random_fraction() / 2.0));
        let Some(probed) = probed.upgrade() else { return };
        if probed.health().ends_probing() {
            return;
        }
        if probed.health().rests_for() > Duration::ZERO {
            continue;
        }
        if probed.answers() {
            tracing::info!("upstream {} answers again", probed.name());
        }
        after = (after * 2).min(PROBE_AFTER_MAX);
    }
}
