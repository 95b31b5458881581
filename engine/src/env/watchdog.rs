//! Watchdog: wakes a shard that sleeps through its work, and reports one that has stopped turning.
//!
//! On a busy machine the executor can be preempted between arming its timer and looking at its
//! queues; it then parks although tasks are runnable, and nothing of its own wakes it again. A wake
//! from outside does, so a silent shard is woken at every round long before it counts as stalled.
//!
//! **Invariants**
//! - It only reports, once per shard and stall; it never ends the process.
//! - It counts its own rounds, not clock time: a paused or suspended process is not a stall.
//! - Its thread ends when the last shard has.
//!
//! **Not here**: what a stall means (the caller poisons the shard).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::shards::ShardHooks;

/// A shard's sign of life.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    beats: AtomicU64,
    ended: AtomicBool,
    /// Wakes the heartbeat's task, and with it the executor.
    waker: Mutex<Option<Waker>>,
}

impl Heartbeat {
    /// The shard turned.
    pub(crate) fn tick(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Leaves the way to wake the shard. Called on the shard.
    pub(crate) fn register(&self, waker: &Waker) {
        *self.lock() = Some(waker.clone());
    }

    fn lock(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poke(&self) {
        if let Some(waker) = &*self.lock() {
            waker.wake_by_ref();
        }
    }

    /// The shard is over; silence is no stall. Called on the shard: its waker is dropped there.
    pub(crate) fn end(&self) {
        *self.lock() = None;
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Least rounds per stall limit: the limit is met within a tenth.
const ROUNDS_MIN: u32 = 10;
/// Longest round: a shard that sleeps through its work is woken within about two.
const ROUND_MAX: Duration = Duration::from_millis(50);
/// Rounds of silence after which a shard is woken; a healthy one beats more often.
const POKE_AFTER: u32 = 2;

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
                if *silent >= POKE_AFTER {
                    heartbeat.poke();
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
