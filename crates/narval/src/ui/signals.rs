//! SIGINT and SIGTERM for commands that leave nothing incomplete: the first signal stops the work gracefully, a second
//! one ends the process immediately.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use narval_install::Progress;
use narval_push::watch::Stop;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::ui::failure::Failure;
use crate::ui::log;

/// The exit code after SIGINT: 128 plus the signal's number.
const INTERRUPTED: i32 = INTERRUPTED_CODE as i32;
const INTERRUPTED_CODE: u8 = 130;
/// How long to wait for threads that wait for the network. Their files have temporary names, which the next install
/// removes.
const GRACE: std::time::Duration = std::time::Duration::from_secs(3);
/// The same for services, which push or fetch for a longer time.
const SERVICE_GRACE: std::time::Duration = std::time::Duration::from_secs(5);

/// For commands that must clean up: after SIGINT or SIGTERM their loops end with an error. A second signal ends the
/// process immediately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts handling the signals.
    pub(crate) fn on_signal() -> Self {
        let this = Self::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the signal that sets the flag does not end the process.
            let registered = signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&this.0))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&this.0)));
            if let Err(error) = registered {
                tracing::debug!(%error, "signals are not handled; they end the process immediately");
            }
        }
        this
    }

    /// Fails after a signal.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }

    /// Replaces the failure by "interrupted" if that was the cause.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        match self.check() {
            Ok(()) => failure,
            Err(_) => Failure::Coded(INTERRUPTED_CODE, "interrupted".to_owned()),
        }
    }
}

/// The failure of work that a signal has stopped.
pub(crate) fn interrupted(what: &str) -> Failure {
    Failure::Coded(INTERRUPTED_CODE, format!("interrupted; {what}"))
}

/// Makes a signal interrupt `progress`.
pub(crate) fn interrupt_on_signal(progress: &Arc<Progress>) {
    let progress = Arc::clone(progress);
    on_signal(move || progress.interrupt());
}

/// Calls `stop` at the first signal. The process ends at a second one, or after [`GRACE`].
pub(crate) fn on_signal(stop: impl FnOnce() + Send + 'static) {
    let mut signals = match Signals::new([SIGINT, SIGTERM]) {
        Ok(signals) => signals,
        Err(error) => {
            tracing::debug!(%error, "signals are not handled; they end the process immediately");
            return;
        }
    };
    std::thread::spawn(move || {
        let mut pending = signals.forever();
        if pending.next().is_some() {
            stop();
            std::thread::spawn(|| {
                std::thread::sleep(GRACE);
                std::process::exit(INTERRUPTED);
            });
        }
        if pending.next().is_some() {
            std::process::exit(INTERRUPTED);
        }
    });
}

/// For services: the first signal stops them gracefully. A second one ends the process immediately; so does a cache that does not respond in time, unless
/// `may_not_end` holds then. `left` says what becomes of what is not done.
///
/// # Errors
/// Signals cannot be caught.
pub(crate) fn stop_on_signal(
    stop: &Stop,
    left: &'static str,
    may_not_end: impl Fn() -> bool + Send + 'static,
) -> Result<(), Failure> {
    let uncaught = |error: io::Error| Failure::runtime(format!("cannot catch signals: {error}"));
    let (mut signals, stop) = (Signals::new([SIGINT, SIGTERM]).map_err(uncaught)?, stop.clone());
    let end = move |why: &str| {
        tracing::info!("{why}; {left}");
        log::finish();
        std::process::exit(0);
    };
    let handle = move || {
        let mut signals = signals.forever();
        if signals.next().is_none() {
            return;
        }
        stop.stop();
        let patience = std::thread::Builder::new().name("grace".into()).spawn(move || {
            std::thread::sleep(SERVICE_GRACE);
            if !may_not_end() {
                end("a cache did not respond in time");
            }
        });
        if patience.is_err() || signals.next().is_some() {
            end("stopped immediately");
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(handle).map_err(uncaught)?;
    Ok(())
}
