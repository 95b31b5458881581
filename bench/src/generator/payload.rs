//! Payload: random records, made before the clock starts.
//!
//! **Invariants**
//! - The same pool serves both sides of a comparison.
//! - No two payloads of a pool are alike (from 8 bytes on), and none can be compressed.
//!
//! **Not here**: how a target frames them.

use crate::prng::Prng;

/// Most payloads of a pool.
const PAYLOADS_MAX: usize = 4096;
/// Most bytes of a pool, unless two payloads alone are more.
const POOL_BYTES_MAX: usize = 64 << 20;
/// Length of a key, in letters and digits.
pub const KEY_BYTES: usize = 16;

/// A fixed set of payloads, handed out in turn.
pub struct PayloadPool {
    bytes: Vec<u8>,
    keys: Vec<[u8; KEY_BYTES]>,
    each: usize,
}

impl PayloadPool {
    /// Payloads of `record_bytes`.
    pub fn new(record_bytes: usize, seed: u64) -> Self {
        let each = record_bytes.max(1);
        let count = (POOL_BYTES_MAX / each).clamp(2, PAYLOADS_MAX);
        let mut prng = Prng::new(seed);
        let mut bytes = vec![0; each * count];
        prng.fill(&mut bytes);
        let key = |prng: &mut Prng| {
            let mut key = [0; KEY_BYTES];
            key.copy_from_slice(format!("{:016x}", prng.next_u64()).as_bytes());
            key
        };
        let keys = (0..count).map(|_| key(&mut prng)).collect();
        Self { bytes, keys, each }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Which payload append `number` of `client` takes: clients start apart.
    pub fn index_of(&self, client: usize, number: u64) -> u64 {
        number + client as u64 * 31
    }

    /// Payload number `n`, counted round and round.
    pub fn payload(&self, n: u64) -> &[u8] {
        let at = self.index(n) * self.each;
        &self.bytes[at..at + self.each]
    }

    /// The key that goes with it.
    pub fn key(&self, n: u64) -> &[u8] {
        &self.keys[self.index(n)]
    }

    fn index(&self, n: u64) -> usize {
        (n % self.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_of_a_pool_differ_and_come_round() {
        let pool = PayloadPool::new(100, 7);
        assert_eq!(pool.len(), PAYLOADS_MAX);
        let unlike: std::collections::BTreeSet<&[u8]> =
            (0..pool.len() as u64).map(|n| pool.payload(n)).collect();
        assert_eq!(unlike.len(), pool.len());
        assert_eq!(pool.payload(3), pool.payload(3 + pool.len() as u64));
        assert_eq!(pool.key(3).len(), KEY_BYTES);
    }

    #[test]
    fn payloads_of_one_seed_are_the_same_for_both_sides() {
        let (a, b) = (PayloadPool::new(1024, 7), PayloadPool::new(1024, 7));
        assert_eq!(a.payload(9), b.payload(9));
        assert_ne!(a.payload(9), PayloadPool::new(1024, 8).payload(9));
    }

    #[test]
    fn payload_pool_of_large_records_is_bounded() {
        assert_eq!(PayloadPool::new(1 << 20, 1).len(), 64);
        assert_eq!(PayloadPool::new(16 << 20, 1).len(), 4);
    }
}
