//! How many NARs readers may have removed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use narval_client::clock;

/// The most NARs that readers can have removed within [`LOSSES_WITHIN`].
pub(crate) const LOSSES_MAX: usize = 5;
const LOSSES_WITHIN: Duration = Duration::from_secs(60);

/// Who finds that a NAR is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finder {
    /// A request.
    Read,
    /// A check, which may find many.
    Fsck {
        /// The file is there, with other contents.
        is_damaged: bool,
    },
}

/// When readers have had NARs removed.
#[derive(Default)]
pub(crate) struct Losses(Mutex<VecDeque<Instant>>);

impl Losses {
    /// Whether one more may be removed now. Counts it, if so.
    pub(crate) fn may_be_more(&self) -> bool {
        let (mut times, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), clock::instant());
        while times.front().is_some_and(|time| now.duration_since(*time) >= LOSSES_WITHIN) {
            times.pop_front();
        }
        if times.len() < LOSSES_MAX {
            times.push_back(now);
            return true;
        }
        false
    }
}
