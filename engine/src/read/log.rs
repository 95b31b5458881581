//! Log: a stream's batches out of durable groups.
//!
//! **Invariants**
//! - Stops at the durable frontier and at the requested bound.
//!
//! **Not here**: groups themselves (`wal::reader`).

use std::rc::Rc;

use sealog_frame::FrameView;

use super::fingerprints::room_for;
use super::room::Room;
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
        (feed, stream): (FeedId, StreamId),
        range: std::ops::Range<u64>,
        request: &ReadRequest,
        chunk: &mut ReadChunk,
        room: &mut Room<'_>,
    ) -> Result<bool> {
        let mut reader = LogReader::within(self.wal.clone(), self.reading.clone());
        let mut at = range.start;
        let mut damage = None;
        let bound = range.end.min(request.end);
        while chunk.next < bound && chunk.frames.len() < request.bytes_max && !room.is_short() {
            let group = match reader.group(at).await {
                Ok(Ok(group)) => group,
                Ok(Err(Missing::AtEnd)) => break,
                Ok(Err(Missing::Retired)) => return Ok(true),
                Err(error @ Error::Corrupt { .. }) => {
                    // What lies behind may be whole; whoever asked for what is damaged is told so.
                    let behind = reader.behind_damage(at).await?;
                    damage.get_or_insert(error);
                    let Some(behind) = behind else { break };
                    at = behind;
                    continue;
                }
                Err(error) => return Err(error),
            };
            at = group.header.end();
            if missing_before(&group, (feed, stream), chunk.next)? {
                break;
            }
            take_frames(&group, (feed, stream), request, chunk, room)?;
            self.env.yield_if_needed().await;
        }
        match damage {
            // What lies behind may only not have found room yet.
            Some(damage) if chunk.frames.is_empty() && !room.is_short() => Err(damage),
            _ => Ok(false),
        }
    }
}

/// Whether the first batch of `key` in `group` begins behind `next`: damage took what is between.
fn missing_before(group: &Group, key: (FeedId, StreamId), next: u64) -> Result<bool> {
    let corrupt = |detail: String| Error::corrupt("log group", group.header.offset, detail);
    for entry in group.entries() {
        let entry = entry.map_err(|error| corrupt(error.to_string()))?;
        if (entry.feed, entry.stream) == key
            && let Some(frame) = entry.frame()
        {
            let view = FrameView::trusted(frame).map_err(|error| corrupt(error.to_string()))?;
            return Ok(view.base_sequence() > next);
        }
    }
    Ok(false)
}

fn take_frames(
    group: &Group,
    key: (FeedId, StreamId),
    request: &ReadRequest,
    chunk: &mut ReadChunk,
    room: &mut Room<'_>,
) -> Result<()> {
    let corrupt = |detail: String| Error::corrupt("log group", group.header.offset, detail);
    for entry in group.entries() {
        let entry = entry.map_err(|error| corrupt(error.to_string()))?;
        if (entry.feed, entry.stream) != key || chunk.frames.len() >= request.bytes_max {
            continue;
        }
        let Some(frame) = entry.frame() else { continue };
        let view = FrameView::trusted(frame).map_err(|error| corrupt(error.to_string()))?;
        if view.end_sequence() > chunk.next && view.base_sequence() < request.end {
            if !room.add(room_for(&view, request)) {
                break;
            }
            chunk.frames.extend_from_slice(frame);
            chunk.next = view.end_sequence().min(request.end);
        }
    }
    Ok(())
}
