//! Read: one cursor over packs, log and durable tail, by sequence. Spec: spec/manifest.md §4.
//!
//! ```text
//!  sequence -> published?  commit -> manifest -> pack -> block      (bucket, ranged reads)
//!           -> staged?     stream's packs -> block
//!           -> else        stream's log index -> groups             (memory or disk)
//! ```
//!
//! **Invariants**
//! - Records come in sequence order, each once; gaps are only those that a commit of kind `discarded`
//!   took, and the answer says how far it got.
//! - Only durable records are returned.
//! - One answer is bounded in bytes by the request, plus one batch, plus 32 bytes per record for fingerprints.
//! - What is read for answers is within `LogService::reading` (log) and `LogService::fetching` (packs);
//!   the frames of an answer are within the caller's budget, if it gave one, before they are copied.
//!
//! **Not here**: waiting for more (`shard::query`), formats (`pack`, `commit`).

mod below;
mod cache;
mod fingerprints;
mod locate;
mod log;
mod packs;
mod room;

pub(crate) use below::{Below, ReadStep, Way};
pub use cache::ReadCache;
pub use fingerprints::fingerprint;
pub use room::Held;
use room::Room;

use std::rc::Rc;
use std::time::Duration;

use crate::env::Env;
use crate::error::{Error, Result};
use crate::ids::{CommitNumber, FeedId, StreamId};
use crate::lane::stopping;
use crate::limits::READ_BYTES_DEFAULT;
use crate::shard::{LogService, living};
use crate::sync::{Budget, race};

/// Where a read begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// At this sequence, or the next one there is.
    Sequence(u64),
    /// At the first record whose effective timestamp (milliseconds) is at or after this.
    Timestamp(u64),
    /// At the first record of this commit.
    Commit(CommitNumber),
    /// This many records before the durable tail.
    Tail(u64),
}

/// What to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRequest {
    /// Name of the feed.
    pub feed: String,
    /// Only the feed with this id: one of that name that was made later is not found.
    pub id: Option<FeedId>,
    /// Only this stream, sealed, open or abandoned.
    pub stream: Option<StreamId>,
    /// Where to begin.
    pub from: ReadFrom,
    /// Stop before this sequence.
    pub end: u64,
    /// Bytes of frames after which no further batch is added.
    pub bytes_max: usize,
    /// Answer every record's fingerprint, too.
    pub fingerprints: bool,
    /// Wait this long for records when there are none yet.
    pub wait: Duration,
}

impl ReadRequest {
    /// Everything of `feed` from sequence 0, without waiting.
    #[must_use]
    pub fn new(feed: impl Into<String>) -> Self {
        Self {
            feed: feed.into(),
            id: None,
            stream: None,
            from: ReadFrom::Sequence(0),
            end: u64::MAX,
            bytes_max: READ_BYTES_DEFAULT,
            fingerprints: false,
            wait: Duration::ZERO,
        }
    }
}

/// One answer: whole frames, of which the records in `first..next` were asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadChunk {
    /// The feed they are of.
    pub feed: FeedId,
    /// Whole batch frames, back to back.
    pub frames: Vec<u8>,
    /// If asked for, the fingerprint of every record in `frames`, in order, as [`fingerprint`] computes
    /// it: of records out of packs it is read, not computed.
    pub fingerprints: Vec<[u8; 32]>,
    /// First sequence that was asked for: records below it in the first frame are not part of the answer.
    pub first: u64,
    /// Where to go on: one past the last record, or past a gap.
    pub next: u64,
    /// Nothing more will ever come in this scope: the stream is sealed, or the feed closed, and read to its
    /// end, or the requested end was reached.
    pub ended: bool,
    /// Sequence after the last record that was durable when the answer was begun.
    pub tail: u64,
    /// What the frames take of the budget they were read within.
    pub held: Held,
    /// It goes over sequences that are nowhere any more.
    pub over_gap: bool,
}

/// Where a sequence of a feed is to be found.
enum Place {
    /// In a pack: object path, index key and section.
    Pack {
        stream: StreamId,
        pack: crate::commit::PackRef,
    },
    /// In the log, at or after this offset.
    Log {
        stream: StreamId,
        offset: u64,
        end: u64,
    },
    /// Nowhere: skip to this sequence.
    Gap(u64),
    /// Beyond what was accepted.
    Tail,
    /// The stream that was asked for ends here.
    End,
}

impl<E: Env> LogService<E> {
    /// Reads one answer's worth of what this log has of the feed: of a fork, not what lies below its base
    /// ([`Error::Invalid`]).
    ///
    /// # Errors
    /// [`Error::FeedNotFound`], [`Error::FeedGone`], [`Error::StreamNotFound`], [`Error::CommitNotFound`],
    /// [`Error::Corrupt`] naming object or segment, [`Error::Bucket`], [`Error::Io`]. [`Error::Poisoned`] and
    /// [`Error::Closed`] when it would have to wait for records that will not come.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn read(self: &Rc<Self>, request: &ReadRequest) -> Result<ReadChunk> {
        match self.read_step(request, Way::default(), None).await? {
            ReadStep::Chunk(chunk) => Ok(chunk),
            ReadStep::Below(Below { base, .. }) => Err(Error::Invalid(format!(
                "records of {:?} below {} are those of {:?}",
                request.feed, base.sequence, base.name
            ))),
        }
    }

    /// Reads one answer's worth, or says who is to be asked. Its frames are within `budget`, which the answer goes on holding:
    /// waits for its turn if not even one batch is. Nothing is held while it waits for records.
    ///
    /// # Errors
    /// As [`LogService::read`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub(crate) async fn read_step(
        self: &Rc<Self>,
        request: &ReadRequest,
        way: Way,
        budget: Option<&Budget>,
    ) -> Result<ReadStep> {
        let step = self.read_or_wait(request, way, budget).await;
        let rests_on_changes = match &step {
            Ok(ReadStep::Chunk(chunk)) => chunk.ended || chunk.over_gap,
            Ok(ReadStep::Below(below)) => below.closed_at.is_some(),
            Err(_) => true,
        };
        // What ended the stream, took the range or the feed must not be undone by a crash.
        if rests_on_changes && let Err(stopped) = self.settle().await {
            return match step {
                // Its records are durable; whether it is the stream's end is what nobody knows.
                Ok(ReadStep::Chunk(mut chunk)) if !chunk.over_gap && chunk.next > chunk.first => {
                    chunk.ended = chunk.next >= request.end;
                    Ok(ReadStep::Chunk(chunk))
                }
                _ => Err(stopped),
            };
        }
        step
    }

    async fn read_or_wait(
        self: &Rc<Self>,
        request: &ReadRequest,
        way: Way,
        budget: Option<&Budget>,
    ) -> Result<ReadStep> {
        let feed = self.feed_id(request, way)?;
        if matches!(request.from, ReadFrom::Timestamp(_))
            && !way.above_base
            && let Some(below) = self.below(feed, request, None)
        {
            return Ok(ReadStep::Below(below));
        }
        let first = self.resolve(feed, request).await?;
        if let Some(below) = self.below(feed, request, Some(first)) {
            return Ok(ReadStep::Below(below));
        }
        let deadline_ns = self.deadline(request.wait);
        let mut room = Room::of(budget);
        loop {
            let mut tail = self.listen_tail(feed);
            if !way.by_fork {
                self.check_there(feed)?;
            }
            // Boxed: who waits for records keeps no room for the reading of them.
            let reading = Box::pin(self.read_to_end(feed, request, first, &mut room));
            let mut chunk = reading.await?;
            if chunk.frames.is_empty() && room.make().await {
                continue;
            }
            if budget.is_some() {
                chunk.frames.shrink_to_fit();
                chunk.fingerprints.shrink_to_fit();
            }
            chunk.held = room.take(fingerprints::held_bytes(&chunk));
            let left = deadline_ns.saturating_sub(self.env.monotonic_ns());
            let got = !chunk.frames.is_empty() || chunk.ended || chunk.next > first;
            if got || left == 0 {
                return Ok(ReadStep::Chunk(chunk));
            }
            if self.is_stopping() {
                // Nothing will come any more, and it is not the end.
                return Err(stopping(self));
            }
            if let Some(moved) = tail.moved.take() {
                race(moved, self.env.sleep(Duration::from_nanos(left))).await;
            }
        }
    }

    /// As [`LogService::read_now`]; an answer that records fill up to the very end tells of the end, too.
    async fn read_to_end(
        self: &Rc<Self>,
        feed: FeedId,
        request: &ReadRequest,
        first: u64,
        room: &mut Room<'_>,
    ) -> Result<ReadChunk> {
        let mut chunk = self.read_now(feed, request, first, room).await?;
        if !chunk.frames.is_empty() && !chunk.ended && chunk.next >= chunk.tail {
            let place = self.locate(feed, request, chunk.next).await;
            chunk.ended = matches!(place, Ok(Place::End));
        }
        Ok(chunk)
    }

    fn deadline(&self, wait: Duration) -> u64 {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.env.monotonic_ns().saturating_add(wait_ns)
    }

    fn feed_id(&self, request: &ReadRequest, way: Way) -> Result<FeedId> {
        let feeds = self.feeds.borrow();
        let found = feeds.named(&request.feed);
        let meant = found.filter(|found| request.id.is_none_or(|id| id == found.id));
        match meant {
            Some(meant) if way.by_fork => Ok(meant.id),
            Some(_) => living(&feeds, &request.feed).map(|feed| feed.id),
            None => Err(Error::FeedNotFound {
                feed: request.feed.clone(),
            }),
        }
    }

    /// Where the read goes on below the base of a fork, if that is where it begins.
    fn below(&self, feed: FeedId, request: &ReadRequest, first: Option<u64>) -> Option<Below> {
        if request.stream.is_some() {
            return None;
        }
        let tail = self.durable_tail(feed);
        let feeds = self.feeds.borrow();
        Below::of(feeds.get(feed)?, request.from, first, tail)
    }

    fn is_published(&self, feed: FeedId, sequence: u64) -> bool {
        let feeds = self.feeds.borrow();
        let feed = feeds.get(feed);
        feed.is_some_and(|feed| sequence < feed.head.end)
    }

    async fn read_now(
        self: &Rc<Self>,
        feed: FeedId,
        request: &ReadRequest,
        first: u64,
        room: &mut Room<'_>,
    ) -> Result<ReadChunk> {
        let mut chunk = ReadChunk {
            feed,
            first,
            next: first,
            tail: self.durable_tail(feed),
            ..ReadChunk::default()
        };
        let mut retries = 0;
        while chunk.frames.len() < request.bytes_max {
            if chunk.next >= request.end {
                chunk.ended = true;
                break;
            }
            if room.is_filled() && self.is_published(feed, chunk.next) {
                break; // What comes next, the bucket is asked for: as the next answer.
            }
            let before = chunk.next;
            match self.locate(feed, request, chunk.next).await? {
                Place::Gap(next) => {
                    chunk.next = next.min(request.end);
                    chunk.over_gap = true;
                }
                Place::Tail => break,
                Place::End => {
                    chunk.ended = true;
                    break;
                }
                Place::Pack { stream, pack } => {
                    self.read_pack((feed, stream), &pack, request, &mut chunk, room)
                        .await?;
                }
                Place::Log {
                    stream,
                    offset,
                    end,
                } => {
                    let had = chunk.frames.len();
                    let retired = self
                        .read_log((feed, stream), offset..end, request, &mut chunk, room)
                        .await?;
                    if request.fingerprints {
                        self.add_fingerprints(had, &mut chunk).await?;
                    }
                    if retired {
                        retries += 1; // They moved into packs meanwhile.
                        if retries > 100 {
                            return Err(Error::corrupt(&request.feed, offset, "log is gone"));
                        }
                        continue;
                    }
                }
            }
            if chunk.next == before || room.is_short() {
                break;
            }
        }
        if !chunk.frames.is_empty() {
            // They may have become durable since.
            chunk.tail = chunk.tail.max(chunk.next);
        }
        Ok(chunk)
    }
}
