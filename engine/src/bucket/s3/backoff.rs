//! Backoff: how long to wait before the next try, and when to give up.
//!
//! ```text
//!  wait = random part of min(cap, base * 2^n)      (full jitter)
//!  no less than what the store asked for; none beyond the patience
//! ```
//!
//! **Invariants**
//! - Waits are spread over the whole window, also at the cap: those that failed together do not come back
//!   together.
//! - A wait that the store asked for is never cut short: if it does not fit, the call fails.
//!
//! **Not here**: which failures are worth another try (`reply`).

use std::time::{Duration, Instant};

use super::reply::{Failure, Kind};
use crate::env::random_u64;

/// First window.
const BASE: Duration = Duration::from_millis(100);
/// Longest window.
const CAP: Duration = Duration::from_secs(5);

/// The tries of one call.
pub(super) struct Backoff {
    began: Instant,
    patience: Duration,
    tries: u32,
}

impl Backoff {
    /// Tries that end, unless one is under way, when `patience` has passed.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            began: Instant::now(),
            patience,
            tries: 0,
        }
    }

    /// Waits before the next try, or gives the failure back that ends the call.
    pub(super) async fn wait(&mut self, failure: Failure) -> Result<(), Failure> {
        if !matches!(failure.kind, Kind::Transient | Kind::Conflict) {
            return Err(failure);
        }
        let wait = wait_before(self.tries, failure.retry_after, random_u64());
        if self.began.elapsed() + wait > self.patience {
            return Err(failure);
        }
        self.tries += 1;
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// The wait after `tries` waits before it.
pub(super) fn wait_before(tries: u32, asked: Option<Duration>, random: u64) -> Duration {
    let window = BASE.saturating_mul(1 << tries.min(16)).min(CAP);
    let part = (random >> 11) as f64 / (1u64 << 53) as f64;
    let own = window.mul_f64(part);
    asked.unwrap_or_default() + own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_before_fills_its_window_and_no_more() {
        for (tries, window) in [(0, 100), (1, 200), (5, 3200), (6, 5000), (60, 5000)] {
            let most = wait_before(tries, None, u64::MAX);
            assert!(most <= Duration::from_millis(window), "{tries}: {most:?}");
            assert!(most >= Duration::from_millis(window * 99 / 100));
            assert_eq!(wait_before(tries, None, 0), Duration::ZERO);
        }
    }

    #[test]
    fn wait_before_never_less_than_what_was_asked_for() {
        let asked = Duration::from_secs(7);
        assert_eq!(wait_before(0, Some(asked), 0), asked);
        assert!(wait_before(9, Some(asked), u64::MAX) > asked);
    }
}
