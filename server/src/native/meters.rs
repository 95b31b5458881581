//! Meters: what the native front end of one shard counts. Names: `serve::metrics`.
//!
//! **Invariants**
//! - Only its shard writes, without locks and without locked instructions; anybody may read.
//! - What is counted as acknowledged was put on its way to the client.
//!
//! **Not here**: what logs and bucket count (the engine tells).

use std::sync::atomic::{AtomicU64, Ordering};

use sealog_engine::{AppendResult, Budget, Result};
use sealog_protocol::ErrorCode;

use super::refuse::code;

/// A number that one thread changes and others look at.
#[derive(Debug, Default)]
pub(crate) struct Meter(AtomicU64);

impl Meter {
    pub(super) fn add(&self, more: u64) {
        // A load and a store, not a locked addition: nobody else writes.
        self.set(self.get().wrapping_add(more));
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// What it stands at.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The meters of one shard.
pub(crate) struct Meters {
    /// Which shard.
    pub(crate) shard: usize,
    /// Connections there are.
    pub(crate) open: Meter,
    /// Connections there were, with these.
    pub(crate) accepted: Meter,
    /// Connections that were told to leave before they were welcomed.
    pub(crate) refused: Meter,
    /// Connections that did not take what others waited for the memory of.
    pub(crate) cut: Meter,
    /// Memory of records and pages on their way out.
    pub(crate) sending: Budget,
    /// Bytes of small answers and beginnings of messages.
    pub(crate) unreserved: Meter,
    /// Messages taken in, of every kind.
    pub(crate) requests: Meter,
    /// Their bytes.
    pub(crate) request_bytes: Meter,
    /// Batches acknowledged, duplicates among them.
    pub(crate) appends: Meter,
    /// Records of batches that were stored.
    pub(crate) records: Meter,
    /// Bytes of batches that were stored, as sent.
    pub(crate) append_bytes: Meter,
    /// Bytes of batches put on their way to readers.
    pub(crate) sent_bytes: Meter,
    /// In the order of [`ErrorCode::ALL`].
    refusals: Vec<Meter>,
}

impl Meters {
    pub(super) fn new(shard: usize, sending: Budget) -> Self {
        Self {
            shard,
            open: Meter::default(),
            accepted: Meter::default(),
            refused: Meter::default(),
            cut: Meter::default(),
            sending,
            unreserved: Meter::default(),
            requests: Meter::default(),
            request_bytes: Meter::default(),
            appends: Meter::default(),
            records: Meter::default(),
            append_bytes: Meter::default(),
            sent_bytes: Meter::default(),
            refusals: ErrorCode::ALL.iter().map(|_| Meter::default()).collect(),
        }
    }

    /// A request, or a connection, was answered with `code`.
    pub(super) fn refuse(&self, code: ErrorCode) {
        let index = ErrorCode::ALL.iter().position(|known| *known == code);
        if let Some(meter) = index.and_then(|index| self.refusals.get(index)) {
            meter.add(1);
        }
    }

    /// A batch that came in a message of `bytes` is answered with `result`.
    pub(super) fn appended(&self, result: &Result<AppendResult>, bytes: usize) {
        match result {
            Ok(appended) => {
                self.appends.add(1);
                if !appended.duplicate {
                    self.records.add(appended.record_count);
                    self.append_bytes.add(bytes as u64);
                }
            }
            Err(error) => self.refuse(code(error)),
        }
    }

    /// Codes that were answered with, and how often.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (ErrorCode, u64)> {
        let counts = self.refusals.iter().map(Meter::get);
        ErrorCode::ALL
            .iter()
            .copied()
            .zip(counts)
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_by_code() {
        let meters = Meters::new(0, Budget::new(1));
        for code in [ErrorCode::Fenced, ErrorCode::TimedOut, ErrorCode::Fenced] {
            meters.refuse(code);
        }
        let told: Vec<_> = meters.refusals().collect();
        assert_eq!(told, [(ErrorCode::Fenced, 2), (ErrorCode::TimedOut, 1)]);
    }
}
