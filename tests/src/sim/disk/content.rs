//! Content: the bytes of a file, sparse, in shared blocks.
//!
//! **Invariants**
//! - Bytes beyond a block that exists are zero up to the length; nothing exists beyond the length.
//! - A clone shares its blocks until one side writes.
//!
//! **Not here**: what is durable.

use sealog_engine::env::BLOCK_BYTES;
use std::collections::BTreeMap;
use std::rc::Rc;

const BLOCK: u64 = BLOCK_BYTES as u64;
type Block = [u8; BLOCK_BYTES];

/// Bytes of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Content {
    blocks: BTreeMap<u64, Rc<Block>>,
    len: u64,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Blocks that take space.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Blocks that a write of `len` bytes at `offset` would add.
    pub(super) fn blocks_missing(&self, offset: u64, len: usize) -> u64 {
        let range = offset / BLOCK..(offset + len as u64).div_ceil(BLOCK);
        let there = self.blocks.range(range.clone()).count() as u64;
        (range.end - range.start) - there
    }

    /// Bytes of `offset..offset + len`, clamped to the length.
    pub(super) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let end = (offset.saturating_add(len as u64)).min(self.len);
        if offset >= end {
            return Vec::new();
        }
        let mut out = vec![0; to_usize(end - offset)];
        for (&number, block) in self.blocks.range(offset / BLOCK..end.div_ceil(BLOCK)) {
            let start = number * BLOCK;
            let from = start.max(offset);
            let to = (start + BLOCK).min(end);
            out[to_usize(from - offset)..to_usize(to - offset)]
                .copy_from_slice(&block[to_usize(from - start)..to_usize(to - start)]);
        }
        out
    }

    /// Writes `data` at `offset`, growing the file when it ends beyond it.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let inside = to_usize(at % BLOCK);
            let take = (BLOCK_BYTES - inside).min(rest.len());
            let block = self
                .blocks
                .entry(at / BLOCK)
                .or_insert_with(|| Rc::new([0; BLOCK_BYTES]));
            Rc::make_mut(block)[inside..inside + take].copy_from_slice(&rest[..take]);
            at += take as u64;
            rest = &rest[take..];
        }
        self.len = self.len.max(at);
    }

    /// Sets the length; what is cut off is gone, what is added is zero.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.blocks.split_off(&len.div_ceil(BLOCK));
            let inside = to_usize(len % BLOCK);
            if inside > 0
                && let Some(last) = self.blocks.get_mut(&(len / BLOCK))
            {
                Rc::make_mut(last)[inside..].fill(0);
            }
        }
        self.len = len;
    }

    /// Flips one bit of a block that exists: the `pick`-th byte of all such bytes.
    pub(super) fn flip(&mut self, pick: u64, bit: u32) -> Option<u64> {
        if self.blocks.is_empty() {
            return None;
        }
        let nth = to_usize((pick / BLOCK) % self.blocks.len() as u64);
        let inside = to_usize(pick % BLOCK);
        let (&number, block) = self.blocks.iter_mut().nth(nth)?;
        Rc::make_mut(block)[inside] ^= 1 << (bit % 8);
        Some(number * BLOCK + inside as u64)
    }

    /// Flips one bit at `offset`.
    pub(super) fn flip_at(&mut self, offset: u64, bit: u32) {
        if let Some(block) = self.blocks.get_mut(&(offset / BLOCK)) {
            Rc::make_mut(block)[to_usize(offset % BLOCK)] ^= 1 << (bit % 8);
        }
    }
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).expect("64-bit machines only")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::rng::Rng;

    #[test]
    fn content_matches_a_plain_vector() {
        let mut rng = Rng::derive(3, "content");
        let mut content = Content::default();
        let mut model: Vec<u8> = Vec::new();
        for _ in 0..2_000 {
            let offset = rng.index(40_000);
            if rng.below(5) == 0 {
                content.set_len(offset as u64);
                model.resize(offset, 0);
            } else {
                let len = rng.index(9_000);
                let data = rng.bytes(len);
                content.write(offset as u64, &data);
                if offset + data.len() > model.len() && !data.is_empty() {
                    model.resize(offset + data.len(), 0);
                }
                if !data.is_empty() {
                    model[offset..offset + data.len()].copy_from_slice(&data);
                }
            }
            let at = rng.index(45_000);
            let want = &model[at.min(model.len())..(at + 5_000).min(model.len())];
            assert_eq!(content.read(at as u64, 5_000), want);
        }
    }

    #[test]
    fn content_clone_is_independent() {
        let mut a = Content::default();
        a.write(0, &[1; 5000]);
        let b = a.clone();
        a.write(0, &[2; 10]);
        assert_eq!(b.read(0, 10), vec![1; 10]);
        assert_eq!(a.blocks(), 2);
    }
}
