//! Column: the SHA-256 of every payload of a block, in order, right behind the block. Spec: spec/pack.md §3.
//!
//! **Invariants**
//! - PACK-15: entry n is the digest of the payload of the block's record n, whatever else the record has.
//! - Memory is one block's: 32 bytes per record, and at most 65,536 records in a frame of its own.
//!
//! **Not here**: the digests (`fold` computes them once, for column and leaf), what a reader returns (`read::packs`).

use super::layout::{invalid, truncated};
use super::table::{self, PART_HEADER_BYTES};
use crate::codec::DecodeError;

pub(crate) const COLUMN_MAGIC: u32 = u32::from_le_bytes(*b"SLFP");
/// Bytes of an entry.
pub const COLUMN_ENTRY_BYTES: usize = 32;

/// Length of the column behind a block of `records`; `None` when no object can hold it.
pub(crate) fn column_bytes(records: u64) -> Option<u64> {
    let entries = records.checked_mul(COLUMN_ENTRY_BYTES as u64)?;
    entries.checked_add(PART_HEADER_BYTES as u64)
}

/// The column of the open block.
#[derive(Debug, Default)]
pub(crate) struct Column {
    /// Room for the header, then the entries; empty before the first.
    part: Vec<u8>,
}

impl Column {
    /// Adds the digest of the next payload.
    pub fn push(&mut self, digest: &[u8; COLUMN_ENTRY_BYTES]) {
        if self.part.is_empty() {
            self.part.resize(PART_HEADER_BYTES, 0);
        }
        self.part.extend_from_slice(digest);
    }

    /// Length of the whole part.
    pub fn part_bytes(&self) -> usize {
        self.part.len()
    }

    /// The whole part, as it lies in the pack.
    pub fn seal(&mut self) -> &[u8] {
        table::seal_part(COLUMN_MAGIC, COLUMN_ENTRY_BYTES, &mut self.part);
        &self.part
    }

    /// Forgets the entries, keeps the memory.
    pub fn clear(&mut self) {
        self.part.clear();
    }

    /// Memory in use, in bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.part.capacity()
    }
}

/// Where in `stored` the damage is that makes it differ from `whole`, the part as the builder writes
/// it: the first entry that does, else the part's header. Both have the same length.
pub(crate) fn first_damage(whole: &[u8], stored: &[u8]) -> Option<(usize, DecodeError)> {
    if whole == stored {
        return None;
    }
    let entries = |part| <[u8]>::chunks(part, COLUMN_ENTRY_BYTES);
    let (expected, found) = (&whole[PART_HEADER_BYTES..], &stored[PART_HEADER_BYTES..]);
    let mut pairs = entries(expected).zip(entries(found));
    if let Some(record) = pairs.position(|(expected, found)| expected != found) {
        let at = PART_HEADER_BYTES + record * COLUMN_ENTRY_BYTES;
        return Some((at, invalid("column entry", record as u64)));
    }
    let records = found.len() / COLUMN_ENTRY_BYTES;
    let error = ColumnView::parse(stored, records as u64).err()?;
    Some((0, error))
}

/// The column of a block, read back.
#[derive(Debug, Clone, Copy)]
pub struct ColumnView<'a>(&'a [[u8; COLUMN_ENTRY_BYTES]]);

impl<'a> ColumnView<'a> {
    /// The column of a block of `records`, its checksum checked.
    ///
    /// # Errors
    /// [`DecodeError`] when this is no column, it is damaged, or it is another block's length.
    pub fn parse(part: &'a [u8], records: u64) -> Result<Self, DecodeError> {
        let entries =
            table::open_part("fingerprint column", COLUMN_MAGIC, COLUMN_ENTRY_BYTES, part)?;
        let (entries, _) = entries.as_chunks();
        if entries.len() as u64 != records {
            return Err(invalid("column entries", entries.len() as u64));
        }
        Ok(Self(entries))
    }

    /// The digests of the next `count` payloads, taken off the front.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when there are not that many.
    pub fn take(&mut self, count: usize) -> Result<&'a [[u8; COLUMN_ENTRY_BYTES]], DecodeError> {
        let left = self.0.len();
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(truncated(count, left))?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn three() -> Vec<u8> {
        let mut column = Column::default();
        column.push(&[9; 32]);
        column.clear();
        (1..=3).for_each(|n| column.push(&[n; 32]));
        column.seal().to_vec()
    }

    #[test]
    fn roundtrip_column_gives_back_its_entries_in_order() {
        let part = three();
        assert_eq!(Some(part.len() as u64), column_bytes(3));
        let mut view = ColumnView::parse(&part, 3).unwrap();
        assert_eq!(view.take(1), Ok(&[[1; 32]][..]));
        assert_eq!(view.take(0), Ok(&[][..]));
        assert_eq!(view.take(2), Ok(&[[2; 32], [3; 32]][..]));
        assert!(view.take(1).is_err());
    }

    #[test]
    fn exhaustive_flipped_bits_and_other_lengths_are_refused() {
        let whole = three();
        for at in 0..whole.len() {
            let mut part = whole.clone();
            part[at] ^= 1 << (at % 8);
            assert!(ColumnView::parse(&part, 3).is_err(), "byte {at}");
            assert!(ColumnView::parse(&whole[..at], 3).is_err(), "cut at {at}");
            let (damaged, _) = first_damage(&whole, &part).unwrap();
            let entry = at.checked_sub(16).map(|entry| 16 + entry / 32 * 32);
            assert_eq!(damaged, entry.unwrap_or(0), "byte {at}");
        }
        assert!(ColumnView::parse(&whole, 2).is_err());
        assert!(ColumnView::parse(&whole, 4).is_err());
        assert_eq!(first_damage(&whole, &whole), None);
    }

    #[test]
    fn column_bytes_beyond_any_object_is_none() {
        assert_eq!(column_bytes(0), Some(16));
        assert_eq!(column_bytes(u64::MAX), None);
        assert_eq!(column_bytes(u64::MAX / 32), Some(u64::MAX - 15));
        assert_eq!(column_bytes(u64::MAX / 32 + 1), None);
    }
}
