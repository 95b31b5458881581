//! Merkle: the streaming SHA-256 tree whose root stands for every record of a section. Spec: spec/pack.md §6.
//!
//! **Invariants**
//! - PACK-11: leaves are prefixed with 0x00 and inner nodes with 0x01, so neither can pass for the other;
//!   the shape is the left-complete tree of RFC 6962.
//! - PACK-12: a record's leaf names its sequence and everything of it but its place in a frame.
//! - The state is one hash per set bit of the leaf count: at most 64.
//!
//! **Not here**: inclusion proofs; nothing asks for them yet.

use crate::codec::{DecodeError, Reader, Writer};
use sha2::{Digest as _, Sha256};

const LEAF_PREFIX: [u8; 1] = [0];
const NODE_PREFIX: [u8; 1] = [1];

/// A tree that grows leaf by leaf and can be put aside between two leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merkle {
    leaves: u64,
    /// Roots of the complete subtrees, largest first; one per set bit of `leaves`.
    peaks: Vec<[u8; 32]>,
}

impl Merkle {
    /// A tree without leaves.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the hash of a leaf, as [`leaf_hash`] or [`record_leaf`] gives it.
    pub fn push_leaf(&mut self, leaf: [u8; 32]) {
        let mut node = leaf;
        for _ in 0..self.leaves.trailing_ones() {
            if let Some(left) = self.peaks.pop() {
                node = node_hash(&left, &node);
            }
        }
        self.peaks.push(node);
        self.leaves += 1;
    }

    /// How many leaves were pushed.
    #[must_use]
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// The root over the leaves so far; SHA-256 of nothing when there are none.
    #[must_use]
    pub fn root(&self) -> [u8; 32] {
        let mut peaks = self.peaks.iter().rev();
        let Some(last) = peaks.next() else {
            return Sha256::digest([]).into();
        };
        peaks.fold(*last, |right, left| node_hash(left, &right))
    }

    /// The partial state: the leaf count, then one hash per set bit of it.
    pub fn encode(&self, out: &mut Writer) {
        out.u64(self.leaves);
        for peak in &self.peaks {
            out.raw(peak);
        }
    }

    /// Takes a partial state off `bytes`.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when hashes are missing.
    pub fn decode(bytes: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let leaves = bytes.u64()?;
        let mut peaks = Vec::new();
        for _ in 0..leaves.count_ones() {
            peaks.push(bytes.array()?);
        }
        Ok(Self { leaves, peaks })
    }
}

/// The leaf that stands for `data`.
#[must_use]
pub fn leaf_hash(data: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(LEAF_PREFIX);
    hash.update(data);
    hash.finalize().into()
}

fn node_hash(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(NODE_PREFIX);
    hash.update(left);
    hash.update(right);
    hash.finalize().into()
}

/// The parts of a record that its leaf covers.
#[derive(Debug, Clone, Copy)]
pub struct RecordParts<'a> {
    /// Position in the feed.
    pub sequence: u64,
    /// The record's entry in the frame's table, as stored.
    pub entry: &'a [u8; 32],
    /// Its area up to the payload: key, headers and the fingerprint if it was supplied.
    pub meta: &'a [u8],
    /// Length of the payload in bytes.
    pub payload_bytes: usize,
    /// SHA-256 of the payload: the payload is hashed once, for the leaf and for the fingerprint.
    pub payload_digest: &'a [u8; 32],
}

/// The leaf of a record: the table entry's `data_end` is replaced by the length of the record's
/// area, so that the leaf does not depend on which records share the frame.
#[must_use]
pub fn record_leaf(parts: &RecordParts<'_>) -> [u8; 32] {
    let area = u32::try_from(parts.meta.len() + parts.payload_bytes).unwrap_or(u32::MAX);
    let mut hash = Sha256::new();
    hash.update(LEAF_PREFIX);
    hash.update(parts.sequence.to_le_bytes());
    hash.update(area.to_le_bytes());
    hash.update(&parts.entry[4..]);
    hash.update(parts.meta);
    hash.update(parts.payload_digest);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// RFC 6962's own definition: split at the largest power of two below the count.
    fn model(leaves: &[[u8; 32]]) -> [u8; 32] {
        match leaves {
            [] => Sha256::digest([]).into(),
            [one] => *one,
            _ => {
                let half = leaves.len().next_power_of_two() / 2;
                let (left, right) = leaves.split_at(half);
                node_hash(&model(left), &model(right))
            }
        }
    }

    #[test]
    fn exhaustive_root_equals_recursive_definition() {
        let mut leaves = Vec::new();
        let mut tree = Merkle::new();
        for n in 0u64..200 {
            assert_eq!(tree.root(), model(&leaves), "{n} leaves");
            assert_eq!(tree.peaks.len() as u32, n.count_ones());
            let leaf = leaf_hash(&n.to_le_bytes());
            leaves.push(leaf);
            tree.push_leaf(leaf);
        }
    }

    #[test]
    fn leaf_hash_matches_published_vectors() {
        // Test vectors of Certificate Transparency: the empty leaf and the empty tree.
        let hex = |bytes: [u8; 32]| crate::ids::Digest(bytes).to_string();
        assert_eq!(
            hex(leaf_hash(b"")),
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
        );
        assert_eq!(
            hex(Merkle::new().root()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn roundtrip_partial_state_continues_the_same_tree() {
        for cut in 0..40u64 {
            let mut tree = Merkle::new();
            (0..cut).for_each(|n| tree.push_leaf(leaf_hash(&n.to_le_bytes())));
            let mut out = Writer::new();
            tree.encode(&mut out);
            let mut reader = Reader(&out.0);
            let mut resumed = Merkle::decode(&mut reader).unwrap();
            reader.finish().unwrap();
            for n in cut..cut + 9 {
                tree.push_leaf(leaf_hash(&n.to_le_bytes()));
                resumed.push_leaf(leaf_hash(&n.to_le_bytes()));
            }
            assert_eq!(tree.root(), resumed.root());
        }
        assert!(Merkle::decode(&mut Reader(&u64::MAX.to_le_bytes())).is_err());
    }

    #[test]
    fn record_leaf_ignores_data_end_and_nothing_else() {
        let digest = [7u8; 32];
        let parts = |sequence, entry: &'static [u8; 32], meta: &'static [u8]| {
            record_leaf(&RecordParts {
                sequence,
                entry,
                meta,
                payload_bytes: 5,
                payload_digest: &digest,
            })
        };
        static ENTRY: [u8; 32] = [1; 32];
        static MOVED: [u8; 32] = {
            let mut e = [1; 32];
            e[0] = 99;
            e
        };
        static OTHER: [u8; 32] = {
            let mut e = [1; 32];
            e[31] = 2;
            e
        };
        let base = parts(4, &ENTRY, b"key");
        assert_eq!(base, parts(4, &MOVED, b"key"));
        assert_ne!(base, parts(5, &ENTRY, b"key"));
        assert_ne!(base, parts(4, &OTHER, b"key"));
        assert_ne!(base, parts(4, &ENTRY, b"kex"));
    }
}
