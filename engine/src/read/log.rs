//! Log: a stream's batches out of durable groups.
//!
//! **Invariants**
//! - Stops at the durable frontier and at the requested bound.
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
        while chunk.next < bound && chunk.frames.len() < request.bytes_max {
            let group = match reader.group(at).await? {
                Ok(group) => group,
                Err(Missing::AtEnd) => return Ok(false),
                Err(Missing::Retired) => return Ok(true),
            };
            at = group.header.end();
            take_frames(&group, (feed, stream), request, chunk)?;
            self.env.yield_if_needed().await;
        }
        Ok(false)
    }
}

fn take_frames(
    group: &Group,
    key: (FeedId, StreamId),
    request: &ReadRequest,
    chunk: &mut ReadChunk,
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
            chunk.frames.extend_from_slice(frame);
            chunk.next = view.end_sequence().min(request.end);
        }
    }
    Ok(())
}
