//! Alone: whether a group is committed on the shard's own thread, which then does nothing else.
//!
//! ```text
//!  threads: shard -> wakes a thread -> write and sync -> wakes the shard      the shard works meanwhile
//!  alone:   shard -> write and sync                                           saves two wakes
//! ```
//!
//! **Invariants**
//! - Only a small group with none in flight, on a device that answered quickly last time, on a shard
//!   that has been idle for most of the time since.
//! - What the device took on the shard's thread does not count as work of the shard.
//!
//! **Not here**: the commit itself (`env`); how many groups are in flight (`log`).

use std::cell::Cell;
use std::time::Duration;

use crate::env::BLOCK_BYTES;

/// Largest group.
const BYTES_MAX: usize = BLOCK_BYTES;
/// Longest last commit: what the shard stands still for is about as long.
const QUICK: Duration = Duration::from_micros(500);
/// Most of its time beside commits that the shard may have been at work, in percent. A turn of the
/// executor costs as much as a client's way there and back: one client alone makes 60.
const BUSY_MAX: u64 = 85;
/// Decisions over which the time at work is averaged.
const MEMORY: u64 = 8;
/// What one decision adds at most: a quiet hour must not outweigh what comes after it.
const PASSED_MAX: u64 = 10_000_000;

/// A shard's clocks, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clocks {
    /// Time that has passed.
    pub now: u64,
    /// Time that the shard was at work, commits on its own thread included.
    pub busy: u64,
}

/// What the decision for the next group depends on.
#[derive(Default)]
pub(crate) struct Alone {
    /// The last commit was quick.
    quick: Cell<bool>,
    /// Clocks at the last decision.
    seen: Cell<Clocks>,
    /// Nanoseconds of commits on the shard's thread since then.
    stood: Cell<u64>,
    /// Nanoseconds at work and beside commits, in all; older ones count less and less.
    worked: Cell<u64>,
    passed: Cell<u64>,
}

impl Alone {
    /// Whether a group of `bytes`, with no other in flight, may be committed on the shard's thread.
    pub(super) fn may(&self, bytes: usize, clocks: Clocks) -> bool {
        let seen = self.seen.replace(clocks);
        let passed = clocks.now.saturating_sub(seen.now);
        let stood = self.stood.replace(0).min(passed);
        let worked = clocks.busy.saturating_sub(seen.busy).saturating_sub(stood);
        let add = |sum: &Cell<u64>, new: u64| {
            let kept = sum.get() - sum.get() / MEMORY;
            sum.set(kept.saturating_add(new));
            sum.get()
        };
        let passed = passed - stood;
        let worked = match passed > PASSED_MAX {
            true => (u128::from(worked) * u128::from(PASSED_MAX) / u128::from(passed)) as u64,
            false => worked,
        };
        let worked = add(&self.worked, worked);
        let passed = add(&self.passed, passed.min(PASSED_MAX));
        let idle = worked.saturating_mul(100) <= passed.saturating_mul(BUSY_MAX);
        bytes <= BYTES_MAX && self.quick.get() && idle
    }

    /// A group took so long, on the shard's thread or elsewhere.
    pub(super) fn committed(&self, took: Duration, alone: bool) {
        self.quick.set(took <= QUICK);
        if alone {
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            self.stood.set(self.stood.get().saturating_add(took));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(now: u64, busy: u64) -> Clocks {
        Clocks { now, busy }
    }

    fn quick() -> Alone {
        let alone = Alone::default();
        assert!(!alone.may(1, at(0, 0)), "nothing is known of the device");
        alone.committed(QUICK, false);
        alone
    }

    #[test]
    fn unit_small_group_on_idle_shard_and_quick_device_is_committed_alone() {
        assert!(quick().may(BYTES_MAX, at(MS, MS * 85 / 100)));
    }

    #[test]
    fn unit_large_group_or_slow_device_or_busy_shard_is_not() {
        assert!(!quick().may(BYTES_MAX + 1, at(MS, 0)));
        assert!(!quick().may(BYTES_MAX, at(MS, MS * 86 / 100)));
        let slow = quick();
        slow.committed(QUICK + Duration::from_nanos(1), true);
        assert!(!slow.may(1, at(MS, 0)));
        slow.committed(QUICK, false);
        assert!(slow.may(1, at(2 * MS, 0)), "until it is quick again");
    }

    #[test]
    fn unit_time_spent_in_commits_alone_is_not_work() {
        let alone = quick();
        assert!(alone.may(1, at(MS, 0)));
        alone.committed(Duration::from_micros(500), true);
        // Half of the next millisecond was the commit, 0.3 ms of the rest were work.
        assert!(alone.may(1, at(2 * MS, MS * 8 / 10)));
        for turn in 3..20 {
            // From now on all of it is work: the commit counts once.
            let busy = MS * 8 / 10 + (turn - 2) * MS;
            if !alone.may(1, at(turn * MS, busy)) {
                return;
            }
        }
        panic!("a shard without rest commits alone");
    }

    #[test]
    fn unit_a_quiet_hour_is_soon_forgotten() {
        let alone = quick();
        let hour = 3_600_000 * MS;
        assert!(alone.may(1, at(hour, 0)));
        let full = |turn: u64| alone.may(1, at(hour + turn * 10 * MS, turn * 10 * MS));
        assert!(!(1..20).all(full), "a shard without rest commits alone");
    }

    #[test]
    fn unit_one_busy_moment_does_not_end_it() {
        let alone = quick();
        for turn in 1..20 {
            assert!(alone.may(1, at(turn * MS, turn * MS / 2)));
        }
        assert!(
            alone.may(1, at(20 * MS, 19 * MS / 2 + MS)),
            "one turn full of work"
        );
    }
}
