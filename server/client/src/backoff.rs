//! Back-off: how long to wait before the next try, so that a herd of clients spreads.
//!
//! **Invariants**
//! - Full jitter, applied after the cap: also at the cap, waits are spread over all of `0..cap`. Jitter
//!   before the cap would line up every client that has reached it.
//!
//! **Not here**: what is worth a retry ([`Error::is_retryable`](crate::Error::is_retryable)).

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

/// How long, and how often, the client tries again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first wait is random between 0 and this; it doubles with each try: 50 ms.
    pub base: Duration,
    /// No wait is longer than this: 5 s.
    pub cap: Duration,
    /// Tries in a row without success before the client gives up; `None`: only the time counts.
    pub attempts_max: Option<u32>,
    /// Time without success before the client gives up: 2 minutes.
    pub elapsed_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(50),
            cap: Duration::from_secs(5),
            attempts_max: None,
            elapsed_max: Duration::from_secs(120),
        }
    }
}

impl RetryPolicy {
    /// Nothing is tried twice.
    #[must_use]
    pub fn never() -> Self {
        Self {
            attempts_max: Some(1),
            ..Self::default()
        }
    }

    /// The longest wait before try `attempt` (from 0).
    #[must_use]
    pub fn ceiling(&self, attempt: u32) -> Duration {
        let factor = 1_u32.checked_shl(attempt).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.cap)
    }

    /// The wait before try `attempt`, for `random` drawn from all of u64.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: u64) -> Duration {
        let ceiling = u64::try_from(self.ceiling(attempt).as_nanos()).unwrap_or(u64::MAX);
        let nanos = (u128::from(ceiling) * u128::from(random)) >> 64;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Tries in a row, held against a policy.
#[derive(Debug)]
pub(crate) struct Tries {
    policy: RetryPolicy,
    began: Instant,
    failed: u32,
}

impl Tries {
    pub(crate) fn new(policy: RetryPolicy) -> Self {
        Self {
            policy,
            began: Instant::now(),
            failed: 0,
        }
    }

    /// Something succeeded: what fails from here on is counted anew.
    pub(crate) fn restart(&mut self) {
        self.began = Instant::now();
        self.failed = 0;
    }

    /// When the time is up.
    pub(crate) fn end(&self) -> Instant {
        self.began + self.policy.elapsed_max
    }

    /// Counts a failure; the wait before the next try, or `None` when there is none to be.
    pub(crate) fn after(&mut self, error: &Error) -> Option<Duration> {
        let attempt = self.failed;
        self.failed += 1;
        if self
            .policy
            .attempts_max
            .is_some_and(|max| self.failed >= max)
        {
            return None;
        }
        let delay = self
            .policy
            .delay(attempt, random())
            .max(error.retry_after());
        (Instant::now() + delay < self.end()).then_some(delay)
    }
}

/// From the system; where it has none to give, of the clock: jitter must not fail.
pub(crate) fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        let now = std::time::SystemTime::now();
        let since = now
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        u64::from(since.subsec_nanos()).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 1_000;

    /// `DRAWS` numbers evenly over all of u64: what 1,000 clients draw, without chance.
    fn herd(policy: &RetryPolicy, attempt: u32) -> Vec<Duration> {
        let step = u64::MAX / DRAWS;
        (0..DRAWS)
            .map(|i| policy.delay(attempt, i * step))
            .collect()
    }

    #[test]
    fn delay_spreads_a_herd_over_the_whole_window_also_at_the_cap() {
        let policy = RetryPolicy::default();
        for attempt in [0, 1, 5, 6, 7, 20, 31, 32, 1_000] {
            let ceiling = policy.ceiling(attempt);
            let mut tenths = [0; 10];
            for delay in herd(&policy, attempt) {
                assert!(delay < ceiling);
                let tenth = delay.as_nanos() * 10 / ceiling.as_nanos();
                tenths[usize::try_from(tenth).unwrap()] += 1;
            }
            for count in tenths {
                assert!((90..=110).contains(&count), "attempt {attempt}: {tenths:?}");
            }
        }
    }

    #[test]
    fn ceiling_doubles_up_to_the_cap() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.ceiling(0), Duration::from_millis(50));
        assert_eq!(policy.ceiling(1), Duration::from_millis(100));
        assert_eq!(policy.ceiling(6), Duration::from_millis(3_200));
        for attempt in [7, 8, 31, 32, 33, u32::MAX] {
            assert_eq!(policy.ceiling(attempt), policy.cap);
        }
    }

    #[test]
    fn random_draws_differ() {
        let draws: std::collections::BTreeSet<u64> = (0..100).map(|_| random()).collect();
        assert_eq!(draws.len(), 100);
    }

    #[test]
    fn tries_end_at_the_limit_and_begin_anew() {
        let policy = RetryPolicy {
            base: Duration::ZERO,
            attempts_max: Some(3),
            ..RetryPolicy::default()
        };
        let error = Error::disconnected("");
        let mut tries = Tries::new(policy);
        let counted =
            |tries: &mut Tries| (0..5).take_while(|_| tries.after(&error).is_some()).count();
        assert_eq!(counted(&mut tries), 2);
        tries.restart();
        assert_eq!(counted(&mut tries), 2);
        let mut none = Tries::new(RetryPolicy::never());
        assert!(none.after(&error).is_none());
    }
}
