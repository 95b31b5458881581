//! Merkle: the streaming SHA-256 tree whose root stands for every record of a section. Spec: spec/pack.md §5.
//!
//! **Invariants**
//! - PACK-11: the first byte of what is hashed tells leaves, nodes over leaves and nodes over nodes apart, so none
//!   can pass for another.
//! - PACK-12: a record's leaf names its sequence and everything of it but its place in a frame; its payload by digest.
//! - Memory: at most [`FAN_OUT`] hashes per level, of which there are at most 16.
//!
//! **Not here**: inclusion proofs; nothing asks for them yet.

use sha2::{Digest as _, Sha256};

/// Children of a full inner node. With two, the nodes would cost as much as the leaves of small records.
pub const FAN_OUT: usize = 16;

const LEAF_PREFIX: u8 = 0;
const NODE_PREFIX: u8 = 0xff;
const LEAF_NODE_PREFIX: u8 = 0xfe;
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

/// Longest leaf that a node takes in as it is: hashing it first would cost a block and a call.
const LEAF_BYTES_MAX: usize = 55;

/// A leaf as the node over it has it: what it stands for if that is short, else the hash of that.
#[derive(Debug, Clone, Copy)]
pub struct Leaf {
    bytes: [u8; LEAF_BYTES_MAX],
    len: u8,
}

impl Leaf {
    fn of_hash(hash: [u8; HASH_BYTES]) -> Self {
        Self::short(&hash).expect("a hash is short")
    }

    /// `input` itself, if it is short enough.
    fn short(input: &[u8]) -> Option<Self> {
        let len = u8::try_from(input.len()).ok()?;
        let mut bytes = [0; LEAF_BYTES_MAX];
        bytes.get_mut(..input.len())?.copy_from_slice(input);
        Some(Self { bytes, len })
    }
}

impl AsRef<[u8]> for Leaf {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A tree that grows leaf by leaf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merkle {
    leaves: u64,
    /// The open node over leaves: its prefix, and per leaf its length and bytes. Empty without a leaf.
    open: Vec<u8>,
    /// Per level, from the nodes over leaves up, the open node: its prefix and its children so far.
    levels: Vec<Vec<u8>>,
}

impl Merkle {
    /// A tree without leaves.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a leaf, as [`leaf_hash`] or [`record_leaf`] gives it.
    pub fn push_leaf(&mut self, leaf: Leaf) {
        if self.open.is_empty() {
            self.open.push(LEAF_NODE_PREFIX);
        }
        self.open.push(leaf.len);
        self.open.extend_from_slice(leaf.as_ref());
        self.leaves += 1;
        if self.leaves.is_multiple_of(FAN_OUT as u64) {
            let node = Sha256::digest(&self.open).into();
            self.open.clear();
            self.push_node(node);
        }
    }

    fn push_node(&mut self, node: [u8; HASH_BYTES]) {
        let mut child = node;
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
        let open = !self.open.is_empty();
        let mut last: Option<[u8; HASH_BYTES]> = open.then(|| Sha256::digest(&self.open).into());
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
pub fn leaf_hash(data: &[u8]) -> Leaf {
    let mut hash = Sha256::new();
    hash.update([LEAF_PREFIX]);
    hash.update(data);
    Leaf::of_hash(hash.finalize().into())
}

/// The leaf of a record: its sequence, its payload's digest, its table entry without `data_end` (so
/// that the leaf does not depend on which records share the frame) and without fields that say
/// nothing, and its lead: what its area holds before the payload. Records are many: what is left out
/// here lets the leaf of most go into the node over it without being hashed.
#[must_use]
pub fn record_leaf(
    sequence: u64,
    payload: &[u8; HASH_BYTES],
    entry: &[u8; 32],
    lead: &[u8],
) -> Leaf {
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
        let input = &head.bytes[..head.len];
        return Leaf::short(input).unwrap_or_else(|| Leaf::of_hash(Sha256::digest(input).into()));
    }
    let mut hash = Sha256::new();
    hash.update(&head.bytes[..head.len]);
    hash.update(lead);
    Leaf::of_hash(hash.finalize().into())
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

    /// The tree's own definition: leaves by sixteen, then level by level; a node alone is carried up.
    fn model(leaves: &[Leaf]) -> [u8; 32] {
        let bottom = |leaves: &[Leaf]| {
            let framed = |leaf: &Leaf| [&[leaf.len], leaf.as_ref()].concat();
            let all: Vec<u8> = leaves.iter().flat_map(framed).collect();
            Sha256::digest([&[0xfe], &all[..]].concat()).into()
        };
        let mut level: Vec<[u8; 32]> = leaves.chunks(16).map(bottom).collect();
        let node = |children: &[[u8; 32]]| match children {
            [only] => *only,
            _ => Sha256::digest([&[0xff], children.as_flattened()].concat()).into(),
        };
        while level.len() > 1 {
            level = level.chunks(16).map(node).collect();
        }
        level.pop().unwrap_or_else(|| Sha256::digest([]).into())
    }

    #[test]
    fn exhaustive_root_equals_definition_level_by_level() {
        let mut leaves = Vec::new();
        let mut tree = Merkle::new();
        for n in 0u64..4_400 {
            if n < 600 || n % 16 < 2 || n % 256 < 2 {
                assert_eq!(tree.root(), model(&leaves), "{n} leaves");
            }
            let leaf = match n % 3 {
                0 => leaf_hash(&n.to_le_bytes()),
                _ => Leaf::short(&n.to_le_bytes()[..(n % 5) as usize]).unwrap(),
            };
            leaves.push(leaf);
            tree.push_leaf(leaf);
            assert_eq!(tree.leaves(), n + 1);
        }
        assert!(tree.levels.iter().all(|node| node.len() < 1 + FAN_OUT * 32));
    }

    #[test]
    fn leaf_hash_matches_published_vectors() {
        // Test vectors of Certificate Transparency: the empty leaf and the empty tree.
        let hex = |bytes: &[u8]| crate::ids::Digest(bytes.try_into().unwrap()).to_string();
        assert_eq!(
            hex(leaf_hash(b"").as_ref()),
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
        );
        assert_eq!(
            hex(&Merkle::new().root()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn leaf_short_is_taken_as_it_is_up_to_the_limit() {
        assert!(Leaf::short(&[1; LEAF_BYTES_MAX + 1]).is_none());
        assert_eq!(Leaf::short(&[1; LEAF_BYTES_MAX]).unwrap().as_ref(), [1; 55]);
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
        assert_eq!(none.as_ref(), input, "short: taken as it is");
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
        assert_eq!(all.as_ref(), &Sha256::digest(parts.concat())[..]);
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
            assert_eq!(found.as_ref(), &expected[..], "{len}");
        }
    }

    #[test]
    fn record_leaf_ignores_data_end_and_nothing_else() {
        let leaf_of = |sequence, payload: [u8; 32], entry: &[u8; 32], lead: &[u8]| {
            record_leaf(sequence, &payload, entry, lead)
                .as_ref()
                .to_vec()
        };
        let base = entry(Some(1), 0, 2, 0, 6);
        let leaf = leaf_of(4, PAYLOAD, &base, b"k");
        let mut moved = base;
        moved[..4].fill(9);
        assert_eq!(leaf_of(4, PAYLOAD, &moved, b"k"), leaf);
        assert_ne!(leaf_of(5, PAYLOAD, &base, b"k"), leaf);
        assert_ne!(leaf_of(4, [0xdb; 32], &base, b"k"), leaf);
        assert_ne!(leaf_of(4, PAYLOAD, &base, b"l"), leaf);
        assert_ne!(leaf_of(4, PAYLOAD, &base, b""), leaf);
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
            assert_ne!(leaf_of(4, PAYLOAD, &other, b"k"), leaf, "{other:?}");
        }
    }
}
