//! Histogram: how often values fell between fixed bounds; what a log counts of its groups.
//!
//! **Invariants**
//! - Its size is fixed when it is made; counting takes a search of a few bounds and no memory.
//! - A value that is a bound counts below it, as Prometheus has it.
//!
//! **Not here**: clocks (`log`), how it is shown (the host).

/// Bounds of commit times in nanoseconds: from what a device with a safe cache takes to what nobody waits for.
const TIME_BOUNDS_NS: &[u64] = &[
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
];

/// Bounds of group sizes in bytes: from one block to a batch of the largest kind.
const SIZE_BOUNDS_BYTES: &[u64] = &[
    4 << 10,
    16 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    16 << 20,
];

/// Counts of values by size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One more than there are bounds: the last is of what lies beyond all.
    counts: Vec<u64>,
    sum: u64,
}

impl Histogram {
    fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0,
        }
    }

    /// Of times in nanoseconds.
    pub(super) fn of_times() -> Self {
        Self::new(TIME_BOUNDS_NS)
    }

    /// Of sizes in bytes.
    pub(super) fn of_sizes() -> Self {
        Self::new(SIZE_BOUNDS_BYTES)
    }

    /// Counts `value`.
    pub(super) fn count(&mut self, value: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Bounds, and how many values were above the bound before and not above this one; the last bound is
    /// [`u64::MAX`].
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let bounds = self.bounds.iter().copied().chain([u64::MAX]);
        bounds.zip(self.counts.iter().copied())
    }

    /// All values together.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// How many values there were.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_histogram_counts_each_value_below_its_bound() {
        let mut sizes = Histogram::of_sizes();
        for value in [1, 4 << 10, (4 << 10) + 1, 16 << 20, u64::MAX] {
            sizes.count(value);
        }
        let counted: Vec<_> = sizes.buckets().filter(|(_, count)| *count > 0).collect();
        let expected = [(4 << 10, 2), (16 << 10, 1), (16 << 20, 1), (u64::MAX, 1)];
        assert_eq!(counted, expected);
        assert_eq!((sizes.total(), sizes.sum()), (5, u64::MAX));
    }

    #[test]
    fn unit_histogram_bounds_rise() {
        for bounds in [TIME_BOUNDS_NS, SIZE_BOUNDS_BYTES] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
    }
}
