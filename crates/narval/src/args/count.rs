//! A progress counter on standard error.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ui::output::{note, to_stderr};

/// One line that is overwritten on a terminal, otherwise a line every few seconds.
pub(crate) struct Count {
    what: &'static str,
    of: &'static str,
    started: Instant,
    shown_ms: AtomicU64,
    every: Duration,
    terminal: bool,
}

impl Count {
    /// A counter that shows `what` and the number of `of`, as in `comparing: 3 of 20 downloads`.
    pub(crate) fn new(what: &'static str, of: &'static str) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let every = Duration::from_millis(if terminal { 100 } else { 5000 });
        Self { what, of, started: Instant::now(), shown_ms: AtomicU64::new(0), every, terminal }
    }

    /// Shows the count if enough time has passed since the last time.
    pub(crate) fn show(&self, done: u64, total: u64) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let shown = self.shown_ms.load(Ordering::Relaxed);
        let due = u128::from(now.saturating_sub(shown)) >= self.every.as_millis();
        if due && self.shown_ms.compare_exchange(shown, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let Self { what, of, .. } = self;
            if self.terminal {
                to_stderr(format_args!("\r{what}: {done} of {total} {of}\x1b[K"));
            } else {
                note!("{what}: {done} of {total} {of}");
            }
        }
    }

    /// Clears the line on a terminal.
    pub(crate) fn end(&self) {
        if self.terminal {
            to_stderr(format_args!("\r\x1b[K"));
        }
    }
}
