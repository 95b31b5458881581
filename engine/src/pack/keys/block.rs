//! Key block: a checksummed stretch of sorted key entries. Spec: spec/key-index.md §2.
//!
//! **Invariants**
//! - KEYS-3: keys rise strictly within a block, and from block to block of a run or an index.
//! - The header's checksum is checked before its length is believed.
//! - A block ends at a multiple of eight bytes; the padding is zero.
//!
//! **Not here**: which blocks form a run (`merge`) or an index (`index`).

use super::{KEY_BYTES_MAX, KeyState};
use crate::codec::{DecodeError, Reader, Writer};
use crate::pack::layout::{self, align, invalid, truncated};

/// First four bytes of a key block.
pub const KEY_BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"SLKB");
/// Bytes of a block's header.
pub const KEY_BLOCK_HEADER_BYTES: usize = 32;
/// A block is closed when the next entry would take it beyond this.
pub const KEY_BLOCK_BYTES_TARGET: usize = 64 * 1024;
/// Bytes of an entry before its key.
const ENTRY_BYTES: usize = 24;
/// No block is longer: one entry with the longest key, or several within the target.
pub const KEY_BLOCK_BYTES_MAX: usize =
    KEY_BLOCK_HEADER_BYTES + ENTRY_BYTES + KEY_BYTES_MAX + layout::ALIGN;
const _: () = assert!(KEY_BLOCK_BYTES_TARGET <= KEY_BLOCK_BYTES_MAX);

const FLAG_TOMBSTONE: u32 = 1;
const HEADER_CRC_AT: usize = 16;

/// Collects entries of one block.
#[derive(Debug)]
pub(crate) struct KeyBlockBuilder {
    body: Writer,
    entries: u32,
    target: usize,
}

impl KeyBlockBuilder {
    /// An empty block that is full at `target` bytes.
    pub fn new(target: usize) -> Self {
        Self {
            body: Writer::new(),
            entries: 0,
            target: target.min(KEY_BLOCK_BYTES_TARGET),
        }
    }

    /// Whether `key` belongs into the next block.
    pub fn is_full_for(&self, key: &[u8]) -> bool {
        let bytes = KEY_BLOCK_HEADER_BYTES + self.body.0.len() + ENTRY_BYTES + key.len();
        self.entries > 0 && align(bytes) > self.target
    }

    /// Appends an entry; the caller keeps the order and the length limit.
    pub fn push(&mut self, key: &[u8], state: KeyState) {
        let flags = if state.tombstone { FLAG_TOMBSTONE } else { 0 };
        self.body.u32(layout::stored_u32(key.len())).u32(flags);
        self.body.i64(state.version).u64(state.sequence);
        self.body.raw(key);
        self.entries += 1;
    }

    /// Whether it holds no entry.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Bytes of memory in use.
    pub fn buffered_bytes(&self) -> usize {
        self.body.0.capacity()
    }

    /// Seals the block and begins the next; `None` when it is empty.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        if self.entries == 0 {
            return None;
        }
        let body_bytes = align(self.body.0.len());
        self.body.0.resize(body_bytes, 0);
        let mut out = Writer::new();
        out.u32(KEY_BLOCK_MAGIC);
        out.u32(layout::stored_u32(KEY_BLOCK_HEADER_BYTES + body_bytes));
        out.u32(self.entries).u32(crc32c::crc32c(&self.body.0));
        out.u32(0).raw(&[0; 12]);
        layout::seal(&mut out.0, HEADER_CRC_AT);
        out.raw(&self.body.0);
        self.body.0.clear();
        self.entries = 0;
        Some(out.0)
    }
}

/// Length of the key block that begins with `header`, which holds at least the header.
///
/// # Errors
/// [`DecodeError`] when this is no key block or its header is damaged.
pub fn peek_key_block_bytes(header: &[u8]) -> Result<usize, DecodeError> {
    let short = truncated(KEY_BLOCK_HEADER_BYTES, header.len());
    let header = header.get(..KEY_BLOCK_HEADER_BYTES).ok_or(short)?;
    let magic = layout::u32_at(header, 0)?;
    if magic != KEY_BLOCK_MAGIC {
        return Err(DecodeError::Magic {
            format: "key block",
            found: magic.into(),
        });
    }
    layout::check_crc("key block header", header, HEADER_CRC_AT)?;
    layout::zero("reserved", &header[20..])?;
    let bytes = layout::u32_at(header, 4)? as usize;
    let bounds = KEY_BLOCK_HEADER_BYTES..=KEY_BLOCK_BYTES_MAX;
    if !bounds.contains(&bytes) || !bytes.is_multiple_of(layout::ALIGN) {
        return Err(invalid("block_bytes", bytes as u64));
    }
    Ok(bytes)
}

/// A whole, checked key block.
#[derive(Debug, Clone, Copy)]
pub struct KeyBlock<'a> {
    entries: u32,
    body: &'a [u8],
}

impl<'a> KeyBlock<'a> {
    /// Checks the block at the front of `bytes` and gives what follows it.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when the block goes on beyond `bytes`; any other when it is damaged.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let len = peek_key_block_bytes(bytes)?;
        let (block, rest) = bytes
            .split_at_checked(len)
            .ok_or(truncated(len, bytes.len()))?;
        let body = &block[KEY_BLOCK_HEADER_BYTES..];
        let (stored, computed) = (layout::u32_at(block, 12)?, crc32c::crc32c(body));
        if stored != computed {
            return Err(DecodeError::Checksum {
                what: "key block body",
                stored,
                computed,
            });
        }
        let view = Self {
            entries: layout::u32_at(block, 8)?,
            body,
        };
        view.check()?;
        Ok((view, rest))
    }

    /// How many keys it holds; at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries as usize
    }

    /// Never: an empty block is not written and not accepted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The entries in key order.
    pub fn entries(&self) -> impl Iterator<Item = (&'a [u8], KeyState)> + use<'a> {
        let mut r = Reader(self.body);
        (0..self.entries).map_while(move |_| take_entry(&mut r).ok())
    }

    /// The newest record of `key`.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<KeyState> {
        let mut reached = self.entries().skip_while(|(found, _)| *found < key);
        reached
            .next()
            .and_then(|(found, state)| (found == key).then_some(state))
    }

    fn check(&self) -> Result<(), DecodeError> {
        if self.entries == 0 {
            return Err(invalid("entry_count", 0));
        }
        let mut r = Reader(self.body);
        let mut last: Option<&[u8]> = None;
        for n in 0..self.entries {
            let (key, _) = take_entry(&mut r)?;
            if last.is_some_and(|last| last >= key) {
                return Err(invalid("key order", n.into()));
            }
            last = Some(key);
        }
        if r.0.len() >= layout::ALIGN {
            return Err(invalid("padding", r.0.len() as u64));
        }
        layout::zero("padding", r.0)
    }
}

fn take_entry<'a>(r: &mut Reader<'a>) -> Result<(&'a [u8], KeyState), DecodeError> {
    let key_bytes = r.u32()? as usize;
    let flags = r.u32()?;
    if flags & !FLAG_TOMBSTONE != 0 {
        return Err(invalid("flags", flags.into()));
    }
    let state = KeyState {
        version: r.i64()?,
        sequence: r.u64()?,
        tombstone: flags & FLAG_TOMBSTONE != 0,
    };
    if key_bytes > KEY_BYTES_MAX {
        return Err(invalid("key_bytes", key_bytes as u64));
    }
    Ok((r.raw(key_bytes)?, state))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::KeyEntry;
    use super::*;

    fn entry(key: &[u8], version: i64) -> KeyEntry {
        KeyEntry {
            key: key.to_vec(),
            state: KeyState {
                version,
                sequence: 7,
                tombstone: version < 0,
            },
        }
    }

    fn block(entries: &[KeyEntry]) -> Vec<u8> {
        let mut builder = KeyBlockBuilder::new(KEY_BLOCK_BYTES_TARGET);
        entries
            .iter()
            .for_each(|entry| builder.push(&entry.key, entry.state));
        builder.finish().unwrap()
    }

    #[test]
    fn roundtrip_key_block_with_empty_and_longest_key() {
        let longest = vec![0xff; KEY_BYTES_MAX];
        for keys in [
            vec![&b""[..]],
            vec![b"", b"a", b"ab", b"b\0"],
            vec![&longest],
        ] {
            let entries: Vec<_> = keys.iter().zip(-1..).map(|(k, v)| entry(k, v)).collect();
            let bytes = [block(&entries), b"rest".to_vec()].concat();
            let (view, rest) = KeyBlock::parse(&bytes).unwrap();
            assert_eq!(rest, b"rest");
            assert_eq!(view.len(), entries.len());
            let back: Vec<_> = view
                .entries()
                .map(|(key, state)| KeyEntry {
                    key: key.to_vec(),
                    state,
                })
                .collect();
            assert_eq!(back, entries);
            for entry in &entries {
                assert_eq!(view.get(&entry.key), Some(entry.state));
            }
            assert_eq!(view.get(b"aa"), None);
            assert_eq!(view.get(&[0xff; KEY_BYTES_MAX + 1]), None);
        }
    }

    #[test]
    fn exhaustive_key_block_any_flipped_bit_or_cut_is_detected() {
        let bytes = block(&[entry(b"a", 1), entry(b"bcd", -2)]);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(KeyBlock::parse(&damaged).is_err(), "byte {at} bit {bit}");
            }
            let cut = KeyBlock::parse(&bytes[..at]).err();
            assert!(
                matches!(cut, Some(DecodeError::Truncated { .. })),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn key_block_unordered_or_equal_keys_are_refused() {
        for keys in [[&b"b"[..], b"a"], [b"a", b"a"]] {
            let bytes = block(&[entry(keys[0], 1), entry(keys[1], 1)]);
            assert_eq!(KeyBlock::parse(&bytes).err(), Some(invalid("key order", 1)));
        }
    }

    #[test]
    fn is_full_for_splits_at_the_target_but_never_before_an_entry() {
        let mut builder = KeyBlockBuilder::new(100);
        assert!(!builder.is_full_for(&[0; 500]));
        builder.push(b"a", entry(b"a", 1).state);
        assert!(!builder.is_full_for(&[0; 15]));
        assert!(builder.is_full_for(&[0; 24]));
        assert!(builder.finish().is_some());
        assert!(builder.finish().is_none());
    }
}
