//! Pace: how far the lane's reading is behind the log, and how the log gives way to it.
//! Spec: spec/wal.md §11.
//!
//! ```text
//!  read by the lane ---- in memory, not read ---- durable end
//!                   |<----------- window ------->|   beyond it, the log gives way
//! ```
//!
//! **Invariants**
//! - LANE-1: a group waits no longer than [`TURNS`] times what the group before it took.
//! - Nothing waits for a lane that is not at work, or whose bucket is on another disk.
//!
//! **Not here**: the bound on the log (`space`).

use std::cell::Cell;
use std::time::Duration;

use crate::sync::Event;

/// Longest a group gives way, in times of what the one before took: the log keeps a quarter of the disk.
pub(crate) const TURNS: u32 = 3;

/// The lane's place in its log.
pub(crate) struct Pace {
    /// The lane has read everything before this log offset.
    read_to: Cell<u64>,
    /// Log that the cache holds for the lane.
    window: u64,
    gives_way: Cell<bool>,
    /// The lane wants to hear of it when the log is durable up to here.
    due_at: Cell<u64>,
    due: Event,
    moved: Event,
    /// What the last group took from submission to durability.
    commit: Cell<Duration>,
}

impl Pace {
    pub(crate) fn new(cache_bytes: usize, read_to: u64) -> Self {
        Self {
            read_to: Cell::new(read_to),
            window: cache_bytes as u64 / 4 * 3,
            gives_way: Cell::new(false),
            due_at: Cell::new(u64::MAX),
            due: Event::new(),
            moved: Event::new(),
            commit: Cell::new(Duration::ZERO),
        }
    }

    /// The lane has read up to log offset `to`.
    pub(crate) fn read(&self, to: u64) {
        self.read_to.set(to);
        self.moved.notify();
    }

    /// Whether groups give way from now on.
    pub(crate) fn give_way(&self, gives_way: bool) {
        self.gives_way.set(gives_way);
        self.moved.notify();
    }

    /// Notifies [`Pace::due`] once, when the log is durable up to `offset`.
    pub(crate) fn call_at(&self, offset: u64) {
        self.due_at.set(offset);
    }

    /// Notified when there is enough to read.
    pub(crate) fn due(&self) -> &Event {
        &self.due
    }

    /// Notified when the lane read on, or stopped.
    pub(super) fn moved(&self) -> &Event {
        &self.moved
    }

    /// The log is durable up to `end`.
    pub(super) fn durable(&self, end: u64) {
        if end >= self.due_at.get() {
            self.due_at.set(u64::MAX);
            self.due.notify();
        }
    }

    /// A group took `commit` from submission to durability.
    pub(super) fn committed(&self, commit: Duration) {
        self.commit.set(commit);
    }

    /// How long the next group gives way at most; `None` when it need not.
    pub(super) fn patience(&self, durable_end: u64) -> Option<Duration> {
        let behind = durable_end.saturating_sub(self.read_to.get()) > self.window;
        (self.gives_way.get() && behind).then(|| self.commit.get() * TURNS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_pace_gives_way_only_to_a_lane_at_work_that_is_behind() {
        let pace = Pace::new(400, 1000);
        pace.committed(Duration::from_millis(2));
        assert_eq!(pace.patience(1_301), None, "not at work");
        pace.give_way(true);
        assert_eq!(pace.patience(1_300), None, "within the window");
        assert_eq!(pace.patience(1_301), Some(Duration::from_millis(6)));
        pace.read(1_001);
        assert_eq!(pace.patience(1_301), None, "caught up");
        pace.give_way(false);
        assert_eq!(pace.patience(9_999), None, "stopped");
    }
}
