//! Refused: tells the log of connections that were refused, however many there are.
//!
//! **Invariants**
//! - At most one line per [`INTERVAL`] and shard; the next one says how many went unsaid.
//! - What a client sent is not repeated, only what it came to.
//!
//! **Not here**: why (`reader`, `pulse`).

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use tracing::warn;

/// Between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// Refused connections of one shard.
#[derive(Default)]
pub(super) struct Refused {
    said_ns: Cell<Option<u64>>,
    unsaid: Cell<u64>,
}

impl Refused {
    /// A connection of `peer` was refused.
    pub(super) fn note(&self, now_ns: u64, peer: Option<SocketAddr>, reason: &str) {
        let Some(unsaid) = self.due(now_ns) else {
            return;
        };
        let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
        warn!(peer, unsaid, "connection refused: {reason}");
    }

    /// Whether to say so: how many went unsaid before.
    fn due(&self, now_ns: u64) -> Option<u64> {
        let said = self.said_ns.get();
        let wait_ns = INTERVAL.as_nanos();
        if said.is_some_and(|said| u128::from(now_ns.saturating_sub(said)) < wait_ns) {
            self.unsaid.set(self.unsaid.get() + 1);
            return None;
        }
        self.said_ns.set(Some(now_ns));
        Some(self.unsaid.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_once_per_interval_and_counts_the_rest() {
        let refused = Refused::default();
        let second = 1_000_000_000;
        let due: Vec<_> = [5, 6, second, second + 5, second + 6, 9 * second]
            .map(|now_ns| refused.due(now_ns))
            .into();
        assert_eq!(due, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
