//! Filter: tells of most absent keys that they are absent, without reading a block. Spec: spec/key-index.md §3.
//!
//! **Invariants**
//! - KEYS-5: a key that was added is never said to be absent.
//! - All bits of a key lie in one block of 64 bytes.
//! - The hash is derived from SHA-256: a writer that chooses keys cannot aim at the filter cheaply.
//!
//! **Not here**: where the filter lies in its object (`index`).

use crate::codec::DecodeError;
use crate::pack::layout::invalid;
use sha2::{Digest as _, Sha256};

/// All bits of a key lie in one of these.
pub const FILTER_BLOCK_BYTES: usize = 64;
/// Beyond this the filter gets less sharp instead of larger.
pub const FILTER_BYTES_MAX: usize = 16 << 20;
const BITS_PER_KEY: u64 = 10;
/// Bits set per key.
const PROBES: u32 = 7;
const BLOCK_BITS: u64 = FILTER_BLOCK_BYTES as u64 * 8;
const _: () = assert!(FILTER_BYTES_MAX.is_multiple_of(FILTER_BLOCK_BYTES));

/// A blocked Bloom filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFilter {
    bits: Vec<u8>,
}

impl KeyFilter {
    /// An empty filter for up to `keys` keys: at about 1 % false answers, 10 bits per key.
    #[must_use]
    pub fn for_keys(keys: u64) -> Self {
        let blocks_max = (FILTER_BYTES_MAX / FILTER_BLOCK_BYTES) as u64;
        let blocks = keys.saturating_mul(BITS_PER_KEY).div_ceil(BLOCK_BITS);
        let blocks = blocks.clamp(1, blocks_max) as usize;
        Self {
            bits: vec![0; blocks * FILTER_BLOCK_BYTES],
        }
    }

    /// A filter of stored bytes; the caller checked their checksum.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] unless the length is a number of whole blocks, at least one.
    pub fn from_bytes(bits: Vec<u8>) -> Result<Self, DecodeError> {
        let whole = bits.len().is_multiple_of(FILTER_BLOCK_BYTES);
        if bits.is_empty() || !whole || bits.len() > FILTER_BYTES_MAX {
            return Err(invalid("filter_bytes", bits.len() as u64));
        }
        Ok(Self { bits })
    }

    /// The stored bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bits
    }

    /// Adds a key.
    pub fn add(&mut self, key: &[u8]) {
        let (block, probes) = self.place(key);
        for bit in bits_of(probes) {
            self.bits[block + bit / 8] |= 1 << (bit % 8);
        }
    }

    /// `false` when the key was certainly not added.
    #[must_use]
    pub fn may_hold(&self, key: &[u8]) -> bool {
        let (block, probes) = self.place(key);
        bits_of(probes).all(|bit| self.bits[block + bit / 8] & (1 << (bit % 8)) != 0)
    }

    /// Offset of the key's block, and the number whose 9-bit digits are its bits.
    fn place(&self, key: &[u8]) -> (usize, u64) {
        let hash: [u8; 32] = Sha256::digest(key).into();
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&hash[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let blocks = (self.bits.len() / FILTER_BLOCK_BYTES) as u128;
        let block = (u128::from(word(0)) * blocks) >> 64;
        (block as usize * FILTER_BLOCK_BYTES, word(8))
    }
}

fn bits_of(probes: u64) -> impl Iterator<Item = usize> {
    (0..PROBES).map(move |n| ((probes >> (9 * n)) % BLOCK_BITS) as usize)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn may_hold_added_keys_always_others_rarely() {
        let mut filter = KeyFilter::for_keys(10_000);
        (0..10_000u32).for_each(|n| filter.add(&n.to_le_bytes()));
        assert!((0..10_000u32).all(|n| filter.may_hold(&n.to_le_bytes())));
        let others = (10_000..110_000u32).filter(|n| filter.may_hold(&n.to_le_bytes()));
        let wrong = others.count();
        assert!(wrong < 3_000, "{wrong} of 100,000");
    }

    #[test]
    fn for_keys_size_is_ten_bits_per_key_within_bounds() {
        assert_eq!(KeyFilter::for_keys(0).bits.len(), FILTER_BLOCK_BYTES);
        assert_eq!(KeyFilter::for_keys(512).bits.len(), 640);
        assert_eq!(KeyFilter::for_keys(u64::MAX).bits.len(), FILTER_BYTES_MAX);
    }

    #[test]
    fn from_bytes_partial_blocks_are_refused() {
        assert!(KeyFilter::from_bytes(vec![]).is_err());
        assert!(KeyFilter::from_bytes(vec![0; 63]).is_err());
        let filter = KeyFilter::from_bytes(vec![0; 64]).unwrap();
        assert!(!filter.may_hold(b""));
    }
}
