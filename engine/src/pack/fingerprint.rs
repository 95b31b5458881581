//! Fingerprint column: 32 bytes per record of a section, in chunks that are checked one by one. Spec: spec/pack.md §4.
//!
//! **Invariants**
//! - PACK-8: a record's fingerprint is the one supplied, else the SHA-256 of its payload.
//! - PACK-9: chunks hold [`CHUNK_RECORDS`] fingerprints each, the last one fewer; so the chunk of a
//!   record follows from its position in the section.
//!
//! **Not here**: which records share a fingerprint (`read`).

use super::layout::{self, invalid, truncated};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::StreamId;
use std::ops::Range;

pub(crate) const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"SLFP");
/// Fingerprints in a full chunk: with the header it fills one 4 KiB block.
pub const CHUNK_RECORDS: u64 = 127;
/// Bytes of a chunk's header.
pub(crate) const CHUNK_HEADER_BYTES: usize = 32;
pub(crate) const FINGERPRINT_BYTES: usize = 32;
const CHUNK_BYTES: u64 = CHUNK_HEADER_BYTES as u64 + CHUNK_RECORDS * FINGERPRINT_BYTES as u64;
const CRC_AT: usize = 4;
const _: () = assert!(CHUNK_BYTES == 4096);

/// Collects the column of one section.
#[derive(Debug, Default)]
pub(crate) struct FingerprintColumn {
    bytes: Vec<u8>,
    records: u64,
}

impl FingerprintColumn {
    pub fn push(&mut self, stream: StreamId, fingerprint: &[u8; 32]) {
        if self.records.is_multiple_of(CHUNK_RECORDS) {
            self.seal_chunk();
            let mut header = Writer(std::mem::take(&mut self.bytes));
            header.u32(CHUNK_MAGIC).u32(0).u32(0).u32(0);
            header.u64(self.records).u64(stream.0);
            self.bytes = header.0;
        }
        self.bytes.extend_from_slice(fingerprint);
        self.records += 1;
    }

    pub fn buffered_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The column's bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.seal_chunk();
        self.bytes
    }

    fn seal_chunk(&mut self) {
        let Some(before) = self.records.checked_sub(1) else {
            return;
        };
        let start = (before / CHUNK_RECORDS * CHUNK_BYTES) as usize;
        let chunk = &mut self.bytes[start..];
        let count = (chunk.len() - CHUNK_HEADER_BYTES) / FINGERPRINT_BYTES;
        chunk[8..12].copy_from_slice(&layout::stored_u32(count).to_le_bytes());
        layout::seal(chunk, CRC_AT);
    }
}

/// A checked chunk of the column.
#[derive(Debug, Clone, Copy)]
pub struct FingerprintChunk<'a> {
    first_record: u64,
    stream: StreamId,
    fingerprints: &'a [[u8; 32]],
}

/// Length of the chunk that begins with `header`. Not yet checked, but within a chunk's bounds.
pub(crate) fn peek_chunk_bytes(header: &[u8]) -> Result<usize, DecodeError> {
    let count = layout::u32_at(header, 8)?;
    if count == 0 || u64::from(count) > CHUNK_RECORDS {
        return Err(invalid("fingerprint_count", count.into()));
    }
    Ok(CHUNK_HEADER_BYTES + count as usize * FINGERPRINT_BYTES)
}

impl<'a> FingerprintChunk<'a> {
    /// Checks the chunk at the front of `bytes` and gives what follows it.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when the chunk goes on beyond `bytes`; any other when it is damaged.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let magic = layout::u32_at(bytes, 0)?;
        if magic != CHUNK_MAGIC {
            return Err(DecodeError::Magic {
                format: "fingerprint chunk",
                found: magic.into(),
            });
        }
        let len = peek_chunk_bytes(bytes)?;
        let (chunk, rest) = bytes
            .split_at_checked(len)
            .ok_or(truncated(len, bytes.len()))?;
        layout::check_crc("fingerprint chunk", chunk, CRC_AT)?;
        layout::zero("reserved", &chunk[12..16])?;
        let (header, body) = chunk.split_at(CHUNK_HEADER_BYTES);
        let mut r = Reader(&header[16..]);
        let view = Self {
            first_record: r.u64()?,
            stream: StreamId(r.u64()?),
            fingerprints: body.as_chunks().0,
        };
        Ok((view, rest))
    }

    /// Position in the section of its first record.
    #[must_use]
    pub fn first_record(&self) -> u64 {
        self.first_record
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The fingerprints in record order.
    #[must_use]
    pub fn fingerprints(&self) -> &'a [[u8; 32]] {
        self.fingerprints
    }

    /// The fingerprint of the record at this position in the section, if it is in this chunk.
    #[must_use]
    pub fn get(&self, record: u64) -> Option<&'a [u8; 32]> {
        let at = record.checked_sub(self.first_record)?;
        self.fingerprints.get(usize::try_from(at).ok()?)
    }
}

/// Where the chunks lie, relative to the column, that hold the fingerprints of `records` of a
/// section of `total` records.
#[must_use]
pub(crate) fn chunks_of(records: Range<u64>, total: u64) -> Range<u64> {
    let records = records.start.min(total)..records.end.min(total);
    if records.is_empty() {
        return 0..0;
    }
    let start = records.start / CHUNK_RECORDS * CHUNK_BYTES;
    let end = records
        .end
        .div_ceil(CHUNK_RECORDS)
        .saturating_mul(CHUNK_BYTES);
    start..end.min(column_bytes(total))
}

/// Length of the column of a section of `total` records.
#[must_use]
pub(crate) fn column_bytes(total: u64) -> u64 {
    let headers = total
        .div_ceil(CHUNK_RECORDS)
        .saturating_mul(CHUNK_HEADER_BYTES as u64);
    headers.saturating_add(total.saturating_mul(FINGERPRINT_BYTES as u64))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn column(records: u64) -> Vec<u8> {
        let mut column = FingerprintColumn::default();
        (0..records).for_each(|n| column.push(StreamId(4), &[n as u8; 32]));
        column.finish()
    }

    #[test]
    fn chunks_of_every_record_hold_it_and_no_more() {
        for total in [1, 126, 127, 128, 254, 300] {
            let bytes = column(total);
            assert_eq!(bytes.len() as u64, column_bytes(total));
            for record in 0..total {
                let range = chunks_of(record..record + 1, total);
                assert!(range.end - range.start <= CHUNK_BYTES);
                let bytes = &bytes[range.start as usize..range.end as usize];
                let (chunk, rest) = FingerprintChunk::parse(bytes).unwrap();
                assert!(rest.is_empty());
                assert_eq!(chunk.get(record), Some(&[record as u8; 32]));
                assert_eq!(chunk.stream(), StreamId(4));
            }
            let all = chunks_of(0..total, total);
            assert_eq!(all, 0..bytes.len() as u64);
            assert!(chunks_of(total..total + 9, total).is_empty());
        }
        assert!(column(0).is_empty());
    }

    #[test]
    fn exhaustive_chunk_any_flipped_bit_or_cut_is_detected() {
        let bytes = column(3);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(
                    FingerprintChunk::parse(&damaged).is_err(),
                    "byte {at} bit {bit}"
                );
            }
            assert!(
                FingerprintChunk::parse(&bytes[..at]).is_err(),
                "cut at {at}"
            );
        }
    }
}
