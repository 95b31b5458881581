//! Pack index: which range of a pack holds what. Spec: spec/pack.md §4.
//!
//! **Invariants**
//! - PACK-6: blocks, key runs, index and section table follow each other without a gap; all ranges lie
//!   within the object. Decoding checks it, so a reader's allocations are bounded by the object.
//! - PACK-7: rows of a section are in rising order of sequence.
//!
//! **Not here**: the reads; the caller fetches ranges and hands in bytes.

use super::layout::{invalid, truncated};
use super::table::{self, IndexEntry, PACK_HEADER_BYTES, PackFooter, PackKind, SectionSummary};
use crate::codec::DecodeError;
use crate::ids::{FeedId, Sequence, StreamId};

/// Sparse index and section table of a pack, in memory.
#[derive(Debug, Clone)]
pub struct PackIndex {
    footer: PackFooter,
    rows: Vec<IndexEntry>,
    sections: Vec<SectionSummary>,
}

impl PackIndex {
    /// Reads index and section table from the bytes of [`PackFooter::index_range`].
    ///
    /// # Errors
    /// [`DecodeError`] when they are damaged or contradict each other.
    pub fn decode(footer: &PackFooter, parts: &[u8]) -> Result<Self, DecodeError> {
        let range = footer.index_range();
        if parts.len() as u64 != range.end - range.start {
            return Err(truncated((range.end - range.start) as usize, parts.len()));
        }
        let index_bytes = (footer.table_offset - footer.index_offset) as usize;
        let (index, rows) = parts
            .split_at_checked(index_bytes)
            .ok_or(truncated(index_bytes, parts.len()))?;
        let index = Self {
            footer: *footer,
            rows: table::decode_index(index)?,
            sections: table::decode_table(rows)?,
        };
        same_crc(
            "pack index",
            footer.index_crc,
            table::part_crc(&parts[..index_bytes])?,
        )?;
        same_crc(
            "pack section table",
            footer.table_crc,
            table::part_crc(rows)?,
        )?;
        index.check()?;
        Ok(index)
    }

    /// The footer it was read by.
    #[must_use]
    pub fn footer(&self) -> &PackFooter {
        &self.footer
    }

    /// What the pack holds, in order of (feed, stream).
    #[must_use]
    pub fn sections(&self) -> &[SectionSummary] {
        &self.sections
    }

    /// What the pack holds of a stream.
    #[must_use]
    pub fn section(&self, feed: FeedId, stream: StreamId) -> Option<&SectionSummary> {
        let at = self
            .sections
            .binary_search_by_key(&(feed, stream), |section| (section.feed, section.stream));
        self.sections.get(at.ok()?)
    }

    /// The blocks of a section, in sequence order.
    #[must_use]
    pub fn blocks(&self, section: &SectionSummary) -> &[IndexEntry] {
        let rows = section.index_rows.start as usize..section.index_rows.end as usize;
        self.rows.get(rows).unwrap_or_default()
    }

    /// The blocks of a stream that hold records from a sequence on: the first may begin before it.
    #[must_use]
    pub fn blocks_for(&self, feed: FeedId, stream: StreamId, from: Sequence) -> &[IndexEntry] {
        let Some(section) = self.section(feed, stream) else {
            return &[];
        };
        let rows = self.blocks(section);
        &rows[rows.partition_point(|row| row.end <= from.0)..]
    }

    /// The blocks of a stream from the first on that reaches the effective timestamp.
    #[must_use]
    pub fn blocks_for_timestamp(
        &self,
        feed: FeedId,
        stream: StreamId,
        timestamp_ms: u64,
    ) -> &[IndexEntry] {
        let Some(section) = self.section(feed, stream) else {
            return &[];
        };
        let rows = self.blocks(section);
        let reaches = |row: &IndexEntry| row.max_timestamp_ms >= timestamp_ms;
        &rows[rows.iter().position(reaches).unwrap_or(rows.len())..]
    }

    /// Memory in use, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<IndexEntry>()
            + self.sections.capacity() * size_of::<SectionSummary>()
    }

    #[cfg(test)]
    pub(super) fn rows_for_test(&self) -> usize {
        self.rows.len()
    }

    fn check(&self) -> Result<(), DecodeError> {
        let mut at = PACK_HEADER_BYTES as u64;
        let mut row = 0u32;
        let mut last = None;
        for section in &self.sections {
            let id = (section.feed, section.stream);
            if last.is_some_and(|last| last >= id) {
                return Err(invalid("section order", section.stream.0));
            }
            if section.index_rows.start != row || section.blocks.start != at {
                return Err(invalid("section", section.stream.0));
            }
            self.check_section(section)?;
            at = section.keys.end;
            row = section.index_rows.end;
            last = Some(id);
        }
        if at != self.footer.index_offset || row as usize != self.rows.len() {
            return Err(invalid("index_offset", self.footer.index_offset));
        }
        check_kind(self.footer.kind, &self.sections)?;
        let sum = |field: fn(&SectionSummary) -> u64| {
            let add = |sum: u64, section| sum.saturating_add(field(section));
            self.sections.iter().fold(0, add)
        };
        if sum(|section| section.records) != self.footer.records {
            return Err(invalid("records", self.footer.records));
        }
        if sum(|section| section.payload_bytes) != self.footer.payload_bytes {
            return Err(invalid("payload_bytes", self.footer.payload_bytes));
        }
        Ok(())
    }

    fn check_section(&self, section: &SectionSummary) -> Result<(), DecodeError> {
        let rows = section.index_rows.start as usize..section.index_rows.end as usize;
        let rows = self.rows.get(rows).filter(|rows| !rows.is_empty());
        let rows = rows.ok_or(invalid("index rows", section.index_rows.end.into()))?;
        let (mut at, mut reached, mut records) = (section.blocks.start, section.first.0, 0u64);
        for row in rows {
            if (row.feed, row.stream) != (section.feed.0, section.stream.0) || row.offset != at {
                return Err(invalid("block offset", row.offset));
            }
            if row.first < reached || row.end <= row.first || row.first_record != records {
                return Err(invalid("block first_sequence", row.first));
            }
            at = row
                .end_offset()
                .ok_or(invalid("record_count", row.records))?;
            records = records.saturating_add(row.records);
            reached = row.end;
        }
        let first = rows.first().map(|row| row.first);
        if records != section.records || first != Some(section.first.0) || reached != section.end.0
        {
            return Err(invalid("section records", section.records));
        }
        let (blocks, keys) = (&section.blocks, &section.keys);
        let ordered = blocks.start <= blocks.end && keys.start <= keys.end;
        let follows = (at, blocks.end) == (blocks.end, keys.start);
        if !ordered || !follows || keys.end > self.footer.index_offset {
            return Err(invalid("section ranges", section.stream.0));
        }
        let has_keys = section.keys.start < section.keys.end;
        if has_keys != (section.key_count > 0) || (has_keys && !section.keyed) {
            return Err(invalid("key_count", section.key_count));
        }
        Ok(())
    }
}

pub(super) fn check_kind(kind: PackKind, sections: &[SectionSummary]) -> Result<(), DecodeError> {
    let count = sections.len() as u64;
    match (kind, sections) {
        (_, []) => Err(invalid("section_count", 0)),
        (PackKind::Shared { .. }, _) => Ok(()),
        (PackKind::Stream { feed, stream }, [one]) if (one.feed, one.stream) == (feed, stream) => {
            Ok(())
        }
        (PackKind::Stream { .. }, _) => Err(invalid("section_count", count)),
    }
}

fn same_crc(what: &'static str, stored: u32, computed: u32) -> Result<(), DecodeError> {
    if stored == computed {
        return Ok(());
    }
    Err(DecodeError::Checksum {
        what,
        stored,
        computed,
    })
}
