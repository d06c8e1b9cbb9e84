//! What a machine that follows a release reports to the cache, on a thread of its own: a cache that is slow, away or refuses disturbs nothing.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use narval_client::Url;
use narval_install::Error;
use narval_install::follow::{Follower, Running};
use narval_keep::{MachineName, MachineReport, MachineState};
use narval_push::Administered;

use crate::args::data::now;
use crate::args::push::TokenArgs;
use crate::ui::failure::Failure;

/// A report that says nothing new is sent after this time, so that the cache sees that the machine lives.
const REPORT_EVERY: Duration = Duration::from_secs(300);
/// Time without data after which a report fails.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of the program waits for its last report.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// What is to be sent next, and what became of it.
#[derive(Default)]
struct Slot {
    next: Option<(Url, MachineReport)>,
    is_sending: bool,
    /// The last one did not arrive.
    is_unsent: bool,
    is_ended: bool,
}

/// Sends reports: the newest one, if there are several to be sent.
struct Reporter {
    shared: Arc<(Mutex<Slot>, Condvar)>,
    thread: Option<JoinHandle<()>>,
    /// What was given to be sent, and when.
    last: Mutex<Option<(MachineReport, Instant)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the reports of a follower depend on.
pub(super) struct ReportOptions {
    pub(super) name: MachineName,
    pub(super) token: TokenArgs,
    /// The release that is followed.
    pub(super) release: String,
    /// Time between two rounds.
    pub(super) every: Duration,
    /// How long an attempt may take.
    pub(super) attempt: Duration,
    /// Whether there is one round, and nothing is followed afterwards.
    pub(super) once: bool,
}

/// The reports of a follower.
pub(super) struct Reports<'a> {
    options: ReportOptions,
    /// The cache that has the release.
    cache: &'a Mutex<Option<Url>>,
    reporter: Reporter,
    /// What cannot be asked for or installed, and since when.
    error: Mutex<Option<(String, u64)>>,
}

impl<'a> Reports<'a> {
    /// # Errors
    /// If the token cannot be read.
    pub(super) fn start(options: ReportOptions, cache: &'a Mutex<Option<Url>>) -> Result<Self, Failure> {
        // A report is made again: none is worth waiting for.
        let mut token = options.token.clone();
        (token.requests.attempts, token.requests.timeout) = (1, TIMEOUT);
        let reporter = Reporter::start(options.name.clone(), token)?;
        Ok(Self { options, cache, reporter, error: Mutex::new(None) })
    }

    /// Before a switch.
    pub(super) fn trying(&self, trying: &Running, running: Option<&Running>) {
        self.send(MachineReport {
            trying: trying.revision,
            next_within: Some((self.options.attempt + self.rest()).as_secs()),
            ..self.of(MachineState::Trying, running)
        });
    }

    /// After a round, which may have failed before it has changed anything.
    pub(super) fn round(&self, follower: &Follower<'_>, error: Option<&Error>, is_last: bool) {
        let error = error.filter(|error| !matches!(error, Error::Interrupted));
        let (failed, state) = match (is_last && !self.options.once, follower.failed()) {
            (true, failed) => (failed, MachineState::Stopped),
            (false, Some(failed)) => (Some(failed), MachineState::WentBack),
            (false, None) => (None, MachineState::Running),
        };
        let error = {
            let mut known = lock(&self.error);
            let text = error.map(|error| MachineReport::error_text(&error.to_string()));
            // Since when it is so does not change from round to round.
            if known.as_ref().map(|(text, _)| text) != text.as_ref() {
                *known = text.map(|text| (text, now()));
            }
            known.clone()
        };
        let failed = failed.map(|failed| (MachineReport::error_text(&failed.why), failed.at));
        let (error, error_at) = error.or(failed).unzip();
        let next_within = (!is_last).then(|| self.rest().as_secs());
        self.send(MachineReport { error, error_at, next_within, ..self.of(state, follower.running()) });
    }

    /// How long until the next report at the latest, if nothing happens.
    fn rest(&self) -> Duration {
        self.options.every + REPORT_EVERY
    }

    fn of(&self, state: MachineState, running: Option<&Running>) -> MachineReport {
        MachineReport {
            release: self.options.release.clone(),
            state,
            revision: running.and_then(|running| running.revision),
            since: running.map(|running| running.since),
            generation: running.map(|running| running.generation),
            path: running.map(|running| running.path.display().to_string()),
            trying: None,
            error: None,
            error_at: None,
            next_within: None,
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        }
    }

    fn send(&self, report: MachineReport) {
        // Until a cache has said that it has the release, nobody is to be told.
        if let Some(cache) = lock(self.cache).clone() {
            self.reporter.report(&cache, report);
        }
    }
}

impl Reporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there is no thread, or the token cannot be read.
    fn start(name: MachineName, token: TokenArgs) -> Result<Self, Failure> {
        // A token that cannot be read is noticed now.
        token.client(&[])?;
        let shared = Arc::<(Mutex<Slot>, Condvar)>::default();
        let work = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("report".to_owned()).spawn(move || run(&work, &name, &token));
        Ok(Self { shared, thread: Some(thread.map_err(Failure::runtime)?), last: Mutex::new(None) })
    }

    /// Has a report sent, if it says something new, or the last one is long ago or did not arrive.
    fn report(&self, cache: &Url, report: MachineReport) {
        let mut last = lock(&self.last);
        let is_known = last.as_ref().is_some_and(|(known, at)| *known == report && at.elapsed() < REPORT_EVERY);
        let mut slot = lock(&self.shared.0);
        if is_known && !slot.is_unsent {
            return;
        }
        *last = Some((report.clone(), Instant::now()));
        slot.next = Some((cache.clone(), report));
        self.shared.1.notify_all();
    }
}

impl Drop for Reporter {
    /// Waits a moment until what is to be sent is sent.
    fn drop(&mut self) {
        let (slot, changed) = &*self.shared;
        let mut slot = lock(slot);
        slot.is_ended = true;
        changed.notify_all();
        let is_busy = |slot: &mut Slot| slot.next.is_some() || slot.is_sending;
        let (slot, waited) =
            changed.wait_timeout_while(slot, END_PATIENCE, is_busy).unwrap_or_else(PoisonError::into_inner);
        drop(slot);
        // A thread that still waits for the cache ends with the process.
        if !waited.timed_out()
            && let Some(thread) = self.thread.take()
        {
            // It has nothing to return.
            let _ = thread.join();
        }
    }
}

fn run((slot, changed): &(Mutex<Slot>, Condvar), name: &MachineName, token: &TokenArgs) {
    let mut reported = None;
    loop {
        let (cache, report) = {
            let mut slot = changed
                .wait_while(lock(slot), |slot| slot.next.is_none() && !slot.is_ended)
                .unwrap_or_else(PoisonError::into_inner);
            let Some(next) = slot.next.take() else { return };
            slot.is_sending = true;
            next
        };
        let sent = send(&cache, name, &report, token).map_err(|error| error.to_string());
        // What does not change is said once.
        if let Some(error) = sent.as_ref().err().filter(|error| reported.as_ref() != Some(*error)) {
            tracing::warn!("the report was not taken: {error}");
        }
        let mut slot = lock(slot);
        (slot.is_sending, slot.is_unsent) = (false, sent.is_err());
        reported = sent.err();
        changed.notify_all();
    }
}

fn send(cache: &Url, name: &MachineName, report: &MachineReport, token: &TokenArgs) -> Result<(), Failure> {
    // Files with credentials may have changed.
    let client = token.client(std::slice::from_ref(cache))?;
    let json = serde_json::to_value(report).map_err(Failure::runtime)?;
    Ok(Administered::new(cache.clone(), client).report(name.as_str(), &json)?)
}
