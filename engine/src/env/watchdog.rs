//! Watchdog: notices a shard that has stopped turning.
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

use super::shards::ShardHooks;

/// A shard's sign of life.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    beats: AtomicU64,
    ended: AtomicBool,
}

impl Heartbeat {
    /// The shard turned.
    pub(crate) fn tick(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// The shard is over; silence is no stall.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Rounds per stall limit: the limit is met within a tenth.
const ROUNDS: u32 = 10;

/// Watches `heartbeats` (one per shard, by index) and calls [`ShardHooks::on_stall`] for a shard
/// without a beat for `limit`.
pub(crate) fn start(
    heartbeats: Vec<Arc<Heartbeat>>,
    limit: Duration,
    hooks: ShardHooks,
) -> io::Result<()> {
    let watch = move || {
        let mut seen = vec![(0u64, 0u32); heartbeats.len()];
        loop {
            std::thread::sleep(limit / ROUNDS);
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
                if *silent == ROUNDS {
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
