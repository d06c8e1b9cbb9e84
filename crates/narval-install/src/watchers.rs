//! Who watches what is going on.

use crate::{Progress, Trace};

/// Who watches a transfer: counters for those who show it, and a timeline.
#[derive(Clone, Copy)]
pub(crate) struct Watchers<'a> {
    pub(crate) progress: &'a Progress,
    pub(crate) trace: &'a Trace,
}

/// Watchers of a transfer that nobody watches.
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
