//! Stats: medians, spreads and latency percentiles.
//!
//! **Invariants**
//! - Latencies are kept in nanoseconds to three digits.
//!
//! **Not here**: printing (`report`).

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Longest latency told apart.
const LATENCY_MAX_NS: u64 = 600_000_000_000;

/// Latencies of one run.
#[derive(Clone)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3);
        Self(histogram.expect("bounds and digits are constants that the histogram takes"))
    }

    /// Adds one.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(ns.max(1));
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Microseconds at `quantile`; 0 when nothing was recorded.
    pub fn us(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }

    /// p50, p99 and p99.9 in microseconds, for a table cell.
    pub fn cell(&self) -> String {
        format!(
            "{:.0} / {:.0} / {:.0}",
            self.us(0.5),
            self.us(0.99),
            self.us(0.999)
        )
    }

    /// The same for JSON.
    pub fn json(&self) -> Value {
        json!({
            "count": self.0.len(), "p50_us": self.us(0.5),
            "p99_us": self.us(0.99), "p999_us": self.us(0.999),
        })
    }
}

/// The middle of `values`, 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => sorted[n / 2],
        _ => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Least and greatest of `values`.
pub fn spread(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    if values.is_empty() {
        (0.0, 0.0)
    } else {
        (low, high)
    }
}

/// The middle of `sizes`, 0 of none.
pub fn median_u32(sizes: &[u32]) -> u32 {
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

/// Bytes per second in MB/s.
pub fn mb_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        bytes as f64 / seconds / 1e6
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_and_odd_counts_is_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median_u32(&[5, 1, 3]), 3);
        assert_eq!(spread(&[2.0, 1.0]), (1.0, 2.0));
    }

    #[test]
    fn latencies_merged_hold_both() {
        let mut a = Latencies::new();
        a.record(Duration::from_micros(100));
        let mut b = Latencies::new();
        b.record(Duration::from_micros(900));
        a.merge(&b);
        assert!((99.0..=101.0).contains(&a.us(0.5)));
        assert!((890.0..=910.0).contains(&a.us(1.0)));
    }
}
