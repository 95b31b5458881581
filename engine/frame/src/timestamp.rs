//! Effective timestamps: the one function from header and record to the time that readers see. Spec: spec/frame.md §5.
//!
//! **Invariants**
//! - Never below the frame's floor, never falling within a frame (FRAME-13).
//! - With the cap, a sent timestamp after arrival counts as arrival; the floor is not capped.
//!
//! **Not here**: clocks, and whether a batch without timestamps is admitted.

/// Whose timestamp a record gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimestampMode {
    /// As sent, else arrival.
    #[default]
    ClientPrefer,
    /// As sent; the server refuses a batch that has a record without one.
    ClientRequire,
    /// Arrival, whatever was sent.
    Arrival,
}

impl TimestampMode {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::ClientPrefer => 0,
            Self::ClientRequire => 1,
            Self::Arrival => 2,
        }
    }

    pub(crate) fn of(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::ClientPrefer),
            1 => Some(Self::ClientRequire),
            2 => Some(Self::Arrival),
            _ => None,
        }
    }
}

/// A frame's timestamp fields: everything but the record that the effective timestamp depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampRule {
    /// Whose timestamp counts.
    pub mode: TimestampMode,
    /// Sent timestamps after arrival count as arrival.
    pub cap: bool,
    /// When the batch arrived, in milliseconds since the Unix epoch.
    pub arrival_ms: u64,
    /// Effective timestamp of the record before this frame: no record's is below it.
    pub floor_ms: u64,
}

impl TimestampRule {
    /// Effective timestamp of a record that was sent with `sent`, where `before_ms` is that of the record before it
    /// in the frame, or [`TimestampRule::floor_ms`] for the first.
    #[must_use]
    #[inline]
    pub fn effective_ms(&self, before_ms: u64, sent: Option<u64>) -> u64 {
        let chosen = match (self.mode, sent) {
            (TimestampMode::Arrival, _) | (_, None) => self.arrival_ms,
            (_, Some(sent)) if self.cap => sent.min(self.arrival_ms),
            (_, Some(sent)) => sent,
        };
        before_ms.max(chosen)
    }
}
