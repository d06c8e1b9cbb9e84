//! How fast a NAR has come of late.

use std::collections::VecDeque;
use std::time::Duration;

/// What came within the last time that it was waited for. Both are in slots, the newest last.
#[derive(Debug, Default)]
pub(super) struct Rate {
    slots: VecDeque<(Duration, u64)>,
}

impl Rate {
    /// Records for how long it was waited, and how many bytes came. A slot is full after `slot`; those that are older than `window`
    /// are left out.
    pub(super) fn add(&mut self, waited: Duration, came: u64, slot: Duration, window: Duration) {
        match self.slots.back_mut().filter(|last| last.0 < slot) {
            Some(last) => *last = (last.0 + waited, last.1 + came),
            None => self.slots.push_back((waited, came)),
        }
        while let Some(first) = self.slots.front()
            && self.waited() - first.0 >= window
        {
            self.slots.pop_front();
        }
    }

    /// The time over which it is known.
    pub(super) fn waited(&self) -> Duration {
        self.slots.iter().map(|slot| slot.0).sum()
    }

    /// For how long it was waited, and what came, in the last slots that are no shorter than `window` together; `None` if there are none.
    pub(super) fn over(&self, window: Duration) -> Option<(Duration, u64)> {
        let mut sum = (Duration::ZERO, 0);
        for (waited, came) in self.slots.iter().rev() {
            sum = (sum.0 + *waited, sum.1 + came);
            if sum.0 >= window {
                return Some(sum);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_came_at_first_does_not_count_for_long() {
        let mut rate = Rate::default();
        let mut wait = |ms, came| {
            rate.add(MS * ms, came, MS * 50, MS * 800);
            rate.over(MS * 800)
        };
        assert_eq!(wait(1, 100_000), None);
        for _ in 0..15 {
            assert_eq!(wait(50, 0), None);
        }
        assert_eq!(wait(50, 0), Some((MS * 801, 100_000)));
        assert_eq!(wait(50, 0), Some((MS * 800, 0)), "the first slot is too old");
        assert_eq!(rate.over(MS * 100), Some((MS * 100, 0)));
        assert_eq!(rate.slots.len(), 16);
    }
}
