//! BufPool: memory of buffers that are gone, for buffers to come: fresh memory costs as much as filling it.
//!
//! **Invariants**
//! - Whoever drops a buffer last, on whatever thread, gives its memory back.
//! - No more than so many bytes are kept, in buffers of the pool's sizes.
//! - A buffer given out is not much larger than was asked for, or than the pool's smallest.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buf::{AlignedBuf, BLOCK_BYTES, round_up};

/// Kept buffers looked at for one that fits: the newest, of the sizes asked for lately.
const LOOKS_MAX: usize = 16;

struct Shelf {
    /// Of the buffers that are kept.
    sizes: RangeInclusive<usize>,
    bytes_max: usize,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// The newest is the last.
    bufs: VecDeque<AlignedBuf>,
    bytes: usize,
}

/// A pool of buffers. Clones share it.
#[derive(Clone)]
pub struct BufPool(Arc<Shelf>);

impl BufPool {
    /// A pool of buffers of `buf_bytes` that keeps up to `bufs_max` of them while they are not in use.
    #[must_use]
    pub fn new(buf_bytes: usize, bufs_max: usize) -> Self {
        let buf_bytes = round_up(buf_bytes);
        Self::of_sizes(buf_bytes..=2 * buf_bytes, buf_bytes * bufs_max)
    }

    /// A pool of buffers of any size up to `buf_bytes_max`, that keeps up to `bytes_max` of them.
    #[must_use]
    pub fn mixed(buf_bytes_max: usize, bytes_max: usize) -> Self {
        Self::of_sizes(BLOCK_BYTES..=round_up(buf_bytes_max), bytes_max)
    }

    fn of_sizes(sizes: RangeInclusive<usize>, bytes_max: usize) -> Self {
        Self(Arc::new(Shelf {
            sizes,
            bytes_max,
            free: Mutex::default(),
        }))
    }

    /// An empty buffer that can take `bytes` without growing; one larger than the pool's is not kept
    /// afterwards.
    #[must_use]
    pub fn take(&self, bytes: usize) -> AlignedBuf {
        let least = bytes.max(*self.0.sizes.start());
        let most = (least + least / 2).max(2 * self.0.sizes.start());
        let buf = self.free().take(least..=most);
        let buf = buf.unwrap_or_else(|| AlignedBuf::with_capacity(least));
        buf.at_home(self.clone())
    }

    /// Gives what is not in use back to the system.
    pub fn clear(&self) {
        let freed = std::mem::take(&mut *self.free());
        drop(freed);
    }

    /// Bytes that are kept.
    #[cfg(test)]
    fn kept(&self) -> usize {
        self.free().bytes
    }

    pub(super) fn put(&self, buf: AlignedBuf) {
        let bytes = buf.capacity();
        if !self.0.sizes.contains(&bytes) || bytes > self.0.bytes_max {
            return;
        }
        let freed = self.free().put(buf, self.0.bytes_max);
        drop(freed);
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Free {
    fn take(&mut self, fits: RangeInclusive<usize>) -> Option<AlignedBuf> {
        let looks = self.bufs.iter().rev().take(LOOKS_MAX);
        let back = looks
            .map(AlignedBuf::capacity)
            .position(|bytes| fits.contains(&bytes))?;
        let buf = self.bufs.remove(self.bufs.len() - 1 - back)?;
        self.bytes -= buf.capacity();
        Some(buf)
    }

    /// Keeps `buf`; those that have lain there longest, there is no room for any more.
    fn put(&mut self, buf: AlignedBuf, bytes_max: usize) -> Vec<AlignedBuf> {
        self.bytes += buf.capacity();
        self.bufs.push_back(buf);
        let mut freed = Vec::new();
        while self.bytes > bytes_max
            && let Some(oldest) = self.bufs.pop_front()
        {
            self.bytes -= oldest.capacity();
            freed.push(oldest);
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_pool_gives_the_memory_of_a_dropped_buffer_out_again() {
        let pool = BufPool::new(8192, 1);
        let (first, second) = (pool.take(10), pool.take(10));
        let kept = first.as_ptr();
        drop(second);
        let shared = Arc::new(first);
        let last = shared.clone();
        drop(shared);
        std::thread::spawn(move || drop(last)).join().unwrap();
        let mut again = pool.take(8192);
        assert_eq!(again.as_ptr(), kept);
        assert!(again.is_empty() && again.capacity() == 8192);
        let other = pool.take(1);
        assert_ne!(other.as_ptr(), kept);
        again.reserve(100_000);
        assert_eq!(pool.kept(), 8192, "what it outgrew came back");
        pool.clear();
        drop(again);
        assert_eq!(pool.kept(), 0, "one that outgrew the pool is freed");
        drop(other);
        assert_eq!(pool.kept(), 8192);
        pool.clear();
        assert_eq!(pool.kept(), 0);
    }

    #[test]
    fn unit_mixed_pool_gives_out_what_fits_and_lets_go_of_what_nobody_asks_for() {
        let pool = BufPool::mixed(64 << 10, 96 << 10);
        let kept = |bytes| {
            let buf = pool.take(bytes);
            (buf.as_ptr(), buf.capacity())
        };
        let (small, large) = (kept(5_000), kept(40_000));
        assert_eq!((small.1, large.1), (8_192, 40_960));
        assert_eq!(kept(6_000), small);
        assert_eq!(kept(33_000), large);
        assert_ne!(kept(20_000), large, "it is too large for that");
        assert_eq!(pool.kept(), 8_192 + 40_960 + 20_480);
        drop(pool.take(64 << 10));
        assert_eq!(pool.kept(), 20_480 + (64 << 10), "the oldest went");
        drop(pool.take(65 << 10));
        assert_eq!(
            pool.kept(),
            20_480 + (64 << 10),
            "one that is too large is not kept"
        );
    }
}
