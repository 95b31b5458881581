//! Frame limits: the bounds a user can hit, and the bound on a whole frame that follows from them.
//!
//! **Invariants**
//! - A frame within every limit is at most [`FrameLimits::frame_bytes_max`] long.
//! - No limit lets a frame outgrow its own u32 length field.
//!
//! **Not here**: limits of feeds, sessions and memory; the engine's own file has them.

use crate::layout::{ENTRY_BYTES, FINGERPRINT_BYTES, FRAME_HEADER_BYTES, HEADER_PREFIX_BYTES};
use crate::layout::{SPARSE_DELTA_BYTES, SPARSE_TIMESTAMP_BYTES};

/// What a batch and its records may be at most. A deployment may lower these, not raise them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    /// Payload plus header names and values of one record, in bytes: 16 MiB.
    pub record_bytes_max: usize,
    /// Key of one record, in bytes: 64 KiB.
    pub key_bytes_max: usize,
    /// Metered bytes of a batch (payloads, keys, header names and values): 16 MiB.
    pub batch_bytes_max: usize,
    /// Records of a batch: 65,536.
    pub records_max: usize,
    /// Producer id, in bytes: 256. The least is 1.
    pub producer_id_bytes_max: usize,
    /// Headers of a batch, over all its records: 262,144. Bounds the bytes that are not metered.
    pub headers_max: usize,
}

impl FrameLimits {
    /// The format's own limits. Stored frames are read under these, whatever the configuration has been lowered to.
    pub const DEFAULT: Self = Self {
        record_bytes_max: 16 << 20,
        key_bytes_max: 64 << 10,
        batch_bytes_max: 16 << 20,
        records_max: 65_536,
        producer_id_bytes_max: 256,
        headers_max: 262_144,
    };

    /// These limits, each lowered to the format's own where it is above it.
    #[must_use]
    pub fn lowered(&self) -> Self {
        let format = Self::DEFAULT;
        Self {
            record_bytes_max: self.record_bytes_max.min(format.record_bytes_max),
            key_bytes_max: self.key_bytes_max.min(format.key_bytes_max),
            batch_bytes_max: self.batch_bytes_max.min(format.batch_bytes_max),
            records_max: self.records_max.min(format.records_max),
            producer_id_bytes_max: self.producer_id_bytes_max.min(format.producer_id_bytes_max),
            headers_max: self.headers_max.min(format.headers_max),
        }
    }

    /// The most bytes a whole frame can have: what a receiver may have to reserve.
    #[must_use]
    pub const fn frame_bytes_max(&self) -> usize {
        const PER_RECORD: usize =
            ENTRY_BYTES + SPARSE_DELTA_BYTES + SPARSE_TIMESTAMP_BYTES + FINGERPRINT_BYTES;
        let records = self.records_max.saturating_mul(PER_RECORD);
        let headers = self.headers_max.saturating_mul(HEADER_PREFIX_BYTES);
        let sum = FRAME_HEADER_BYTES
            .saturating_add(self.producer_id_bytes_max)
            .saturating_add(self.batch_bytes_max)
            .saturating_add(records)
            .saturating_add(headers);
        if sum > u32::MAX as usize {
            u32::MAX as usize
        } else {
            sum
        }
    }
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const _: () = {
    let limits = FrameLimits::DEFAULT;
    // So every length within a built frame fits in the u32 fields without a check of its own.
    assert!(limits.frame_bytes_max() < 32 << 20);
    assert!(limits.key_bytes_max <= limits.batch_bytes_max);
    assert!(limits.record_bytes_max <= limits.batch_bytes_max);
    assert!(limits.producer_id_bytes_max <= u16::MAX as usize);
};
