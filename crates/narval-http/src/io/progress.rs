//! "At least this many bytes in each window": the deadline of whatever may take long, but not stand still.

use crate::io::clock::Millis;

/// The current window of such a deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// When it began.
    since: Millis,
    /// The bytes by then.
    had: u64,
    /// Its [last try](Self::has_last_try) was made.
    had_last_try: bool,
}

impl Progress {
    /// A window that begins now, after `had` bytes.
    pub(crate) fn new(now: Millis, had: u64) -> Self {
        Self { since: now, had, had_last_try: false }
    }

    /// When a window of this length ends.
    pub(crate) fn until(&self, length: Millis) -> Millis {
        self.since + length
    }

    /// When to look next, now that there were `bytes` in all; `None` if the window is over and had fewer than `least`. After a
    /// window with enough bytes begins the next.
    pub(crate) fn check(&mut self, now: Millis, bytes: u64, least: u64, length: Millis) -> Option<Millis> {
        if self.until(length) <= now {
            if bytes.saturating_sub(self.had) < least {
                return None;
            }
            *self = Self::new(now, bytes);
        }
        Some(self.until(length))
    }

    /// Whether sending may be tried once more at its end, although the socket does not count as writable. The answer is yes once.
    pub(crate) fn has_last_try(&mut self) -> bool {
        !std::mem::replace(&mut self.had_last_try, true)
    }
}
