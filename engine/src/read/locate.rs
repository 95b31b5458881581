//! Locate: from a sequence, a timestamp or a commit to the place where reading begins.
//!
//! **Invariants**
//! - Commits are in sequence order (FEED-3), so a sequence is found by bisection over their numbers.
//!
//! **Not here**: reading what was found (`log`, `packs`).

use std::rc::Rc;

use sealog_frame::FrameView;

use super::cache::Cached;
use super::room::Room;
use super::{Place, ReadFrom, ReadRequest};
use crate::commit::{Commit, CommitKind, Manifest, paths};
use crate::env::{Bucket, BucketError, Env};
use crate::error::{Error, Result};
use crate::feed::{Feed, Stream};
use crate::ids::{CommitNumber, Digest, FeedId, Sequence, StreamId};
use crate::lane::pack_holding;
use crate::shard::LogService;

/// Read at once while looking for a time: nothing of it is given to anybody.
const PROBE_BYTES: usize = 64 << 10;

impl<E: Env> LogService<E> {
    /// First sequence that the request asks for.
    pub(super) async fn resolve(
        self: &Rc<Self>,
        feed: FeedId,
        request: &ReadRequest,
    ) -> Result<u64> {
        let floor = match request.stream {
            Some(stream) => self.stream_range(feed, &request.feed, stream).await?.0,
            None => 0,
        };
        let first = match request.from {
            ReadFrom::Sequence(sequence) => sequence,
            ReadFrom::Commit(number) => {
                let commits = self
                    .feeds
                    .borrow()
                    .get(feed)
                    .map_or(0, |feed| feed.head.commits);
                if number.0 >= commits {
                    let feed = request.feed.clone();
                    return Err(Error::CommitNotFound {
                        feed,
                        commit: number,
                    });
                }
                self.read_commit(&request.feed, feed, number).await?.first.0
            }
            ReadFrom::Tail(records) => {
                let tail = self
                    .feeds
                    .borrow()
                    .get(feed)
                    .map_or(0, |feed| feed.next_sequence);
                self.settle().await?;
                let end = match request.stream {
                    Some(stream) => self.stream_range(feed, &request.feed, stream).await?.1,
                    None => tail,
                };
                end.saturating_sub(records)
            }
            ReadFrom::Timestamp(time_ms) => {
                let own_from = {
                    let feeds = self.feeds.borrow();
                    feeds.get(feed).map_or(0, Feed::own_from)
                };
                self.at_time(feed, request, floor.max(own_from), time_ms)
                    .await?
            }
        };
        Ok(first.max(floor))
    }

    /// First and end sequence of a stream, published or not.
    async fn stream_range(
        self: &Rc<Self>,
        feed: FeedId,
        name: &str,
        stream: StreamId,
    ) -> Result<(u64, u64)> {
        let here = {
            let feeds = self.feeds.borrow();
            let found = feeds.get(feed).and_then(|feed| feed.stream(stream));
            found.map(|stream| (stream.first, stream.end))
        };
        if let Some(range) = here {
            return Ok(range);
        }
        let commit = self
            .bisect(feed, name, |commit| commit.stream < stream)
            .await?;
        match commit.filter(|commit| commit.stream == stream) {
            Some(commit) => Ok((commit.first.0, commit.end.0)),
            None => Err(Error::StreamNotFound {
                feed: name.to_owned(),
                stream,
            }),
        }
    }

    /// The first published commit for which `before` is false.
    pub(crate) async fn bisect(
        self: &Rc<Self>,
        feed: FeedId,
        name: &str,
        before: impl Fn(&Commit) -> bool,
    ) -> Result<Option<Rc<Commit>>> {
        let (mut low, mut high) = (
            0,
            self.feeds
                .borrow()
                .get(feed)
                .map_or(0, |feed| feed.head.commits),
        );
        let mut found = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let commit = self.cached_commit(name, feed, CommitNumber(middle)).await?;
            if before(&commit) {
                low = middle + 1;
            } else {
                high = middle;
                found = Some(commit);
            }
        }
        Ok(found)
    }

    /// Where `sequence` is.
    pub(super) async fn locate(
        self: &Rc<Self>,
        feed: FeedId,
        request: &ReadRequest,
        sequence: u64,
    ) -> Result<Place> {
        if let Some(stream) = request.stream {
            let (_, end) = self.stream_range(feed, &request.feed, stream).await?;
            let sealed = {
                let feeds = self.feeds.borrow();
                let found = feeds.get(feed).and_then(|feed| feed.stream(stream));
                found.is_none_or(|found| !is_open(&feeds.get(feed), found))
            };
            if sequence >= end {
                return Ok(if sealed { Place::End } else { Place::Tail });
            }
        }
        let unpublished = {
            let feeds = self.feeds.borrow();
            let Some(found) = feeds.get(feed) else {
                return Err(Error::FeedNotFound {
                    feed: request.feed.clone(),
                });
            };
            (sequence >= found.head.end).then(|| unpublished_place(found, sequence))
        };
        match unpublished {
            Some(place) => Ok(place),
            None => self.published_place(feed, &request.feed, sequence).await,
        }
    }

    async fn published_place(
        self: &Rc<Self>,
        feed: FeedId,
        name: &str,
        sequence: u64,
    ) -> Result<Place> {
        let commit = self
            .bisect(feed, name, |commit| commit.end.0 <= sequence)
            .await?;
        let Some(commit) = commit else {
            return Err(Error::corrupt(
                name,
                sequence,
                "no commit holds this sequence",
            ));
        };
        if commit.kind == CommitKind::Discarded {
            return Ok(Place::Gap(commit.end.0));
        }
        let manifest = self.manifest(name, &commit).await?;
        match manifest.packs_from(Sequence(sequence)).first() {
            Some(pack) => Ok(Place::Pack {
                stream: commit.stream,
                pack: pack.clone(),
            }),
            None => Ok(Place::Gap(commit.end.0)),
        }
    }

    /// First sequence at or after `floor` whose effective timestamp is at or after `time_ms`.
    async fn at_time(
        self: &Rc<Self>,
        feed: FeedId,
        request: &ReadRequest,
        floor: u64,
        time_ms: u64,
    ) -> Result<u64> {
        let mut at = floor.max(self.commit_at_time(feed, &request.feed, time_ms).await?);
        let probe = ReadRequest {
            stream: request.stream,
            bytes_max: PROBE_BYTES,
            ..ReadRequest::new(&request.feed)
        };
        loop {
            let mut room = Room::of(None);
            let chunk = self.read_now(feed, &probe, at, &mut room).await?;
            let mut rest = &chunk.frames[..];
            while !rest.is_empty() {
                let (frame, after) = FrameView::split_trusted(rest)
                    .map_err(|error| Error::corrupt(&request.feed, at, error))?;
                let found = frame
                    .records()
                    .find(|r| r.timestamp_ms >= time_ms && r.sequence >= at);
                if let Some(record) = found {
                    return Ok(record.sequence);
                }
                rest = after;
            }
            if chunk.next == at {
                return Ok(at);
            }
            at = chunk.next;
            self.env.yield_if_needed().await;
        }
    }

    /// A sequence at or before the first record at `time_ms`: bisects the published commits.
    async fn commit_at_time(
        self: &Rc<Self>,
        feed: FeedId,
        name: &str,
        time_ms: u64,
    ) -> Result<u64> {
        let (commits, end) = {
            let feeds = self.feeds.borrow();
            feeds
                .get(feed)
                .map_or((0, 0), |feed| (feed.head.commits, feed.head.end))
        };
        let (mut low, mut high, mut first) = (0, commits, end);
        while low < high {
            let middle = low + (high - low) / 2;
            let commit = self.cached_commit(name, feed, CommitNumber(middle)).await?;
            let max_ms = match commit.kind {
                CommitKind::Sealed => {
                    self.manifest(name, &commit)
                        .await?
                        .totals()
                        .max_timestamp_ms
                }
                CommitKind::Discarded => 0,
            };
            // A discarded or empty commit says nothing of time: look on in the earlier half too.
            if max_ms < time_ms && commit.records > 0 && commit.kind == CommitKind::Sealed {
                low = middle + 1;
            } else {
                high = middle;
                first = commit.first.0;
            }
        }
        Ok(first)
    }

    /// Reads a commit of a feed.
    pub(crate) async fn read_commit(
        self: &Rc<Self>,
        name: &str,
        feed: FeedId,
        number: CommitNumber,
    ) -> Result<Commit> {
        Ok((*self.cached_commit(name, feed, number).await?).clone())
    }

    async fn cached_commit(
        self: &Rc<Self>,
        name: &str,
        feed: FeedId,
        number: CommitNumber,
    ) -> Result<Rc<Commit>> {
        let path = paths::commit(name, feed, number);
        if let Some(Cached::Commit(commit)) = self.read_cache.borrow_mut().get(&path) {
            return Ok(commit);
        }
        let bytes = self.object(&path).await?;
        let commit = Commit::decode(&bytes).map_err(|error| Error::decode(&path, 0, error))?;
        if commit.number != number || commit.feed != feed {
            let detail = format!("commit {} of feed id {} found", commit.number, commit.feed);
            return Err(Error::corrupt(path, 0, detail));
        }
        let commit = Rc::new(commit);
        self.read_cache
            .borrow_mut()
            .put(&path, Cached::Commit(commit.clone()));
        Ok(commit)
    }

    /// The manifest that `commit` names.
    pub(crate) async fn manifest(
        self: &Rc<Self>,
        name: &str,
        commit: &Commit,
    ) -> Result<Rc<Manifest>> {
        let path = paths::manifest(name, commit.feed, commit.stream, &commit.manifest);
        if let Some(Cached::Manifest(manifest)) = self.read_cache.borrow_mut().get(&path) {
            return Ok(manifest);
        }
        let bytes = self.object(&path).await?;
        // The version comes first: a newer format is told from damage.
        let manifest = Manifest::decode(&bytes).map_err(|error| Error::decode(&path, 0, error))?;
        if Digest::of(&bytes) != commit.manifest {
            return Err(Error::corrupt(
                path,
                0,
                "digest does not match the commit's",
            ));
        }
        let manifest = Rc::new(manifest);
        self.read_cache
            .borrow_mut()
            .put(&path, Cached::Manifest(manifest.clone()));
        Ok(manifest)
    }

    /// A whole object that must be there.
    pub(super) async fn object(&self, path: &str) -> Result<Vec<u8>> {
        match self.env.bucket().get(path).await {
            Ok((bytes, _)) => Ok(bytes),
            Err(BucketError::NotFound { key }) => Err(Error::corrupt(key, 0, "object is gone")),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether `stream` still takes batches: the newest and not sealed.
fn is_open(feed: &Option<&Feed>, stream: &Stream) -> bool {
    feed.and_then(|feed| feed.open_stream())
        .is_some_and(|open| open.id == stream.id)
}

fn unpublished_place(feed: &Feed, sequence: u64) -> Place {
    let at = feed
        .streams
        .partition_point(|stream| stream.end <= sequence);
    let Some(stream) = feed.streams.get(at) else {
        return match feed.closed {
            Some(_) => Place::End,
            None => Place::Tail,
        };
    };
    let discarded = stream
        .seal
        .as_ref()
        .is_some_and(|seal| seal.kind == CommitKind::Discarded);
    if discarded {
        return Place::Gap(stream.end);
    }
    if sequence < stream.first {
        return Place::Gap(stream.first);
    }
    if let Some(pack) = pack_holding(&stream.packs, sequence) {
        return Place::Pack {
            stream: stream.id,
            pack: pack.clone(),
        };
    }
    match stream.log_offset(sequence) {
        Some(offset) => Place::Log {
            stream: stream.id,
            offset,
            end: stream.end,
        },
        None => Place::Tail,
    }
}
