//! BufPool: memory of buffers that are gone, for buffers to come: fresh memory costs as much as filling it.
//!
//! **Invariants**
//! - Whoever drops a buffer last, on whatever thread, gives its memory back.
//! - No more than `bufs_max` buffers are kept, none larger than two of the pool's size.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buf::{AlignedBuf, round_up};

struct Shelf {
    buf_bytes: usize,
    bufs_max: usize,
    free: Mutex<Vec<AlignedBuf>>,
}

/// A pool of buffers of one size. Clones share it.
#[derive(Clone)]
pub struct BufPool(Arc<Shelf>);

impl BufPool {
    /// A pool of buffers of `buf_bytes` that keeps up to `bufs_max` of them while they are not in use.
    #[must_use]
    pub fn new(buf_bytes: usize, bufs_max: usize) -> Self {
        Self(Arc::new(Shelf {
            buf_bytes: round_up(buf_bytes),
            bufs_max,
            free: Mutex::new(Vec::new()),
        }))
    }

    /// An empty buffer that can take `bytes` without growing; one larger than the pool's is not kept
    /// afterwards.
    #[must_use]
    pub fn take(&self, bytes: usize) -> AlignedBuf {
        let kept = match bytes <= self.0.buf_bytes {
            true => self.free().pop(),
            false => None,
        };
        let buf = kept.unwrap_or_else(|| AlignedBuf::with_capacity(bytes.max(self.0.buf_bytes)));
        buf.at_home(self.clone())
    }

    /// Gives what is not in use back to the system.
    pub fn clear(&self) {
        let freed = std::mem::take(&mut *self.free());
        drop(freed);
    }

    pub(super) fn put(&self, buf: AlignedBuf) {
        let kept = self.0.buf_bytes..=2 * self.0.buf_bytes;
        let mut free = self.free();
        if free.len() < self.0.bufs_max && kept.contains(&buf.capacity()) {
            free.push(buf);
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<AlignedBuf>> {
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner)
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
        let shared = Arc::new(first);
        let last = shared.clone();
        drop(shared);
        std::thread::spawn(move || drop(last)).join().unwrap();
        drop(second);
        let mut again = pool.take(8192);
        assert_eq!(again.as_ptr(), kept);
        assert!(again.is_empty() && again.capacity() == 8192);
        let other = pool.take(1);
        assert_ne!(other.as_ptr(), kept);
        again.reserve(100_000);
        assert_eq!(pool.free().len(), 1, "what it outgrew came back");
        pool.clear();
        drop(again);
        assert!(pool.free().is_empty(), "one that outgrew the pool is freed");
        drop(other);
        assert_eq!(pool.free().len(), 1);
        pool.clear();
        assert!(pool.free().is_empty());
    }
}
