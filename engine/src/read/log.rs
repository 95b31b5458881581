//! Log: a stream's batches out of durable groups.
//!
//! **Invariants**
//! - Stops at the durable frontier and at the requested bound.
//! - A damaged group costs the records in it, not those behind it.
//!
//! **Not here**: groups themselves (`wal::reader`).

use std::rc::Rc;

use sealog_frame::FrameView;

use super::{ReadChunk, ReadRequest};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::ids::{FeedId, StreamId};
use crate::shard::LogService;
use crate::wal::reader::{Group, LogReader, Missing};

impl<E: Env> LogService<E> {
    /// Adds frames of `stream` from the log; `true` when the log was retired under the reader.
    pub(super) async fn read_log(
        self: &Rc<Self>,
        feed: FeedId,
        stream: StreamId,
        offset: u64,
        end: u64,
        request: &ReadRequest,
        chunk: &mut ReadChunk,
    ) -> Result<bool> {
        let mut reader = LogReader::new(self.wal.clone());
        let mut at = offset;
        let bound = end.min(request.end);
        let mut damage = None;
        while chunk.next < bound && chunk.frames.len() < request.bytes_max {
            let group = match reader.group(at).await {
                Ok(Ok(group)) => group,
                Ok(Err(Missing::AtEnd)) => return damage.map_or(Ok(false), Err),
                Ok(Err(Missing::Retired)) => return Ok(true),
                // The next answer begins at the damage.
                Err(Error::Corrupt { .. }) if !chunk.frames.is_empty() => return Ok(false),
                Err(error @ Error::Corrupt { .. }) => match reader.behind_damage(at).await? {
                    // What is asked for may lie behind it.
                    Some(behind) => {
                        damage.get_or_insert(error);
                        at = behind;
                        continue;
                    }
                    None => return Err(damage.unwrap_or(error)),
                },
                Err(error) => return Err(error),
            };
            at = group.header.end();
            take_frames(&group, (feed, stream), request, chunk, &mut damage)?;
            self.env.yield_if_needed().await;
        }
        Ok(false)
    }
}

/// Adds the frames asked for. `damage` is what was skipped on the way to the first of them.
fn take_frames(
    group: &Group,
    key: (FeedId, StreamId),
    request: &ReadRequest,
    chunk: &mut ReadChunk,
    damage: &mut Option<Error>,
) -> Result<()> {
    let corrupt = |detail: String| Error::corrupt("log group", group.header.offset, detail);
    for entry in group.entries() {
        let entry = entry.map_err(|error| corrupt(error.to_string()))?;
        if (entry.feed, entry.stream) != key || chunk.frames.len() >= request.bytes_max {
            continue;
        }
        let Some(frame) = entry.frame() else { continue };
        let view = FrameView::trusted(frame).map_err(|error| corrupt(error.to_string()))?;
        if view.end_sequence() <= chunk.next {
            continue;
        }
        if let Some(damage) = damage.take()
            && view.base_sequence() > chunk.next
        {
            // The records in between were in the damaged groups.
            return Err(damage);
        }
        if view.base_sequence() < request.end {
            chunk.frames.extend_from_slice(frame);
            chunk.next = view.end_sequence().min(request.end);
        }
    }
    Ok(())
}
