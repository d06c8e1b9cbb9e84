use crate::io::clock::Millis;
use crate::limits::{HTTP2_IDLE_FRAMES_MAX, HTTP2_IDLE_FRAMES_PER_SECOND, HTTP2_RESETS_MAX, HTTP2_RESETS_PER_SECOND};

/// A rate limit: a burst, and a number per second in the long run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: u32,
    most: u32,
    per_second: u32,
    filled: Millis,
}

impl Budget {
    fn new(most: u32, per_second: u32) -> Self {
        Self { left: most, most, per_second, filled: 0 }
    }

    /// For streams that are reset, by either side.
    pub(super) fn of_resets() -> Self {
        Self::new(HTTP2_RESETS_MAX, HTTP2_RESETS_PER_SECOND)
    }

    /// For frames that do nothing for a request.
    pub(super) fn of_idle_frames() -> Self {
        Self::new(HTTP2_IDLE_FRAMES_MAX, HTTP2_IDLE_FRAMES_PER_SECOND)
    }

    /// Spends one; `false` if none is left.
    pub(super) fn spend(&mut self, now: Millis) -> bool {
        let seconds = now.saturating_sub(self.filled) / 1000;
        if seconds > 0 {
            let more = u64::from(self.per_second).saturating_mul(seconds);
            self.left = self.left.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(self.most);
            self.filled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_refilled_by_the_second_and_not_beyond_its_size() {
        let mut budget = Budget::new(3, 2);
        let mut spent = |now| (0..10).take_while(|_| budget.spend(now)).count();
        assert_eq!(spent(0), 3);
        assert_eq!(spent(999), 0);
        assert_eq!(spent(1000), 2);
        assert_eq!(spent(1_000_000), 3);
    }
}
