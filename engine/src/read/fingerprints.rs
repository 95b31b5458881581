//! Fingerprints: what a record is known by: as its writer supplied it, else the SHA-256 of its payload.
//!
//! **Invariants**
//! - The same answer wherever the record lies: packs keep in their columns what is computed here.
//! - Hashing is work for a side thread; the shard stays responsive.
//!
//! **Not here**: reading columns (`packs`).

use sealog_frame::{FrameError, FrameView, RecordView};

use super::{ReadChunk, ReadRequest};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::ids::Digest;
use crate::shard::LogService;

/// Bytes of a fingerprint.
const FINGERPRINT_BYTES: usize = 32;

/// The fingerprint of a record: as its writer supplied it, else the SHA-256 of its payload.
#[must_use]
pub fn fingerprint(record: &RecordView<'_>) -> [u8; 32] {
    match record.fingerprint {
        Some(supplied) => *supplied,
        None => Digest::of(record.payload).0,
    }
}

/// What a frame takes of an answer's room: itself, and the fingerprints of its records if they are asked for.
pub(super) fn room_for(frame: &FrameView<'_>, request: &ReadRequest) -> usize {
    let prints = match request.fingerprints {
        true => frame.record_count() * FINGERPRINT_BYTES,
        false => 0,
    };
    frame.as_bytes().len() + prints
}

/// What an answer holds of the room that was taken for it.
pub(super) fn held_bytes(chunk: &ReadChunk) -> usize {
    chunk.frames.len() + chunk.fingerprints.len() * FINGERPRINT_BYTES
}

impl<E: Env> LogService<E> {
    /// Adds the fingerprints of the frames from byte `from` on, which came out of the log.
    pub(super) async fn add_fingerprints(&self, from: usize, chunk: &mut ReadChunk) -> Result<()> {
        if from == chunk.frames.len() {
            return Ok(());
        }
        let frames = std::mem::take(&mut chunk.frames);
        let job = move || {
            let computed = of_frames(&frames[from..]);
            (frames, computed)
        };
        let (frames, computed) = self.env.offload(job).await;
        let computed = computed.map_err(|error| Error::corrupt("log", from as u64, error))?;
        chunk.frames = frames;
        chunk.fingerprints.extend(computed);
        Ok(())
    }
}

fn of_frames(mut frames: &[u8]) -> std::result::Result<Vec<[u8; 32]>, FrameError> {
    let mut found = Vec::new();
    while !frames.is_empty() {
        let (frame, rest) = FrameView::split_trusted(frames)?;
        found.extend(frame.records().map(|record| fingerprint(&record)));
        frames = rest;
    }
    Ok(found)
}
