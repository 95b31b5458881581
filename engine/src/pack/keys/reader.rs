//! Key index reader: footer, then filter and top index, then one block per key. Spec: spec/key-index.md §1.
//!
//! **Invariants**
//! - KEYS-6: blocks, filter, top index and footer follow each other without a gap; every length is
//!   checked against the object's before anything is read or allocated by it.
//! - A lookup reads one block, and none when the filter knows better.
//!
//! **Not here**: the reads themselves; the caller fetches ranges and hands in bytes.

use super::block::{KEY_BLOCK_BYTES_MAX, KEY_BLOCK_HEADER_BYTES, KeyBlock};
use super::filter::KeyFilter;
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{FeedId, StreamId};
use crate::pack::layout::{self, FOOTER_BYTES, Format, invalid, truncated};
use std::ops::Range;

pub(crate) const HEADER: Format = Format {
    name: "key index",
    magic: *b"SEALKEYS",
    version: 1,
};
pub(crate) const FOOTER_END: Format = Format {
    name: "key index footer",
    magic: *b"SLKEYEND",
    version: HEADER.version,
};
pub(crate) const HEADER_BYTES: usize = 64;

/// The last bytes of a key index: where everything else is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyIndexFooter {
    /// The feed.
    pub feed: FeedId,
    /// The stream.
    pub stream: StreamId,
    /// Distinct keys.
    pub key_count: u64,
    /// Keys whose newest record is a tombstone.
    pub tombstone_count: u64,
    /// Key blocks.
    pub block_count: u32,
    pub(crate) filter_offset: u64,
    pub(crate) top_offset: u64,
    pub(crate) object_bytes: u64,
    pub(crate) filter_crc: u32,
    pub(crate) top_crc: u32,
}

impl KeyIndexFooter {
    pub(crate) fn encode(&self, end: Format) -> Vec<u8> {
        let mut out = Writer::new();
        out.u16(end.version).raw(&[0; 6]);
        out.u64(self.feed.0).u64(self.stream.0);
        out.u64(self.key_count).u64(self.tombstone_count);
        out.u64(self.filter_offset)
            .u64(self.top_offset)
            .u64(self.object_bytes);
        out.u32(self.block_count)
            .u32(self.filter_crc)
            .u32(self.top_crc);
        layout::finish_footer(&mut out, end);
        out.0
    }

    /// Reads the footer at the end of `tail`, the last bytes of an object of `object_bytes`.
    ///
    /// # Errors
    /// [`DecodeError`] when this is no footer of a known version, or it contradicts the length.
    pub fn decode(tail: &[u8], object_bytes: u64) -> Result<Self, DecodeError> {
        let mut r = layout::open_footer(tail, FOOTER_END)?;
        let mut footer = Self {
            feed: FeedId(r.u64()?),
            stream: StreamId(r.u64()?),
            key_count: r.u64()?,
            tombstone_count: r.u64()?,
            filter_offset: r.u64()?,
            top_offset: r.u64()?,
            object_bytes: r.u64()?,
            block_count: 0,
            filter_crc: 0,
            top_crc: 0,
        };
        footer.block_count = r.u32()?;
        footer.filter_crc = r.u32()?;
        footer.top_crc = r.u32()?;
        layout::zero("footer reserved", r.0)?;
        footer.check(object_bytes)?;
        Ok(footer)
    }

    fn check(&self, object_bytes: u64) -> Result<(), DecodeError> {
        if self.object_bytes != object_bytes {
            return Err(invalid("object_bytes", self.object_bytes));
        }
        if self.filter_offset < HEADER_BYTES as u64 || self.filter_offset > self.top_offset {
            return Err(invalid("filter_offset", self.filter_offset));
        }
        if self.top_offset > object_bytes.saturating_sub(FOOTER_BYTES as u64) {
            return Err(invalid("top_offset", self.top_offset));
        }
        if self.tombstone_count > self.key_count {
            return Err(invalid("tombstone_count", self.tombstone_count));
        }
        Ok(())
    }

    /// Where filter and top index lie, together: what [`KeyIndex::decode`] takes.
    #[must_use]
    pub fn parts_range(&self) -> Range<u64> {
        self.filter_offset..self.object_bytes - FOOTER_BYTES as u64
    }
}

/// Filter and top index, in memory.
#[derive(Debug, Clone)]
pub struct KeyIndex {
    footer: KeyIndexFooter,
    filter: KeyFilter,
    blocks: Vec<TopEntry>,
}

#[derive(Debug, Clone)]
struct TopEntry {
    range: Range<u64>,
    first_key: Vec<u8>,
}

impl KeyIndex {
    /// Reads filter and top index from the bytes of [`KeyIndexFooter::parts_range`].
    ///
    /// # Errors
    /// [`DecodeError`] when they are damaged.
    pub fn decode(footer: &KeyIndexFooter, parts: &[u8]) -> Result<Self, DecodeError> {
        let range = footer.parts_range();
        let filter_bytes = (footer.top_offset - footer.filter_offset) as usize;
        if parts.len() as u64 != range.end - range.start {
            return Err(truncated((range.end - range.start) as usize, parts.len()));
        }
        let (filter, top) = parts
            .split_at_checked(filter_bytes)
            .ok_or(truncated(filter_bytes, parts.len()))?;
        check_part("key filter", filter, footer.filter_crc)?;
        check_part("key top index", top, footer.top_crc)?;
        let mut blocks = Vec::new();
        let mut reached = HEADER_BYTES as u64;
        let mut r = Reader(top);
        while !r.0.is_empty() {
            let entry = decode_top(&mut r, reached)?;
            let before = blocks.last().map(|entry: &TopEntry| &entry.first_key);
            if before.is_some_and(|before| *before >= entry.first_key) {
                return Err(invalid("top key order", blocks.len() as u64));
            }
            reached = entry.range.end;
            blocks.push(entry);
        }
        if blocks.len() as u64 != u64::from(footer.block_count) || reached != footer.filter_offset {
            return Err(invalid("block_count", footer.block_count.into()));
        }
        Ok(Self {
            footer: *footer,
            filter: KeyFilter::from_bytes(filter.to_vec())?,
            blocks,
        })
    }

    /// The footer it was read by.
    #[must_use]
    pub fn footer(&self) -> &KeyIndexFooter {
        &self.footer
    }

    /// Memory in use, in bytes, roughly.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let keys: usize = self.blocks.iter().map(|entry| entry.first_key.len()).sum();
        self.filter.as_bytes().len() + keys + self.blocks.len() * size_of::<TopEntry>()
    }

    /// Where the block lies that holds `key` if any does; `None` when the key is not in the index.
    /// Read it, [`KeyBlock::parse`] it, [`KeyBlock::get`] the key.
    #[must_use]
    pub fn lookup(&self, key: &[u8]) -> Option<Range<u64>> {
        if !self.filter.may_hold(key) {
            return None;
        }
        let after = self
            .blocks
            .partition_point(|entry| entry.first_key.as_slice() <= key);
        let entry = self.blocks.get(after.checked_sub(1)?)?;
        Some(entry.range.clone())
    }

    /// Where all blocks lie, in key order; together they are one run.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = Range<u64>> {
        self.blocks.iter().map(|entry| entry.range.clone())
    }

    /// Where the blocks lie that hold keys from `key` on.
    pub fn blocks_from(&self, key: &[u8]) -> impl ExactSizeIterator<Item = Range<u64>> {
        let after = self
            .blocks
            .partition_point(|entry| entry.first_key.as_slice() <= key);
        self.blocks[after.saturating_sub(1)..]
            .iter()
            .map(|entry| entry.range.clone())
    }

    /// Starts a check of the whole object against this index.
    #[must_use]
    pub fn checker(&self) -> KeyIndexChecker<'_> {
        KeyIndexChecker {
            index: self,
            next: 0,
            last_key: None,
            keys: 0,
            tombstones: 0,
        }
    }
}

fn check_part(what: &'static str, bytes: &[u8], stored: u32) -> Result<(), DecodeError> {
    let computed = crc32c::crc32c(bytes);
    if stored == computed {
        return Ok(());
    }
    Err(DecodeError::Checksum {
        what,
        stored,
        computed,
    })
}

fn decode_top(r: &mut Reader<'_>, reached: u64) -> Result<TopEntry, DecodeError> {
    let (offset, bytes) = (r.u64()?, r.u32()? as usize);
    if offset != reached {
        return Err(invalid("block offset", offset));
    }
    if !(KEY_BLOCK_HEADER_BYTES..=KEY_BLOCK_BYTES_MAX).contains(&bytes) {
        return Err(invalid("block_bytes", bytes as u64));
    }
    let end = offset
        .checked_add(bytes as u64)
        .ok_or(invalid("block offset", offset))?;
    Ok(TopEntry {
        range: offset..end,
        first_key: r.bytes()?.to_vec(),
    })
}

/// Checks header and blocks of an object in turn: KEYS-3, KEYS-4, KEYS-5 and the counts.
#[derive(Debug)]
pub struct KeyIndexChecker<'a> {
    index: &'a KeyIndex,
    next: usize,
    last_key: Option<Vec<u8>>,
    keys: u64,
    tombstones: u64,
}

impl KeyIndexChecker<'_> {
    /// Checks the object's first 64 bytes.
    ///
    /// # Errors
    /// [`DecodeError`] when they are damaged or of another stream than the footer.
    pub fn header(&self, bytes: &[u8]) -> Result<(), DecodeError> {
        HEADER.check_version(bytes)?;
        let short = truncated(HEADER_BYTES, bytes.len());
        let header = bytes.get(..HEADER_BYTES).ok_or(short)?;
        layout::check_crc("key index header", header, layout::PREAMBLE_CRC_AT)?;
        layout::zero("reserved", &header[10..12])?;
        layout::zero("reserved", &header[32..])?;
        let mut r = Reader(&header[16..]);
        let (feed, stream) = (FeedId(r.u64()?), StreamId(r.u64()?));
        if (feed, stream) != (self.index.footer.feed, self.index.footer.stream) {
            return Err(invalid("stream", stream.0));
        }
        Ok(())
    }

    /// Checks the bytes of the next block of [`KeyIndex::blocks`].
    ///
    /// # Errors
    /// [`DecodeError`] when they are damaged or contradict the index.
    pub fn block(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        let entry = self.index.blocks.get(self.next);
        let entry = entry.ok_or(invalid("block_count", self.next as u64))?;
        let (block, rest) = KeyBlock::parse(bytes)?;
        if !rest.is_empty() || bytes.len() as u64 != entry.range.end - entry.range.start {
            return Err(invalid("block_bytes", bytes.len() as u64));
        }
        for (n, (key, state)) in block.entries().enumerate() {
            if n == 0 && key != entry.first_key {
                return Err(invalid("first key", self.next as u64));
            }
            if self.last_key.as_deref().is_some_and(|last| last >= key) {
                return Err(invalid("key order", self.keys));
            }
            if !self.index.filter.may_hold(key) {
                return Err(invalid("filter", self.keys));
            }
            self.keys += 1;
            self.tombstones += u64::from(state.tombstone);
            self.last_key.get_or_insert_default().clear();
            self.last_key.get_or_insert_default().extend_from_slice(key);
        }
        self.next += 1;
        Ok(())
    }

    /// Checks that all blocks were seen and the counts are right.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] naming the count that is off.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.next != self.index.blocks.len() {
            return Err(invalid("block_count", self.next as u64));
        }
        if self.keys != self.index.footer.key_count {
            return Err(invalid("key_count", self.keys));
        }
        if self.tombstones != self.index.footer.tombstone_count {
            return Err(invalid("tombstone_count", self.tombstones));
        }
        Ok(())
    }
}

/// Reads and checks a whole object that is in memory.
///
/// # Errors
/// [`DecodeError`] unless every byte is as the builder writes it.
pub fn check_key_index(object: &[u8]) -> Result<KeyIndex, DecodeError> {
    let footer = KeyIndexFooter::decode(object, object.len() as u64)?;
    let part = |range: Range<u64>| &object[range.start as usize..range.end as usize];
    let index = KeyIndex::decode(&footer, part(footer.parts_range()))?;
    let mut checker = index.checker();
    checker.header(object)?;
    for range in index.blocks() {
        checker.block(part(range))?;
    }
    checker.finish()?;
    Ok(index)
}

#[cfg(test)]
mod tests;
