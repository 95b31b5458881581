//! Files: how many descriptors the process may have.
//!
//! **Invariants**
//! - The soft limit is raised as far as the hard one allows, never lowered: a shell's usual 1,024 would
//!   end a server of 10,000 connections long before its own limit does.
//!
//! **Not here**: the limit on connections (`native`).

use rlimit::Resource;
use tracing::{info, warn};

use crate::native::OPENING_MAX;

/// What logs, cache and bucket need besides connections.
const OWN: u64 = 512;

/// Raises the limit.
pub(super) fn raise() {
    let raised = Resource::NOFILE.get().and_then(|(soft, hard)| {
        Resource::NOFILE.set(hard, hard)?;
        Ok((soft, hard))
    });
    match raised {
        Ok((soft, hard)) => info!(before = soft, now = hard, "descriptors"),
        Err(error) => warn!(%error, "the limit on descriptors stays as it is"),
    }
}

/// Says so when the limit is less than `shards` with `connections_max` each may need.
pub(super) fn check(shards: usize, connections_max: usize) {
    let connections = shards.saturating_mul(connections_max.saturating_add(OPENING_MAX)) as u64;
    let needed = connections.saturating_add(OWN);
    match Resource::NOFILE.get() {
        Ok((limit, _)) if limit < needed => {
            warn!(
                limit,
                needed, "descriptors may run out before connections_max is met"
            );
        }
        _ => {}
    }
}
