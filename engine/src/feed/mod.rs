//! Feed: the state of feeds and their unpublished streams: what a log folds to. Spec: spec/lease.md §1.
//!
//! **Invariants**
//! - FEED-1: `next_sequence` and the epoch only rise.
//! - FEED-2: streams are in id order and their ranges do not overlap; at most the newest is open.
//! - FEED-3: commits are numbered in stream order: a stream is sealed only when all older ones are.
//! - FEED-4: packs of a stream are in sequence order, without gap, from its first sequence to
//!   `packed_end`; what lies behind is in the log, found by `index`.
//!
//! **Not here**: admission (`append`), durability (`wal`).

mod codec;
mod fold;
mod lineage;
mod offline;
mod options;
mod store;

pub use fold::Misfit;
pub use lineage::{Base, Lineage, Pin};
pub(crate) use offline::Seen;
pub(crate) use options::FeedFlags;
pub use options::FeedOptions;
pub use store::{Doomed, Feeds};

use std::rc::Rc;

use crate::commit::PackRef;
use crate::ids::{CommitNumber, Digest, Epoch, FeedId, StreamId};
use crate::producer::Producers;
use crate::wal::entry::Seal;

/// How a feed was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closing {
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// What whoever closed it keeps with that, at most 4,096 bytes: the engine doesn't look at them.
    pub note: Box<[u8]>,
}

/// Where in the log a run of a stream's batches begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// Base sequence of the first of the stream's batches in the group, or after it.
    pub sequence: u64,
    /// Log offset of the group.
    pub offset: u64,
}

/// Counts over a run of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Records.
    pub records: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Effective timestamp of the first record.
    pub first_timestamp_ms: u64,
    /// Highest effective timestamp.
    pub max_timestamp_ms: u64,
}

/// A stream that is not published yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Its id.
    pub id: StreamId,
    /// Epoch it was opened under; once sealed, the one it was sealed under.
    pub epoch: Epoch,
    /// Its first sequence.
    pub first: u64,
    /// One past its last sequence.
    pub end: u64,
    /// Counts over its records.
    pub totals: Totals,
    /// Arrival of its first record, in milliseconds since the Unix epoch; kept of a feed that rolls only.
    pub first_arrival_ms: u64,
    /// Set once sealed.
    pub seal: Option<Box<Seal>>,
    /// Set once manifest and key index are durable in the bucket.
    pub manifest: Option<Digest>,
    /// Packs that are durable in the bucket: FEED-4.
    pub packs: Vec<PackRef>,
    /// Sparse index of the log behind `packed_end`.
    pub index: Vec<IndexEntry>,
}

impl Stream {
    /// One past the last sequence that is in packs.
    #[must_use]
    pub fn packed_end(&self) -> u64 {
        self.packs.last().map_or(self.first, |pack| pack.end.0)
    }

    /// Log offset from which this stream's unpacked batches are needed.
    #[must_use]
    pub fn needed_from(&self) -> Option<u64> {
        if self.packed_end() == self.end {
            return None;
        }
        self.log_offset(self.packed_end())
    }

    /// Log offset of a group at or before the batch that holds `sequence`.
    #[must_use]
    pub fn log_offset(&self, sequence: u64) -> Option<u64> {
        let at = self
            .index
            .partition_point(|entry| entry.sequence <= sequence);
        self.index.get(at.checked_sub(1)?).map(|entry| entry.offset)
    }

    /// Whether the stream takes no more batches.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }
}

/// The published history of a feed, seen from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// Commits published; the next has this number.
    pub commits: u64,
    /// Digest of the last commit object; zero before the first.
    pub digest: Digest,
    /// One past the last published sequence.
    pub end: u64,
    /// Id of the last published stream.
    pub stream: StreamId,
}

/// A feed.
#[derive(Debug, Clone)]
pub struct Feed {
    /// Its id, never reused.
    pub id: FeedId,
    /// Its name.
    pub name: Rc<str>,
    /// How it was made.
    pub options: FeedOptions,
    /// When it was made.
    pub created_ms: u64,
    /// Writer epoch in force; 0 before the first open.
    pub epoch: Epoch,
    /// Sequence the next record gets.
    pub next_sequence: u64,
    /// Id the next stream gets.
    pub next_stream: StreamId,
    /// Highest arrival time stamped: later ones never go below.
    pub last_arrival_ms: u64,
    /// Highest effective timestamp.
    pub last_timestamp_ms: u64,
    /// Commit number the next seal gets.
    pub next_commit: CommitNumber,
    /// The published history.
    pub head: Head,
    /// Unpublished streams: FEED-2.
    pub streams: Vec<Stream>,
    /// No batch and no stream comes any more.
    pub closed: Option<Box<Closing>>,
    /// The greatest order key that a batch came with.
    pub order: Option<Box<[u8]>>,
    /// Idempotent producers, once there is one.
    pub producers: Option<Box<Producers>>,
    /// Where it goes on from, and what goes on from it.
    pub lineage: Option<Box<Lineage>>,
    /// Running number of the last group that holds an entry of this feed (not persisted).
    pub last_group: u64,
    /// What the store's index of needed offsets holds for this feed (not persisted).
    needed_cached: Option<u64>,
    /// What the store's index of streams that grow old holds for this feed (not persisted).
    rolling_cached: Option<u64>,
}

impl Feed {
    /// The open stream, if any: the newest, unless sealed.
    #[must_use]
    pub fn open_stream(&self) -> Option<&Stream> {
        self.streams.last().filter(|stream| !stream.is_sealed())
    }

    /// The open stream, if it is to be rolled once it is due: ROLL-2.
    #[must_use]
    pub fn rolling_stream(&self) -> Option<&Stream> {
        let open = self.open_stream().filter(|open| open.end > open.first)?;
        let ends = self.closed.is_some() || self.is_gone();
        (self.options.rolling && !ends && self.abandoned().is_none()).then_some(open)
    }

    /// The oldest unsealed stream that is not the newest: FEED-3 forbids sealing past it.
    #[must_use]
    pub fn abandoned(&self) -> Option<&Stream> {
        let oldest = self.streams.iter().find(|stream| !stream.is_sealed())?;
        (self.streams.last().map(|newest| newest.id) != Some(oldest.id)).then_some(oldest)
    }

    /// The unpublished stream `id`.
    #[must_use]
    pub fn stream(&self, id: StreamId) -> Option<&Stream> {
        let at = self
            .streams
            .binary_search_by_key(&id, |stream| stream.id)
            .ok()?;
        self.streams.get(at)
    }

    pub(crate) fn stream_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        let at = self
            .streams
            .binary_search_by_key(&id, |stream| stream.id)
            .ok()?;
        self.streams.get_mut(at)
    }

    /// Last sequence in the feed, `None` when no record was ever taken.
    #[must_use]
    pub fn last_sequence(&self) -> Option<u64> {
        self.next_sequence.checked_sub(1)
    }

    /// Log offset from which this feed needs the log.
    #[must_use]
    pub fn needed_from(&self) -> Option<u64> {
        self.streams.iter().filter_map(Stream::needed_from).min()
    }
}
