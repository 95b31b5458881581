//! Block: frames of one stream back to back, the unit of a ranged read. Spec: spec/pack.md §3.
//!
//! **Invariants**
//! - PACK-4: frames start at multiples of eight bytes from the block's start; what is between is zero.
//! - PACK-5: frames are in rising order of sequence, and lie within the header's range.
//! - The header's checksum is checked before its length is believed; frames carry their own checksums.
//!
//! **Not here**: where blocks lie (`table`), how frames look (`sealog-frame`).

use super::PackError;
use super::layout::{self, align, invalid, truncated};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{FeedId, Sequence, StreamId};
use sealog_frame::{FrameLimits, FrameView, peek_frame_bytes};

pub(crate) const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"SLBK");
/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 64;
/// A block is closed when the next frame would take it beyond this.
pub const BLOCK_BYTES_TARGET: usize = 256 * 1024;
/// No block is longer: the longest frame alone, or several within the target.
pub const BLOCK_BYTES_MAX: usize = BLOCK_HEADER_BYTES + align(LIMITS.frame_bytes_max());
const HEADER_CRC_AT: usize = 8;
/// Stored frames are read under the widest limits: they were admitted under their own.
pub(crate) const LIMITS: FrameLimits = FrameLimits::DEFAULT;
const _: () = assert!(BLOCK_BYTES_TARGET <= BLOCK_BYTES_MAX);
const _: () = assert!(BLOCK_BYTES_MAX <= u32::MAX as usize);

/// What a block says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// Length of the whole block.
    pub block_bytes: u32,
    /// Its frames; at least one.
    pub frame_count: u32,
    /// The feed.
    pub feed: FeedId,
    /// The stream.
    pub stream: StreamId,
    /// Sequence of the first record.
    pub first: Sequence,
    /// Sequence after the last record.
    pub end: Sequence,
    /// Its records.
    pub records: u64,
    /// Records of the section before it.
    pub first_record: u64,
}

impl BlockHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u32(BLOCK_MAGIC)
            .u32(self.block_bytes)
            .u32(0)
            .u32(self.frame_count);
        out.u64(self.feed.0).u64(self.stream.0);
        out.u64(self.first.0).u64(self.end.0);
        out.u64(self.records).u64(self.first_record);
        layout::seal(&mut out.0, HEADER_CRC_AT);
        out.0
    }

    /// Reads the header at the front of `bytes`: enough to know how long the block is.
    ///
    /// # Errors
    /// [`DecodeError`] when this is no block or its header is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let short = truncated(BLOCK_HEADER_BYTES, bytes.len());
        let header = bytes.get(..BLOCK_HEADER_BYTES).ok_or(short)?;
        let mut r = Reader(header);
        let magic = r.u32()?;
        if magic != BLOCK_MAGIC {
            return Err(DecodeError::Magic {
                format: "pack block",
                found: magic.into(),
            });
        }
        layout::check_crc("pack block header", header, HEADER_CRC_AT)?;
        let block_bytes = r.u32()?;
        r.u32()?;
        let header = Self {
            block_bytes,
            frame_count: r.u32()?,
            feed: FeedId(r.u64()?),
            stream: StreamId(r.u64()?),
            first: Sequence(r.u64()?),
            end: Sequence(r.u64()?),
            records: r.u64()?,
            first_record: r.u64()?,
        };
        let bounds = BLOCK_HEADER_BYTES + 1..=BLOCK_BYTES_MAX;
        let len = block_bytes as usize;
        if !bounds.contains(&len) || !len.is_multiple_of(layout::ALIGN) {
            return Err(invalid("block_bytes", block_bytes.into()));
        }
        if header.frame_count == 0 {
            return Err(invalid("frame_count", 0));
        }
        layout::check_range(header.first.0, header.end.0, header.records)?;
        Ok(header)
    }
}

/// A whole block. Frames are checked as they are taken.
#[derive(Debug, Clone, Copy)]
pub struct BlockView<'a> {
    header: BlockHeader,
    bytes: &'a [u8],
}

impl<'a> BlockView<'a> {
    /// The block at the front of `bytes`, its header checked, and what follows it.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when the block goes on beyond `bytes`; any other when the header is damaged.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let header = BlockHeader::decode(bytes)?;
        let len = header.block_bytes as usize;
        let (bytes, rest) = bytes
            .split_at_checked(len)
            .ok_or(truncated(len, bytes.len()))?;
        Ok((Self { header, bytes }, rest))
    }

    /// What the block says about itself.
    #[must_use]
    pub fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// All its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its frames in order, each validated whole. Ends after the first error.
    #[must_use]
    pub fn frames(&self) -> Frames<'a> {
        self.frames_from(Sequence(0))
    }

    /// The frames that hold records from `sequence` on; of those before only the header is checked.
    #[must_use]
    pub fn frames_from(&self, sequence: Sequence) -> Frames<'a> {
        Frames {
            block: *self,
            at: BLOCK_HEADER_BYTES,
            taken: 0,
            reached: self.header.first.0,
            from: sequence.0,
            failed: false,
        }
    }
}

/// Iterates over the frames of a block.
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    block: BlockView<'a>,
    at: usize,
    taken: u32,
    reached: u64,
    from: u64,
    failed: bool,
}

impl<'a> Frames<'a> {
    /// Offset within the block of the next frame, or of what was found to be damaged.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }

    fn take(&mut self) -> Result<Option<FrameView<'a>>, PackError> {
        while self.taken < self.block.header.frame_count {
            let rest = self.block.bytes.get(self.at..).unwrap_or_default();
            let len = peek_frame_bytes(rest)?;
            let frame = rest.get(..len).ok_or(truncated(len, rest.len()))?;
            let end = FrameView::trusted(frame)?.end_sequence();
            let skip = end <= self.from;
            let view = if skip {
                FrameView::trusted(frame)?
            } else {
                FrameView::parse(frame, &LIMITS)?
            };
            if view.base_sequence() < self.reached || end > self.block.header.end.0 {
                return Err(invalid("base_sequence", view.base_sequence()).into());
            }
            self.pass(len)?;
            self.reached = end;
            self.taken += 1;
            if !skip {
                return Ok(Some(view));
            }
        }
        // The last frame is followed by padding alone; `pass` has seen it.
        if self.at != self.block.bytes.len() {
            return Err(invalid("block_bytes", self.block.bytes.len() as u64).into());
        }
        Ok(None)
    }

    /// Goes beyond a frame and its padding.
    fn pass(&mut self, len: usize) -> Result<(), PackError> {
        let padded = align(len);
        let padding = self.block.bytes.get(self.at + len..self.at + padded);
        let padding = padding.ok_or(truncated(padded, self.block.bytes.len() - self.at))?;
        if let Err(error) = layout::zero("padding", padding) {
            self.at += len;
            return Err(error.into());
        }
        self.at += padded;
        Ok(())
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<FrameView<'a>, PackError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.take().transpose();
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}
