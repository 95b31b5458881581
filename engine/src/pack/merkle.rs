//! Merkle: the streaming SHA-256 tree whose root stands for every record of a section. Spec: spec/pack.md §5.
//!
//! **Invariants**
//! - PACK-11: the first byte of what is hashed tells leaves from inner nodes, so neither can pass for the other.
//! - PACK-12: a record's leaf names its sequence and everything of it but its place in a frame; its payload by digest.
//! - Memory: at most [`FAN_OUT`] hashes per level, of which there are at most 16.
//!
//! **Not here**: inclusion proofs; nothing asks for them yet.

use sha2::{Digest as _, Sha256};

/// Children of a full inner node. With two, the nodes would cost as much as the leaves of small records.
pub const FAN_OUT: usize = 16;

const LEAF_PREFIX: u8 = 0;
const NODE_PREFIX: u8 = 0xff;
const HASH_BYTES: usize = 32;

/// What a record's leaf begins with: the flags of its table entry, and which of these fields follow.
const HAS_KEY: u8 = 8;
const HAS_HEADERS: u8 = 16;
const HAS_VERSION: u8 = 32;
/// TOMBSTONE, TIMESTAMP and FINGERPRINT, as in the table entry.
const ENTRY_FLAGS: u8 = 7;
const TIMESTAMP: u8 = 2;
const NO_KEY: [u8; 4] = [0xff; 4];
/// Longest head of a leaf: tag, sequence, payload digest, lengths of key and headers, timestamp, version.
const HEAD_BYTES_MAX: usize = 1 + 8 + HASH_BYTES + 4 + 4 + 8 + 8;
/// Leads up to this size are put together with the head first: hashing in pieces costs half as much again.
const COPIED_BYTES_MAX: usize = 192 - HEAD_BYTES_MAX;

/// A tree that grows leaf by leaf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merkle {
    leaves: u64,
    /// Per level, from the leaves up, the open node: its prefix and its children so far.
    levels: Vec<Vec<u8>>,
}

impl Merkle {
    /// A tree without leaves.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the hash of a leaf, as [`leaf_hash`] or [`record_leaf`] gives it.
    pub fn push_leaf(&mut self, leaf: [u8; HASH_BYTES]) {
        self.leaves += 1;
        let mut child = leaf;
        for level in &mut self.levels {
            level.extend_from_slice(&child);
            if level.len() < 1 + FAN_OUT * HASH_BYTES {
                return;
            }
            child = Sha256::digest(&level[..]).into();
            level.truncate(1);
        }
        self.levels.push(open_node(&child));
    }

    /// How many leaves were pushed.
    #[must_use]
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// The root over the leaves so far; SHA-256 of nothing when there are none.
    #[must_use]
    pub fn root(&self) -> [u8; HASH_BYTES] {
        let mut last: Option<[u8; HASH_BYTES]> = None;
        for level in &self.levels {
            let mut node = level.clone();
            node.extend_from_slice(last.as_ref().map_or(&[], |child| &child[..]));
            last = match &node[1..] {
                [] => None,
                children => match <[u8; HASH_BYTES]>::try_from(children) {
                    Ok(only) => Some(only),
                    Err(_) => Some(Sha256::digest(&node).into()),
                },
            };
        }
        last.unwrap_or_else(|| Sha256::digest([]).into())
    }
}

fn open_node(child: &[u8; HASH_BYTES]) -> Vec<u8> {
    let mut node = Vec::with_capacity(1 + FAN_OUT * HASH_BYTES);
    node.push(NODE_PREFIX);
    node.extend_from_slice(child);
    node
}

/// The leaf that stands for `data`.
#[must_use]
pub fn leaf_hash(data: &[u8]) -> [u8; HASH_BYTES] {
    let mut hash = Sha256::new();
    hash.update([LEAF_PREFIX]);
    hash.update(data);
    hash.finalize().into()
}

/// The leaf of a record: its sequence, its payload's digest, its table entry without `data_end` (so
/// that the leaf does not depend on which records share the frame) and without fields that say
/// nothing, and its lead: what its area holds before the payload. Records are many: what is left out
/// here lets the leaf of most fit one block of SHA-256.
#[must_use]
pub fn record_leaf(
    sequence: u64,
    payload: &[u8; HASH_BYTES],
    entry: &[u8; 32],
    lead: &[u8],
) -> [u8; HASH_BYTES] {
    let (key_bytes, headers_bytes) = (&entry[4..8], &entry[8..12]);
    let (timestamp, version) = (&entry[16..24], &entry[24..32]);
    let mut head = Head {
        bytes: [0; HEAD_BYTES_MAX + COPIED_BYTES_MAX],
        len: 1,
    };
    head.bytes[0] = entry[12] & ENTRY_FLAGS;
    head.field(0, true, &sequence.to_le_bytes());
    head.field(0, true, payload);
    head.field(HAS_KEY, *key_bytes != NO_KEY, key_bytes);
    head.field(HAS_HEADERS, *headers_bytes != [0; 4], headers_bytes);
    let timestamped = head.bytes[0] & TIMESTAMP != 0;
    head.field(0, timestamped, timestamp);
    head.field(HAS_VERSION, *version != [0; 8], version);
    if lead.len() <= COPIED_BYTES_MAX {
        head.field(0, true, lead);
        return Sha256::digest(&head.bytes[..head.len]).into();
    }
    let mut hash = Sha256::new();
    hash.update(&head.bytes[..head.len]);
    hash.update(lead);
    hash.finalize().into()
}

struct Head {
    bytes: [u8; HEAD_BYTES_MAX + COPIED_BYTES_MAX],
    len: usize,
}

impl Head {
    #[inline]
    fn field(&mut self, tag: u8, present: bool, bytes: &[u8]) {
        if present {
            self.bytes[0] |= tag;
            self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The tree's own definition: level by level, sixteen at a time; a node alone is carried up.
    fn model(leaves: &[[u8; 32]]) -> [u8; 32] {
        let node = |children: &[[u8; 32]]| match children {
            [only] => *only,
            _ => Sha256::digest([&[0xff], children.as_flattened()].concat()).into(),
        };
        match leaves {
            [] => Sha256::digest([]).into(),
            [one] => *one,
            _ => model(&leaves.chunks(16).map(node).collect::<Vec<_>>()),
        }
    }

    #[test]
    fn exhaustive_root_equals_definition_level_by_level() {
        let mut leaves = Vec::new();
        let mut tree = Merkle::new();
        for n in 0u64..4_400 {
            if n < 600 || n % 16 < 2 || n % 256 < 2 {
                assert_eq!(tree.root(), model(&leaves), "{n} leaves");
            }
            let leaf = leaf_hash(&n.to_le_bytes());
            leaves.push(leaf);
            tree.push_leaf(leaf);
            assert_eq!(tree.leaves(), n + 1);
        }
        assert!(tree.levels.iter().all(|node| node.len() < 1 + FAN_OUT * 32));
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

    /// An entry as a frame has it.
    fn entry(key: Option<u32>, headers: u32, flags: u32, timestamp: u64, version: i64) -> [u8; 32] {
        let mut entry = [0; 32];
        entry[0..4].copy_from_slice(&77u32.to_le_bytes());
        entry[4..8].copy_from_slice(&key.unwrap_or(u32::MAX).to_le_bytes());
        entry[8..12].copy_from_slice(&headers.to_le_bytes());
        entry[12..16].copy_from_slice(&flags.to_le_bytes());
        entry[16..24].copy_from_slice(&timestamp.to_le_bytes());
        entry[24..32].copy_from_slice(&version.to_le_bytes());
        entry
    }

    const PAYLOAD: [u8; 32] = [0xda; 32];

    #[test]
    fn record_leaf_hashes_the_fields_that_say_something() {
        let none = record_leaf(4, &PAYLOAD, &entry(None, 0, 0, 0, 0), b"");
        let input = [&[0], &4u64.to_le_bytes()[..], &PAYLOAD].concat();
        assert_eq!(none[..], Sha256::digest(&input)[..]);
        assert!(input.len() <= 55, "one block of SHA-256");
        let all = record_leaf(4, &PAYLOAD, &entry(Some(3), 9, 7, 5, -1), b"lead");
        let (three, nine) = (3u32.to_le_bytes(), 9u32.to_le_bytes());
        let (four, five) = (4u64.to_le_bytes(), 5u64.to_le_bytes());
        let parts: [&[u8]; 8] = [
            &[63],
            &four,
            &PAYLOAD,
            &three,
            &nine,
            &five,
            &[0xff; 8],
            b"lead",
        ];
        assert_eq!(all[..], Sha256::digest(parts.concat())[..]);
    }

    #[test]
    fn record_leaf_is_the_same_on_both_sides_of_the_copy_limit() {
        let entry = entry(Some(3), 9, 7, 5, -1);
        for len in [0, COPIED_BYTES_MAX, COPIED_BYTES_MAX + 1, 1_000] {
            let lead: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let head = [
                &[63][..],
                &4u64.to_le_bytes(),
                &PAYLOAD,
                &entry[4..12],
                &entry[16..32],
            ]
            .concat();
            let expected = Sha256::digest([head, lead.clone()].concat());
            let found = record_leaf(4, &PAYLOAD, &entry, &lead);
            assert_eq!(found[..], expected[..], "{len}");
        }
    }

    #[test]
    fn record_leaf_ignores_data_end_and_nothing_else() {
        let base = entry(Some(1), 0, 2, 0, 6);
        let leaf = record_leaf(4, &PAYLOAD, &base, b"k");
        let mut moved = base;
        moved[..4].fill(9);
        assert_eq!(record_leaf(4, &PAYLOAD, &moved, b"k"), leaf);
        assert_ne!(record_leaf(5, &PAYLOAD, &base, b"k"), leaf);
        assert_ne!(record_leaf(4, &[0xdb; 32], &base, b"k"), leaf);
        assert_ne!(record_leaf(4, &PAYLOAD, &base, b"l"), leaf);
        assert_ne!(record_leaf(4, &PAYLOAD, &base, b""), leaf);
        for other in [
            entry(None, 0, 2, 0, 6),
            entry(Some(0), 0, 2, 0, 6),
            entry(Some(1), 1, 2, 0, 6),
            entry(Some(1), 0, 3, 0, 6),
            entry(Some(1), 0, 0, 0, 6),
            entry(Some(1), 0, 2, 1, 6),
            entry(Some(1), 0, 2, 0, 0),
            entry(Some(1), 0, 2, 0, -6),
        ] {
            assert_ne!(record_leaf(4, &PAYLOAD, &other, b"k"), leaf, "{other:?}");
        }
    }
}
