//! Fold: what is computed over the frames of a section, by the builder and again by the verifier.
//!
//! **Invariants**
//! - PACK-5: frames of a section come in rising order of sequence.
//! - PACK-12: every record is hashed once, as it lies in the frame.
//! - PACK-10: the key run gets the newest record of every key.
//! - Nothing has changed when a frame is refused.
//!
//! **Not here**: the bytes of the section.

use super::PackError;
use super::keys::{KeyRun, KeyState};
use super::layout::invalid;
use super::merkle::{Merkle, record_leaf};
use sealog_frame::{FrameView, RecordView};

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

/// Key run, tree and span of the section so far.
#[derive(Debug, Default)]
pub(crate) struct SectionFold {
    pub span: Option<FrameSpan>,
    pub tree: Merkle,
    pub keys: KeyRun,
}

impl SectionFold {
    /// Takes in the next frame; gives its span.
    pub fn frame(&mut self, frame: &FrameView<'_>) -> Result<FrameSpan, PackError> {
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
        frame.records().for_each(|record| self.record(&record));
        self.span = Some(FrameSpan::then(self.span, span));
        Ok(span)
    }

    fn record(&mut self, record: &RecordView<'_>) {
        let (entry, area) = record.encoded();
        self.tree
            .push_leaf(record_leaf(record.sequence, entry, area));
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
        self.keys.buffered_bytes()
    }
}
