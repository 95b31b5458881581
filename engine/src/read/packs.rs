//! Packs: a stream's batches out of packs, by ranged reads.
//!
//! **Invariants**
//! - A block's header and every frame in it are checked before a byte of it is returned; so is its column,
//!   which is read for those who ask for fingerprints.
//!
//! **Not here**: which pack (`locate`).

use std::rc::Rc;

use super::cache::Cached;
use super::fingerprints::room_for;
use super::room::Room;
use super::{ReadChunk, ReadRequest};
use crate::commit::{PackPlace, PackRef, paths};
use crate::env::{Bucket, BucketError, Env};
use crate::error::{Error, Result};
use crate::ids::{Digest, FeedId, LogId, Sequence, StreamId};
use crate::pack::{BlockView, ColumnView, IndexEntry, PACK_FOOTER_BYTES, PackFooter, PackIndex};
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
        (feed, stream): (FeedId, StreamId),
        pack: &PackRef,
        request: &ReadRequest,
        chunk: &mut ReadChunk,
        room: &mut Room<'_>,
    ) -> Result<()> {
        let (path, index) = self.pack_index(&request.feed, feed, stream, pack).await?;
        let mut blocks = index.blocks_for(feed, stream, Sequence(chunk.next));
        while chunk.next < request.end.min(pack.end.0)
            && chunk.frames.len() < request.bytes_max
            && !room.is_short()
            && !room.is_filled()
            && let Some(first) = blocks.first()
        {
            // Neighbouring blocks come in one ranged read, with the columns between them.
            let start = first.range().start;
            let budget = (request.bytes_max - chunk.frames.len()) as u64;
            let fits = |next: &&IndexEntry| {
                next.first().0 < request.end && end_of(next, request) - start <= budget
            };
            let count = 1 + blocks[1..].iter().take_while(fits).count();
            let (now, later) = blocks.split_at(count);
            let end = now.last().map_or(start, |last| end_of(last, request));
            let fetched = usize::try_from(end - start).unwrap_or(usize::MAX);
            let _fetching = self.fetching.acquire(fetched).await;
            let bytes = self.range(&path, start..end).await?;
            chunk.frames.reserve(fetched);
            for row in now {
                let at = (row.range().start - start) as usize;
                take_block(&path, row, &bytes[at..], request, chunk, room)?;
            }
            blocks = later;
            self.env.yield_if_needed().await;
        }
        // Sequences that compaction took out of the end of the section are a recorded gap.
        let through = blocks.is_empty() && !room.is_short();
        if chunk.next < pack.end.0 && through && chunk.frames.len() < request.bytes_max {
            chunk.next = pack.end.0.min(request.end);
            chunk.over_gap = true;
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

/// Where to stop reading, when `row` is the last block that is wanted.
fn end_of(row: &IndexEntry, request: &ReadRequest) -> u64 {
    if request.fingerprints {
        row.column_range().end
    } else {
        row.range().end
    }
}

/// Adds the frames that are wanted of the block at the front of `bytes`; its column follows it.
fn take_block(
    path: &str,
    row: &IndexEntry,
    bytes: &[u8],
    request: &ReadRequest,
    chunk: &mut ReadChunk,
    room: &mut Room<'_>,
) -> Result<()> {
    let at = row.range().start;
    let (block, rest) = BlockView::parse(bytes).map_err(|e| Error::decode(path, at, e))?;
    if !row.is_of(block.header()) {
        return Err(Error::corrupt(
            path,
            at,
            "not the block that the index says",
        ));
    }
    let column_at = row.column_range();
    let mut column = if request.fingerprints {
        let part = &rest[..(column_at.end - column_at.start) as usize];
        let view = ColumnView::parse(part, row.records());
        Some(view.map_err(|error| Error::decode(path, column_at.start, error))?)
    } else {
        None
    };
    // To find a frame's place in the column, all frames before it must be whole.
    let from = column.map_or(chunk.next, |_| 0);
    for frame in block.frames_from(Sequence(from)) {
        let frame = frame.map_err(|error| Error::corrupt(path, at, error))?;
        if frame.base_sequence() >= request.end {
            break;
        }
        let digests = match &mut column {
            Some(column) => column
                .take(frame.record_count())
                .map_err(|error| Error::decode(path, column_at.start, error))?,
            None => &[],
        };
        if frame.end_sequence() <= chunk.next {
            continue;
        }
        if !room.add(room_for(&frame, request)) {
            break;
        }
        chunk.frames.extend_from_slice(frame.as_bytes());
        chunk.next = frame.end_sequence().min(request.end);
        let records = frame.records().zip(digests);
        let prints = records.map(|(record, digest)| *record.fingerprint.unwrap_or(digest));
        chunk.fingerprints.extend(prints);
    }
    Ok(())
}
