//! Observers of a transfer.

use crate::{Progress, Trace};

/// The observers of a transfer: counters for display, and a timeline.
#[derive(Clone, Copy)]
pub(crate) struct Watchers<'a> {
    pub(crate) progress: &'a Progress,
    pub(crate) trace: &'a Trace,
}

/// Unused observers.
pub(crate) struct Unwatched {
    progress: Progress,
    trace: Trace,
}

impl Default for Unwatched {
    fn default() -> Self {
        Self { progress: Progress::default(), trace: Trace::new(false) }
    }
}

impl Unwatched {
    pub(crate) const fn watchers(&self) -> Watchers<'_> {
        Watchers { progress: &self.progress, trace: &self.trace }
    }
}
