//! Packs: a stream's batches out of packs, by ranged reads.
//!
//! **Invariants**
//! - A block's header and every frame in it are checked before a byte of it is returned.
//!
//! **Not here**: which pack (`locate`).

use std::rc::Rc;

use super::cache::Cached;
use super::{ReadChunk, ReadRequest};
use crate::commit::{PackPlace, PackRef, paths};
use crate::env::{Bucket, BucketError, Env};
use crate::error::{Error, Result};
use crate::ids::{Digest, FeedId, LogId, Sequence, StreamId};
use crate::pack::{BlockView, PACK_FOOTER_BYTES, PackFooter, PackIndex};
use crate::shard::LogService;

impl<E: Env> LogService<E> {
    /// Path and index of a pack.
    pub(crate) async fn pack_index(
        self: &Rc<Self>,
        name: &str,
        feed: FeedId,
        stream: StreamId,
        pack: &PackRef,
    ) -> Result<(String, Rc<PackIndex>)> {
        let path = match pack.place {
            PackPlace::Stream => paths::stream_pack(name, feed, stream, &pack.digest),
            PackPlace::Shared(log) => paths::shared_pack(log, &pack.digest),
        };
        if let Some(Cached::Pack(index)) = self.read_cache.borrow_mut().get(&path) {
            return Ok((path, index));
        }
        let index = Rc::new(self.read_index(&path, pack.pack_bytes).await?);
        self.read_cache
            .borrow_mut()
            .put(&path, Cached::Pack(index.clone()));
        Ok((path, index))
    }

    /// Index of the shared pack of that digest and length. Not kept: it may be nobody's.
    pub(crate) async fn shared_index(
        &self,
        log: LogId,
        digest: &Digest,
        bytes: u64,
    ) -> Result<PackIndex> {
        self.read_index(&paths::shared_pack(log, digest), bytes)
            .await
    }

    async fn read_index(&self, path: &str, bytes: u64) -> Result<PackIndex> {
        let footer_at = bytes.saturating_sub(PACK_FOOTER_BYTES as u64);
        let tail = self.range(path, footer_at..bytes).await?;
        let decode = |error| Error::decode(path, footer_at, error);
        let footer = PackFooter::decode(&tail, bytes).map_err(decode)?;
        let parts = self.range(path, footer.index_range()).await?;
        PackIndex::decode(&footer, &parts)
            .map_err(|error| Error::decode(path, footer.index_range().start, error))
    }

    /// Adds frames of `stream` out of `pack`.
    pub(super) async fn read_pack(
        self: &Rc<Self>,
        feed: FeedId,
        stream: StreamId,
        pack: &PackRef,
        request: &ReadRequest,
        chunk: &mut ReadChunk,
    ) -> Result<()> {
        let (path, index) = self.pack_index(&request.feed, feed, stream, pack).await?;
        let blocks = index.blocks_for(feed, stream, Sequence(chunk.next));
        let mut blocks = blocks.iter().peekable();
        while chunk.next < request.end.min(pack.end.0) && chunk.frames.len() < request.bytes_max {
            let Some(first) = blocks.next() else { break };
            // Neighbouring blocks come in one ranged read.
            let mut range = first.range();
            let budget = (request.bytes_max - chunk.frames.len()) as u64;
            while let Some(next) = blocks.peek()
                && next.range().start == range.end
                && next.range().end - range.start <= budget
                && next.first().0 < request.end
            {
                range.end = next.range().end;
                blocks.next();
            }
            let bytes = self.range(&path, range.clone()).await?;
            take_blocks(&path, range.start, &bytes, request, chunk)?;
            self.env.yield_if_needed().await;
        }
        // Sequences that compaction took out of the end of the section are a recorded gap.
        if chunk.next < pack.end.0
            && blocks.peek().is_none()
            && chunk.frames.len() < request.bytes_max
        {
            chunk.next = pack.end.0.min(request.end);
        }
        Ok(())
    }

    async fn range(&self, path: &str, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        match self.env.bucket().get_range(path, range.start, len).await {
            Ok(bytes) if bytes.len() == len => Ok(bytes),
            Ok(bytes) => {
                let at = range.start + bytes.len() as u64;
                Err(Error::corrupt(path, at, "object ends early"))
            }
            Err(BucketError::NotFound { key }) => Err(Error::corrupt(key, 0, "object is gone")),
            Err(error) => Err(error.into()),
        }
    }
}

fn take_blocks(
    path: &str,
    offset: u64,
    bytes: &[u8],
    request: &ReadRequest,
    chunk: &mut ReadChunk,
) -> Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let at = offset + (bytes.len() - rest.len()) as u64;
        let (block, after) = BlockView::parse(rest).map_err(|e| Error::decode(path, at, e))?;
        for frame in block.frames_from(Sequence(chunk.next)) {
            let frame = frame.map_err(|error| Error::corrupt(path, at, error))?;
            if frame.base_sequence() >= request.end {
                break;
            }
            chunk.frames.extend_from_slice(frame.as_bytes());
            chunk.next = frame.end_sequence().min(request.end);
        }
        rest = after;
    }
    Ok(())
}
