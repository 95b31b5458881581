//! Segment: one preallocated log file; header codec and offset arithmetic. Spec: spec/wal.md §4.
//!
//! **Invariants**
//! - WAL-7: log offset = segment number x segment size + position in the file; the first block is
//!   the header, so a position below one block is never a group.
//! - WAL-8: a segment is known by its header, or by the offsets of the groups in it, never by its file name.

use crate::codec::{DecodeError, Reader, Writer};
use crate::env::{AlignedBuf, BLOCK_BYTES};
use crate::ids::LogId;

/// "SLSEGMT1" little-endian.
pub const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"SLSEGMT1");
/// Newest version this program reads and writes.
pub const SEGMENT_VERSION: u16 = 1;
/// The header takes one block.
pub const SEGMENT_HEADER_BYTES: u64 = BLOCK_BYTES as u64;

/// The first block of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Log it belongs to.
    pub log: LogId,
    /// Its number: `number * segment_bytes` is its log offset.
    pub number: u64,
    /// Size of the file.
    pub segment_bytes: u64,
    /// Incarnation of the log that prepared it.
    pub incarnation: u64,
}

impl SegmentHeader {
    /// The block, sealed.
    #[must_use]
    pub fn encode(&self) -> AlignedBuf {
        let mut w = Writer::new();
        w.u64(SEGMENT_MAGIC).u16(SEGMENT_VERSION).u16(0);
        let mut fields = Writer::new();
        fields
            .u64(self.log.0)
            .u64(self.number)
            .u64(self.segment_bytes)
            .u64(self.incarnation);
        let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
        buf[..12].copy_from_slice(&w.0);
        buf[16..16 + fields.0.len()].copy_from_slice(&fields.0);
        let crc = crc32c::crc32c(&buf);
        buf[12..16].copy_from_slice(&crc.to_le_bytes());
        buf
    }

    /// Reads and checks a header block.
    ///
    /// # Errors
    /// [`DecodeError`] naming what is wrong. Any bytes may be given.
    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let block: [u8; BLOCK_BYTES] = Reader(block).array()?;
        let mut r = Reader(&block);
        let magic = r.u64()?;
        if magic != SEGMENT_MAGIC {
            return Err(DecodeError::Magic {
                format: "segment",
                found: magic,
            });
        }
        let (version, reserved, stored) = (r.u16()?, r.u16()?, r.u32()?);
        if version > SEGMENT_VERSION {
            return Err(DecodeError::Version {
                format: "segment",
                found: version,
                supported: SEGMENT_VERSION,
            });
        }
        let mut blank = block;
        blank[12..16].fill(0);
        let computed = crc32c::crc32c(&blank);
        if computed != stored {
            return Err(DecodeError::Checksum {
                what: "segment header",
                stored,
                computed,
            });
        }
        if version != SEGMENT_VERSION {
            return Err(DecodeError::Invalid {
                field: "format_version",
                value: u64::from(version),
            });
        }
        let header = Self {
            log: LogId(r.u64()?),
            number: r.u64()?,
            segment_bytes: r.u64()?,
            incarnation: r.u64()?,
        };
        if reserved != 0 || r.0.iter().any(|&byte| byte != 0) {
            return Err(DecodeError::Invalid {
                field: "reserved",
                value: u64::from(reserved),
            });
        }
        Ok(header)
    }
}

/// The arithmetic of WAL-7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size of every segment of the log.
    pub segment_bytes: u64,
}

impl Geometry {
    /// Segment that holds `offset`.
    #[must_use]
    pub fn segment_of(&self, offset: u64) -> u64 {
        offset / self.segment_bytes
    }

    /// Position of `offset` in its segment's file.
    #[must_use]
    pub fn position_of(&self, offset: u64) -> u64 {
        offset % self.segment_bytes
    }

    /// Log offset of the first group of segment `number`.
    #[must_use]
    pub fn first_offset(&self, number: u64) -> u64 {
        number * self.segment_bytes + SEGMENT_HEADER_BYTES
    }

    /// One past the last log offset of segment `number`.
    #[must_use]
    pub fn end_offset(&self, number: u64) -> u64 {
        (number + 1) * self.segment_bytes
    }

    /// Where a group of `bytes` goes if the one before ended at `offset`.
    #[must_use]
    pub fn place(&self, offset: u64, bytes: u64) -> u64 {
        let number = self.segment_of(offset);
        let at_header = self.position_of(offset) < SEGMENT_HEADER_BYTES;
        let start = if at_header {
            self.first_offset(number)
        } else {
            offset
        };
        if start + bytes <= self.end_offset(number) {
            start
        } else {
            self.first_offset(number + 1)
        }
    }
}
