//! Files: how many descriptors the process may have.
//!
//! **Invariants**
//! - The soft limit is raised as far as the hard one allows, never lowered: a shell's usual 1,024 would
//!   end a server of 10,000 connections long before its own limit does.
//!
//! **Not here**: the limit on connections (`native`).

use std::num::NonZero;
use std::thread::available_parallelism;

use rlimit::Resource;
use tracing::{info, warn};

use crate::native::OPENING_MAX;

/// What logs, cache and bucket need besides connections.
const OWN: u64 = 512;

/// Raises the limit; says so when it is less than `shards` (0: one per CPU) with `connections_max` each
/// may need.
pub(super) fn allow(shards: usize, connections_max: usize) {
    let shards = match shards {
        0 => available_parallelism().map_or(1, NonZero::get),
        shards => shards,
    };
    let connections = shards.saturating_mul(connections_max + OPENING_MAX) as u64;
    let raised = Resource::NOFILE.get().and_then(|(soft, hard)| {
        Resource::NOFILE.set(hard, hard)?;
        Ok((soft, hard))
    });
    let needed = connections.saturating_add(OWN);
    match raised {
        Ok((_, hard)) if hard < needed => {
            warn!(
                limit = hard,
                needed, "descriptors may run out before connections_max is met"
            );
        }
        Ok((soft, hard)) => info!(before = soft, now = hard, "descriptors"),
        Err(error) => warn!(%error, "the limit on descriptors stays as it is"),
    }
}
