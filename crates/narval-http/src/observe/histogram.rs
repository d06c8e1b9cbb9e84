//! Histograms with doubling bounds: one thread adds, at the cost of two additions, and any thread reads.

use std::time::Duration;

use crate::observe::counter::Counter;

/// Buckets with a bound; one more counts everything above the last.
const BUCKETS: usize = 26;

/// The unit of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nanoseconds; the first bound is 2¹⁰ ns, about a microsecond, and the last 34 s.
    #[default]
    Time,
    /// A count; the first bound is one.
    Count,
}

impl Unit {
    /// The first bound, as a power of two.
    fn first_bits(self) -> u32 {
        match self {
            Self::Time => 10,
            Self::Count => 0,
        }
    }

    /// In seconds, or unchanged.
    fn in_base_units(self, value: u64) -> f64 {
        match self {
            Self::Time => Duration::from_nanos(value).as_secs_f64(),
            Self::Count => value as f64,
        }
    }
}

/// The counters of one thread.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    counts: [Counter; BUCKETS + 1],
    sum: Counter,
}

impl Cells {
    /// Adds a duration; only from the thread that owns the counters.
    pub(crate) fn add_time(&self, duration: Duration) {
        self.add(Unit::Time, u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds a count.
    pub(crate) fn add_count(&self, count: u64) {
        self.add(Unit::Count, count);
    }

    fn add(&self, unit: Unit, value: u64) {
        // A bound belongs to the bucket below it.
        let bits = u64::BITS - (value.saturating_sub(1) >> unit.first_bits()).leading_zeros();
        if let Some(counter) = self.counts.get((bits as usize).min(BUCKETS)) {
            counter.add(1);
        }
        self.sum.add(value);
    }
}

/// A distribution, in buckets with doubling bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    unit: Unit,
    counts: [u64; BUCKETS + 1],
    sum: u64,
}

impl Histogram {
    /// The sum over threads.
    pub(crate) fn of<'a>(unit: Unit, threads: impl Iterator<Item = &'a Cells>) -> Self {
        let mut all = Self { unit, ..Self::default() };
        for cells in threads {
            all.sum = all.sum.wrapping_add(cells.sum.get());
            for (sum, count) in all.counts.iter_mut().zip(&cells.counts) {
                *sum += count.get();
            }
        }
        all
    }

    /// The number of measurements.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the measurements, in seconds if they are durations.
    pub fn sum(&self) -> f64 {
        self.unit.in_base_units(self.sum)
    }

    /// Each bound, with the number of measurements up to it; the last bound is infinity.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut so_far = 0;
        self.counts.iter().enumerate().map(move |(at, count)| {
            so_far += count;
            let bits = u32::try_from(at).unwrap_or(u32::MAX).saturating_add(self.unit.first_bits());
            let bound = if at < BUCKETS { self.unit.in_base_units(1 << bits) } else { f64::INFINITY };
            (bound, so_far)
        })
    }

    /// A bound that this share of the measurements does not exceed, such as `quantile(0.99)`: the next bucket's, so at
    /// most twice the true value. `None` without measurements.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share.clamp(0.0, 1.0) * self.count() as f64;
        self.buckets().find(|(_, so_far)| *so_far > 0 && *so_far as f64 >= wanted).map(|(bound, _)| bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_double_and_belong_to_the_bucket_below() {
        let cells = Cells::default();
        for nanos in [0, 1024, 1025, 2048, u64::MAX] {
            cells.add_time(Duration::from_nanos(nanos));
        }
        let times = Histogram::of(Unit::Time, [&cells].into_iter());
        let buckets: Vec<_> = times.buckets().collect();
        assert_eq!(buckets[..3], [(1.024e-6, 2), (2.048e-6, 4), (4.096e-6, 4)]);
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 5)));
        assert_eq!(times.count(), 5);
        let (one, two) = (Cells::default(), Cells::default());
        (1..=4).for_each(|depth| one.add_count(depth));
        two.add_count(100);
        let depths = Histogram::of(Unit::Count, [&one, &two].into_iter());
        assert_eq!(depths.buckets().take(4).collect::<Vec<_>>(), [(1.0, 1), (2.0, 2), (4.0, 4), (8.0, 4)]);
        assert_eq!((depths.sum(), depths.quantile(0.5), depths.quantile(1.0)), (110.0, Some(4.0), Some(128.0)));
        assert_eq!(Histogram::default().quantile(0.5), None);
    }
}
