//! Sys: clocks and chance, straight from the system.
//!
//! **Invariants**
//! - The monotonic clock never goes back and is the same for every thread of the process.
//!
//! **Not here**: files (`fs_ops`), probes (`preflight`).

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the first call in this process.
pub(crate) fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Milliseconds since the Unix epoch; 0 on a clock set before it.
pub(crate) fn realtime_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let ms = since.as_secs().saturating_mul(1000);
    ms.saturating_add(since.subsec_millis().into())
}

/// Eight bytes of the system's randomness.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the pointer and length describe `bytes`, which the call only writes.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if n == 8 {
        return u64::from_ne_bytes(bytes);
    }
    // Never seen on a kernel with io_uring; names of temporary files only need to differ.
    monotonic_ns().rotate_left(32) ^ realtime_ms() ^ u64::from(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_u64_drawn_twice_differs() {
        assert_ne!(random_u64(), random_u64());
    }

    #[test]
    fn monotonic_ns_called_twice_does_not_go_back() {
        let first = monotonic_ns();
        assert!(monotonic_ns() >= first);
    }
}
