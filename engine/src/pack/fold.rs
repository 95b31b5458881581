//! Fold: what is computed over the frames of a section, by the builder and again by the verifier.
//!
//! **Invariants**
//! - PACK-5: frames of a section come in rising order of sequence.
//! - A payload is hashed once: its digest is in the leaf and is the default fingerprint (PACK-8, PACK-12).
//! - PACK-10: the key run gets the newest record of every key.
//! - Nothing has changed when a frame is refused.
//!
//! **Not here**: the bytes of the section.

use super::PackError;
use super::fingerprint::FingerprintColumn;
use super::keys::{KeyRun, KeyState};
use super::layout::invalid;
use super::merkle::{Merkle, RecordParts, record_leaf};
use crate::ids::StreamId;
use sealog_frame::{FrameView, RecordView};
use sha2::{Digest as _, Sha256};

/// Range, counts and timestamps over some frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameSpan {
    pub first: u64,
    pub end: u64,
    pub frames: u32,
    pub records: u64,
    pub payload_bytes: u64,
    pub first_timestamp_ms: u64,
    pub max_timestamp_ms: u64,
}

impl FrameSpan {
    /// The span of these frames and the ones of `next` after them.
    pub fn then(before: Option<Self>, next: Self) -> Self {
        let Some(before) = before else { return next };
        Self {
            first: before.first,
            end: next.end,
            frames: before.frames + next.frames,
            records: before.records + next.records,
            payload_bytes: before.payload_bytes + next.payload_bytes,
            first_timestamp_ms: before.first_timestamp_ms,
            max_timestamp_ms: before.max_timestamp_ms.max(next.max_timestamp_ms),
        }
    }
}

/// Columns, tree and span of the section so far.
#[derive(Debug, Default)]
pub(crate) struct SectionFold {
    pub span: Option<FrameSpan>,
    pub tree: Merkle,
    pub fingerprints: FingerprintColumn,
    pub keys: KeyRun,
}

impl SectionFold {
    /// Takes in the next frame; gives its span.
    pub fn frame(
        &mut self,
        stream: StreamId,
        frame: &FrameView<'_>,
    ) -> Result<FrameSpan, PackError> {
        let base = frame.base_sequence();
        if self.span.is_some_and(|span| base < span.end) {
            return Err(invalid("base_sequence", base).into());
        }
        let first = frame.record(0).ok_or(invalid("record_count", 0))?;
        let span = FrameSpan {
            first: base,
            end: frame.end_sequence(),
            frames: 1,
            records: frame.record_count() as u64,
            payload_bytes: frame.payload_bytes(),
            first_timestamp_ms: first.timestamp_ms,
            max_timestamp_ms: frame.last_timestamp_ms(),
        };
        frame
            .records()
            .for_each(|record| self.record(stream, &record));
        self.span = Some(FrameSpan::then(self.span, span));
        Ok(span)
    }

    fn record(&mut self, stream: StreamId, record: &RecordView<'_>) {
        let payload_digest: [u8; 32] = Sha256::digest(record.payload).into();
        let (entry, area) = record.encoded();
        let meta_bytes = area.len() - record.payload.len();
        self.tree.push_leaf(record_leaf(&RecordParts {
            sequence: record.sequence,
            entry,
            meta: &area[..meta_bytes],
            payload_bytes: record.payload.len(),
            payload_digest: &payload_digest,
        }));
        let fingerprint = record.fingerprint.unwrap_or(&payload_digest);
        self.fingerprints.push(stream, fingerprint);
        if let Some(key) = record.key {
            let state = KeyState {
                version: record.version,
                sequence: record.sequence,
                tombstone: record.tombstone,
            };
            self.keys.add(key, state);
        }
    }

    /// Memory in use, in bytes, roughly.
    pub fn buffered_bytes(&self) -> usize {
        self.fingerprints.buffered_bytes() + self.keys.buffered_bytes()
    }
}
