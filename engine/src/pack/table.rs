//! Pack tables: header, sparse index, section table and footer of a pack. Spec: spec/pack.md §2, §4.
//!
//! **Invariants**
//! - PACK-2: magic number and version are checked before any other byte, at the front and at the end.
//! - Every part has its own checksum; the footer repeats those of index and section table.
//!
//! **Not here**: blocks (`block`), key runs (`keys`), what is looked up (`index`).

use super::block::BlockHeader;
use super::column::column_bytes;
use super::layout::{self, FOOTER_BYTES, Format, invalid, truncated};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{FeedId, LogId, Sequence, StreamId};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

const _: () = assert!(
    cfg!(target_endian = "little"),
    "the index is stored as it is in memory"
);

const HEADER: Format = Format {
    name: "pack",
    magic: *b"SEALPACK",
    version: 1,
};
const FOOTER: Format = Format {
    name: "pack footer",
    magic: *b"SLPAKEND",
    version: HEADER.version,
};
/// Bytes of a pack's header.
pub const PACK_HEADER_BYTES: usize = 64;
/// Bytes of a pack's footer: read these first.
pub const PACK_FOOTER_BYTES: usize = FOOTER_BYTES;
pub(crate) const INDEX_MAGIC: u32 = u32::from_le_bytes(*b"SLIX");
pub(crate) const TABLE_MAGIC: u32 = u32::from_le_bytes(*b"SLST");
/// Bytes before the rows of index, section table and columns.
pub(crate) const PART_HEADER_BYTES: usize = 16;
const PART_CRC_AT: usize = 8;
pub(crate) const INDEX_ROW_BYTES: usize = size_of::<IndexEntry>();
pub(crate) const TABLE_ROW_BYTES: usize = 152;
const FLAG_KEYED: u32 = 1;

/// Whose frames a pack holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackKind {
    /// Those of one stream.
    Stream {
        /// The feed.
        feed: FeedId,
        /// The stream.
        stream: StreamId,
    },
    /// Those of many streams of one log.
    Shared {
        /// The log.
        log: LogId,
    },
}

impl PackKind {
    fn fields(self) -> (u8, u64, u64, u64) {
        match self {
            Self::Stream { feed, stream } => (1, feed.0, stream.0, 0),
            Self::Shared { log } => (2, 0, 0, log.0),
        }
    }

    fn of(code: u8, feed: u64, stream: u64, log: u64) -> Result<Self, DecodeError> {
        match (code, feed, stream, log) {
            (1, feed, stream, 0) => Ok(Self::Stream {
                feed: FeedId(feed),
                stream: StreamId(stream),
            }),
            (2, 0, 0, log) => Ok(Self::Shared { log: LogId(log) }),
            _ => Err(invalid("kind", code.into())),
        }
    }
}

/// The first bytes of a pack of this kind.
pub(crate) fn encode_header(kind: PackKind) -> Vec<u8> {
    let (code, feed, stream, log) = kind.fields();
    let mut out = Writer::new();
    out.raw(&HEADER.magic)
        .u16(HEADER.version)
        .u8(code)
        .u8(0)
        .u32(0);
    out.u64(feed).u64(stream).u64(log).raw(&[0; 24]);
    layout::seal(&mut out.0, layout::PREAMBLE_CRC_AT);
    out.0
}

/// Reads what [`encode_header`] wrote.
pub(crate) fn decode_header(bytes: &[u8]) -> Result<PackKind, DecodeError> {
    HEADER.check_version(bytes)?;
    let short = truncated(PACK_HEADER_BYTES, bytes.len());
    let header = bytes.get(..PACK_HEADER_BYTES).ok_or(short)?;
    layout::check_crc("pack header", header, layout::PREAMBLE_CRC_AT)?;
    layout::zero("reserved", &header[11..12])?;
    layout::zero("reserved", &header[40..])?;
    let mut r = Reader(&header[16..40]);
    PackKind::of(header[10], r.u64()?, r.u64()?, r.u64()?)
}

/// One block, as the sparse index knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IndexEntry {
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
    pub(crate) frame_count: u32,
    pub(crate) feed: u64,
    pub(crate) stream: u64,
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) first_record: u64,
    pub(crate) records: u64,
    pub(crate) first_timestamp_ms: u64,
    pub(crate) max_timestamp_ms: u64,
}

const _: () = assert!(INDEX_ROW_BYTES == 80);

impl IndexEntry {
    /// Where the block lies in the pack.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.bytes)
    }
    /// Where its column lies: right behind it.
    #[must_use]
    pub fn column_range(&self) -> Range<u64> {
        let start = self.offset + u64::from(self.bytes);
        start..self.end_offset().unwrap_or(start)
    }
    /// End of block and column; `None` when it is beyond any object.
    pub(crate) fn end_offset(&self) -> Option<u64> {
        let column = self.offset.checked_add(self.bytes.into())?;
        column.checked_add(column_bytes(self.records)?)
    }
    /// Whether the block that begins with `header` is this one.
    pub(crate) fn is_of(&self, header: &BlockHeader) -> bool {
        let row = (self.feed, self.stream, self.first, self.end);
        let block = (header.feed.0, header.stream.0, header.first.0, header.end.0);
        let counts = (self.bytes, self.frame_count, self.records);
        row == block && counts == (header.block_bytes, header.frame_count, header.records)
    }
    /// The feed.
    #[must_use]
    pub fn feed(&self) -> FeedId {
        FeedId(self.feed)
    }
    /// The stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        StreamId(self.stream)
    }
    /// Sequence of its first record.
    #[must_use]
    pub fn first(&self) -> Sequence {
        Sequence(self.first)
    }
    /// Sequence after its last record.
    #[must_use]
    pub fn end(&self) -> Sequence {
        Sequence(self.end)
    }
    /// Its frames.
    #[must_use]
    pub fn frame_count(&self) -> u32 {
        self.frame_count
    }
    /// Records of the section before this block.
    #[must_use]
    pub fn first_record(&self) -> u64 {
        self.first_record
    }
    /// Its records.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }
    /// Effective timestamp of its first record.
    #[must_use]
    pub fn first_timestamp_ms(&self) -> u64 {
        self.first_timestamp_ms
    }
    /// Highest effective timestamp in it.
    #[must_use]
    pub fn max_timestamp_ms(&self) -> u64 {
        self.max_timestamp_ms
    }
}

/// What a pack holds of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionSummary {
    /// The feed.
    pub feed: FeedId,
    /// The stream.
    pub stream: StreamId,
    /// Sequence of the first record.
    pub first: Sequence,
    /// Sequence after the last record.
    pub end: Sequence,
    /// Records; fewer than `end - first` where sequences are missing.
    pub records: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    /// Effective timestamp of the first record.
    pub first_timestamp_ms: u64,
    /// Highest effective timestamp.
    pub max_timestamp_ms: u64,
    /// Merkle root over the record leaves.
    pub merkle_root: [u8; 32],
    /// Its rows of the sparse index.
    pub index_rows: Range<u32>,
    /// Where its blocks lie, each with its column.
    pub blocks: Range<u64>,
    /// Where its key run lies; empty without keyed records.
    pub keys: Range<u64>,
    /// Distinct keys.
    pub key_count: u64,
    /// Whether the feed allowed keys.
    pub keyed: bool,
}

impl SectionSummary {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.feed.0).u64(self.stream.0);
        out.u64(self.first.0).u64(self.end.0);
        out.u64(self.records).u64(self.payload_bytes);
        out.u64(self.first_timestamp_ms).u64(self.max_timestamp_ms);
        out.raw(&self.merkle_root);
        out.u32(self.index_rows.start).u32(self.index_rows.end);
        for range in [&self.blocks, &self.keys] {
            out.u64(range.start).u64(range.end);
        }
        out.u64(self.key_count);
        out.u32(if self.keyed { FLAG_KEYED } else { 0 }).u32(0);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let section = Self {
            feed: FeedId(r.u64()?),
            stream: StreamId(r.u64()?),
            first: Sequence(r.u64()?),
            end: Sequence(r.u64()?),
            records: r.u64()?,
            payload_bytes: r.u64()?,
            first_timestamp_ms: r.u64()?,
            max_timestamp_ms: r.u64()?,
            merkle_root: r.array()?,
            index_rows: r.u32()?..r.u32()?,
            blocks: r.u64()?..r.u64()?,
            keys: r.u64()?..r.u64()?,
            key_count: r.u64()?,
            keyed: match r.u32()? {
                0 => false,
                FLAG_KEYED => true,
                other => return Err(invalid("flags", other.into())),
            },
        };
        layout::zero("reserved", r.raw(4)?)?;
        layout::check_range(section.first.0, section.end.0, section.records)?;
        Ok(section)
    }
}

fn encode_part(magic: u32, row_bytes: usize, rows: &[u8]) -> Vec<u8> {
    let mut part = vec![0; PART_HEADER_BYTES];
    part.extend_from_slice(rows);
    seal_part(magic, row_bytes, &mut part);
    part
}

/// Writes the header of a part whose rows are in their place.
pub(crate) fn seal_part(magic: u32, row_bytes: usize, part: &mut [u8]) {
    let count = (part.len() - PART_HEADER_BYTES) / row_bytes;
    part[..4].copy_from_slice(&magic.to_le_bytes());
    part[4..PART_CRC_AT].copy_from_slice(&layout::stored_u32(count).to_le_bytes());
    part[PART_CRC_AT..PART_HEADER_BYTES].fill(0);
    layout::seal(part, PART_CRC_AT);
}

pub(crate) fn open_part<'a>(
    what: &'static str,
    magic: u32,
    row_bytes: usize,
    part: &'a [u8],
) -> Result<&'a [u8], DecodeError> {
    if part.len() < PART_HEADER_BYTES {
        return Err(truncated(PART_HEADER_BYTES, part.len()));
    }
    let found = layout::u32_at(part, 0)?;
    if found != magic {
        return Err(DecodeError::Magic {
            format: what,
            found: found.into(),
        });
    }
    layout::check_crc(what, part, PART_CRC_AT)?;
    layout::zero("reserved", &part[12..PART_HEADER_BYTES])?;
    let rows = &part[PART_HEADER_BYTES..];
    let count = layout::u32_at(part, 4)?;
    if rows.len() as u64 != u64::from(count) * row_bytes as u64 {
        return Err(invalid("row count", count.into()));
    }
    Ok(rows)
}

/// The sparse index as a part.
pub(crate) fn encode_index(entries: &[IndexEntry]) -> Vec<u8> {
    encode_part(INDEX_MAGIC, INDEX_ROW_BYTES, bytemuck::cast_slice(entries))
}

/// Reads what [`encode_index`] wrote.
pub(crate) fn decode_index(part: &[u8]) -> Result<Vec<IndexEntry>, DecodeError> {
    let rows = open_part("pack index", INDEX_MAGIC, INDEX_ROW_BYTES, part)?;
    let rows = rows.chunks_exact(INDEX_ROW_BYTES);
    Ok(rows.map(bytemuck::pod_read_unaligned).collect())
}

/// The section table as a part.
pub(crate) fn encode_table(sections: &[SectionSummary]) -> Vec<u8> {
    let mut rows = Writer::new();
    sections
        .iter()
        .for_each(|section| section.encode(&mut rows));
    debug_assert_eq!(rows.0.len(), sections.len() * TABLE_ROW_BYTES);
    encode_part(TABLE_MAGIC, TABLE_ROW_BYTES, &rows.0)
}

/// Reads what [`encode_table`] wrote.
pub(crate) fn decode_table(part: &[u8]) -> Result<Vec<SectionSummary>, DecodeError> {
    let mut rows = Reader(open_part(
        "pack section table",
        TABLE_MAGIC,
        TABLE_ROW_BYTES,
        part,
    )?);
    let mut sections = Vec::with_capacity(rows.0.len() / TABLE_ROW_BYTES);
    while !rows.0.is_empty() {
        sections.push(SectionSummary::decode(&mut rows)?);
    }
    Ok(sections)
}

/// The checksum that a part carries.
pub(crate) fn part_crc(part: &[u8]) -> Result<u32, DecodeError> {
    layout::u32_at(part, PART_CRC_AT)
}

/// The last bytes of a pack: where index and section table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackFooter {
    /// Whose frames it holds.
    pub kind: PackKind,
    /// Length of the whole pack.
    pub object_bytes: u64,
    /// Records over all sections.
    pub records: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    pub(crate) index_offset: u64,
    pub(crate) table_offset: u64,
    pub(crate) index_crc: u32,
    pub(crate) table_crc: u32,
}

impl PackFooter {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (code, feed, stream, log) = self.kind.fields();
        let mut out = Writer::new();
        out.u16(FOOTER.version).raw(&[0; 6]);
        out.u64(code.into()).u64(feed).u64(stream).u64(log);
        out.u64(self.object_bytes)
            .u64(self.records)
            .u64(self.payload_bytes);
        out.u64(self.index_offset).u64(self.table_offset);
        out.u32(self.index_crc).u32(self.table_crc);
        layout::finish_footer(&mut out, FOOTER);
        out.0
    }

    /// Reads the footer at the end of `tail`, the last bytes of an object of `object_bytes`.
    ///
    /// # Errors
    /// [`DecodeError`] when this is no footer of a known version, or it contradicts the length.
    pub fn decode(tail: &[u8], object_bytes: u64) -> Result<Self, DecodeError> {
        let mut r = layout::open_footer(tail, FOOTER)?;
        let code = r.u64()?;
        let code = u8::try_from(code).map_err(|_| invalid("kind", code))?;
        let footer = Self {
            kind: PackKind::of(code, r.u64()?, r.u64()?, r.u64()?)?,
            object_bytes: r.u64()?,
            records: r.u64()?,
            payload_bytes: r.u64()?,
            index_offset: r.u64()?,
            table_offset: r.u64()?,
            index_crc: r.u32()?,
            table_crc: r.u32()?,
        };
        layout::zero("footer reserved", r.0)?;
        if footer.object_bytes != object_bytes {
            return Err(invalid("object_bytes", footer.object_bytes));
        }
        let end = object_bytes.saturating_sub(PACK_FOOTER_BYTES as u64);
        let index_ok = footer.index_offset >= PACK_HEADER_BYTES as u64;
        if !index_ok || footer.index_offset > footer.table_offset || footer.table_offset > end {
            return Err(invalid("index_offset", footer.index_offset));
        }
        Ok(footer)
    }

    /// Where index and section table lie, together: what `PackIndex::decode` takes.
    #[must_use]
    pub fn index_range(&self) -> Range<u64> {
        self.index_offset..self.object_bytes - PACK_FOOTER_BYTES as u64
    }
}
