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

/// How long a probe is waited for before the next one: what hangs may be a connection, and not the upstream.
pub(in crate::upstream) const PROBE_WAIT: Duration = Duration::from_secs(2);

/// The times between probes.
pub(in crate::upstream) struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(PROBE_AFTER)
    }
}

impl Pauses {
    /// The next one, by a number from 0 to 1: not all servers that wait for an upstream ask at the same moment.
    pub(in crate::upstream) fn next(&mut self, random: f64) -> Duration {
        let pause = self.0.mul_f64(0.5 + random / 2.0);
        self.0 = (self.0 * 2).min(PROBE_AFTER_MAX);
        pause
    }
}

/// What is probed.
pub(in crate::upstream) trait Probed: Send + Sync + 'static {
    fn health(&self) -> &Health;
    /// Its name, for the log.
    fn name(&self) -> String;
    /// Asks it for something, which its health takes note of, and waits for [`PROBE_WAIT`] at most. Returns whether it answers in time.
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
    let mut pauses = Pauses::default();
    loop {
        thread::sleep(pauses.next(random_fraction()));
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
    }
}
