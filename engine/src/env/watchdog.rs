//! Watchdog: nudges a shard that sleeps through its work, and reports one that has stopped turning.
//!
//! On a busy machine the executor can be preempted between arming its timer and looking at its
//! queues; it then parks although tasks are runnable, even before its first task has run, and nothing
//! of its own wakes it again. A silent shard is therefore nudged at every round, long before it counts
//! as stalled.
//!
//! **Invariants**
//! - It only reports, once per shard and stall; it never ends the process.
//! - It counts its own rounds, not clock time: a paused or suspended process is not a stall.
//! - Its thread ends when the last shard has.
//!
//! **Not here**: what a stall means (the caller poisons the shard).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::nudge::NudgeTarget;
use super::shards::ShardHooks;

/// A shard's sign of life.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    beats: AtomicU64,
    ended: AtomicBool,
    thread: NudgeTarget,
}

impl Heartbeat {
    /// The shard turned.
    pub(crate) fn tick(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// The calling thread is the shard's. Called before the executor runs.
    pub(crate) fn begin(&self) {
        self.thread.enter();
    }

    /// The shard is over; silence is no stall.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Least rounds per stall limit: the limit is met within a tenth.
const ROUNDS_MIN: u32 = 10;
/// Longest round: a shard that sleeps through its work is nudged within about two.
const ROUND_MAX: Duration = Duration::from_millis(50);
/// Rounds of silence after which a shard is nudged; a healthy one beats more often.
const NUDGE_AFTER: u32 = 2;

/// Watches `heartbeats` (one per shard, by index) and calls [`ShardHooks::on_stall`] for a shard
/// without a beat for `limit`.
pub(crate) fn start(
    heartbeats: Vec<Arc<Heartbeat>>,
    limit: Duration,
    hooks: ShardHooks,
) -> io::Result<()> {
    let round = (limit / ROUNDS_MIN)
        .min(ROUND_MAX)
        .max(Duration::from_millis(1));
    let rounds = u32::try_from(limit.as_nanos() / round.as_nanos()).unwrap_or(u32::MAX);
    let watch = move || {
        let mut seen = vec![(0u64, 0u32); heartbeats.len()];
        loop {
            std::thread::sleep(round);
            let mut alive = false;
            for (shard, heartbeat) in heartbeats.iter().enumerate() {
                if heartbeat.ended.load(Ordering::Relaxed) {
                    continue;
                }
                alive = true;
                let beats = heartbeat.beats.load(Ordering::Relaxed);
                let (last, silent) = &mut seen[shard];
                if *last != beats {
                    (*last, *silent) = (beats, 0);
                    continue;
                }
                *silent = silent.saturating_add(1);
                if *silent >= NUDGE_AFTER {
                    heartbeat.thread.nudge();
                }
                if *silent == rounds {
                    hooks.stalled(shard);
                }
            }
            if !alive {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("sealog-watchdog".to_owned())
        .stack_size(128 * 1024)
        .spawn(watch)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn start_with_a_shard_that_waits_in_the_kernel_nudges_it_and_reports_the_stall_once() {
        let heartbeat = Arc::new(Heartbeat::default());
        let stalls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&stalls);
        let hooks = ShardHooks {
            on_panic: Arc::new(|_, _, _| {}),
            on_stall: Arc::new(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
            }),
        };
        let shard = Arc::clone(&heartbeat);
        let waiter = std::thread::spawn(move || {
            shard.begin();
            // Far more nudges than the rounds of a stall.
            for _ in 0..30 {
                // SAFETY: waits on no descriptors, without a limit.
                unsafe { libc::poll(std::ptr::null_mut(), 0, -1) };
            }
            shard.end();
        });
        start(vec![heartbeat], Duration::from_millis(20), hooks).expect("a thread");
        waiter.join().expect("nudged out of every wait");
        assert_eq!(stalls.load(Ordering::Relaxed), 1);
    }
}
