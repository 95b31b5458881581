//! Report: what a run of a scenario came to, and the sums over many.
//!
//! **Not here**: what is judged (`oracle`).

use crate::sim::Fault;
use std::fmt::Write as _;

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Batches sent.
    pub sent: usize,
    /// Batches acknowledged.
    pub acked: usize,
    /// Batches whose outcome clients never learnt.
    pub unknown: usize,
    /// Records read at the end.
    pub records: usize,
    /// Commits at the end.
    pub commits: usize,
    /// Whether a start found damage.
    pub corrupt: bool,
    /// Feeds that answered with an error after an object of theirs was damaged.
    pub rotten: usize,
    /// How often each fault fired, in the order of [`Fault::ALL`].
    pub fired: Vec<u64>,
    /// Digest of the trace.
    pub digest: u64,
}

impl Report {
    /// How often `fault` fired.
    #[must_use]
    pub fn fired(&self, fault: Fault) -> u64 {
        self.fired[fault as usize]
    }
}

/// Sums of all runs, to print: what was done and what went wrong on the way.
#[must_use]
pub fn totals(reports: &[Report]) -> String {
    let sum = |of: &dyn Fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let least = reports.iter().map(|r| r.sent).min().unwrap_or(0);
    let mut text = format!(
        "{} runs: {} batches sent ({least} at least), {} acknowledged, {} unknown, {} records, {} commits, {} feeds told of damage\n",
        reports.len(),
        sum(&|r| r.sent as u64),
        sum(&|r| r.acked as u64),
        sum(&|r| r.unknown as u64),
        sum(&|r| r.records as u64),
        sum(&|r| r.commits as u64),
        sum(&|r| r.rotten as u64),
    );
    for &fault in Fault::ALL {
        let _ = writeln!(text, "{:>20} {}", fault.name(), sum(&|r| r.fired(fault)));
    }
    text
}
