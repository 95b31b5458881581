//! Fold: what is computed over the frames of a section, by the builder and again by the verifier.
//!
//! **Invariants**
//! - PACK-5: frames of a section come in rising order of sequence.
//! - PACK-12, PACK-15: every payload is hashed once; column and leaf take the same digest.
//! - PACK-10: the key run gets the newest record of every key.
//! - Nothing has changed when a frame is refused.
//!
//! **Not here**: the bytes of the section.

use super::PackError;
use super::column::Column;
use super::keys::{KeyRun, KeyState};
use super::layout::invalid;
use super::merkle::{Merkle, record_leaf};
use crate::ids::Digest;
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
    /// The span of a frame that can be next. Nothing changes yet.
    pub fn span_of(&self, frame: &FrameView<'_>) -> Result<FrameSpan, PackError> {
        let base = frame.base_sequence();
        if self.span.is_some_and(|span| base < span.end) {
            return Err(invalid("base_sequence", base).into());
        }
        let first = frame.record(0).ok_or(invalid("record_count", 0))?;
        Ok(FrameSpan {
            first: base,
            end: frame.end_sequence(),
            frames: 1,
            records: frame.record_count() as u64,
            payload_bytes: frame.payload_bytes(),
            first_timestamp_ms: first.timestamp_ms,
            max_timestamp_ms: frame.last_timestamp_ms(),
        })
    }

    /// Takes in the next frame, of that [`SectionFold::span_of`]; its payloads' digests go to `column`.
    pub fn frame(&mut self, frame: &FrameView<'_>, span: FrameSpan, column: &mut Column) {
        frame
            .records()
            .for_each(|record| self.record(&record, column));
        self.span = Some(FrameSpan::then(self.span, span));
    }

    fn record(&mut self, record: &RecordView<'_>, column: &mut Column) {
        let payload = Digest::of(record.payload).0;
        column.push(&payload);
        let (entry, area) = record.encoded();
        let lead = &area[..area.len() - record.payload.len()];
        self.tree
            .push_leaf(record_leaf(record.sequence, &payload, entry, lead));
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
