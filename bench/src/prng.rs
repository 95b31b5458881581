//! Prng: repeatable bytes that no disk or cache can compress.
//!
//! **Invariants**
//! - The same seed gives the same bytes on every machine.
//!
//! **Not here**: anything that must not be guessed.

/// A SplitMix64 generator.
pub struct Prng(u64);

impl Prng {
    /// A generator that starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prng_same_seed_gives_same_bytes() {
        let (mut a, mut b) = ([0; 37], [0; 37]);
        Prng::new(7).fill(&mut a);
        Prng::new(7).fill(&mut b);
        assert_eq!(a, b);
        Prng::new(8).fill(&mut b);
        assert_ne!(a, b);
    }
}
