//! How much a collection does at a time, while others wait.

use std::time::Duration;

use narval_client::clock;

/// How long uploads are to wait for a step at most. A file of many gigabytes, or a busy machine, makes one longer than usual.
const HELD_MAX: Duration = Duration::from_millis(50);

/// The number of things that are done in one step: fewer after one that took long.
pub(super) struct Steps {
    len: usize,
    len_max: usize,
}

impl Steps {
    pub(super) const fn of(len_max: usize) -> Self {
        Self { len: len_max, len_max }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Does a step with this number of things, for which others wait.
    pub(super) fn time<T>(&mut self, work: impl FnOnce(usize) -> T) -> T {
        let begun = clock::instant();
        let done = work(self.len);
        let held = clock::since(begun);
        if held > HELD_MAX {
            self.len = (self.len / 2).max(1);
        } else if held < HELD_MAX / 4 {
            self.len = (self.len * 2).min(self.len_max);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narval_client::clock::{Jumping, VIRTUAL};

    #[test]
    fn a_step_that_takes_long_is_followed_by_shorter_ones() {
        let (mut steps, clocks) = (Steps::of(64), Jumping::begin());
        let mut takes = |each: Duration| {
            steps.time(|len| {
                clocks.elapsed.set(clocks.elapsed.get() + each * u32::try_from(len).unwrap());
                len
            })
        };
        let slow: Vec<usize> = (0..6).map(|_| takes(Duration::from_millis(5))).collect();
        assert_eq!(slow, [64, 32, 16, 8, 8, 8], "8 of them take 40 ms");
        let slower: Vec<usize> = (0..5).map(|_| takes(Duration::from_secs(1))).collect();
        assert_eq!(slower, [8, 4, 2, 1, 1]);
        let fast: Vec<usize> = (0..8).map(|_| takes(Duration::from_micros(100))).collect();
        assert_eq!(fast, [1, 2, 4, 8, 16, 32, 64, 64]);
        VIRTUAL.set(None);
    }
}
