//! How many requests may be made beside those that are needed.

use parking_lot::Mutex;

/// Requests that may be made beside those that are needed: a share of them, and a few at once.
#[derive(Debug)]
pub struct Budget {
    share: f64,
    left: Mutex<f64>,
}

/// How many such requests may be made at once, and from the start: in any time, no more than the share of the requests in it, and these.
pub const BUDGET_MAX: f64 = 10.0;

impl Budget {
    /// Allows this share of the requests that are recorded, and ten beside them.
    pub const fn new(share: f64) -> Self {
        Self { share, left: Mutex::new(BUDGET_MAX) }
    }

    /// Records a request that was needed.
    pub fn earn(&self) {
        let mut left = self.left.lock();
        *left = (*left + self.share).min(BUDGET_MAX);
    }

    /// Whether one more request may be made.
    pub fn spend(&self) -> bool {
        let mut left = self.left.lock();
        let may = *left >= 1.0;
        if may {
            *left -= 1.0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_share_and_a_few() {
        let budget = Budget::new(0.05);
        let mut spent = 0;
        for _ in 0..2000 {
            budget.earn();
            spent += usize::from(budget.spend());
        }
        assert!((100..=110).contains(&spent), "{spent}");
    }
}
