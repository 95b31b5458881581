//! Query: what callers ask of feeds, streams, commits and producers.
//!
//! **Invariants**
//! - An answer describes a state that was durable when it was given.
//! - Lists are bounded by the caller's limit and go on after the last name, number or id.
//!
//! **Not here**: records (`read`).

use std::rc::Rc;

use sealog_frame::FrameView;

use super::LogService;
use super::write::check_abandoned;
use crate::append::{Decision, foresee};
use crate::commit::{Commit, CommitKind};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::feed::{Base, Closing, Feed, FeedOptions, Stream};
use crate::ids::{CommitNumber, Epoch, FeedId, StreamId};
use crate::limits::check_commit_message;
use crate::producer::{ProducerState, Producers};

/// A page of commits ends with the one that makes it this long.
const PAGE_BYTES: usize = 1 << 20;
/// What a commit counts, but for its message.
const COMMIT_BYTES: usize = 256;

/// A feed as callers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedInfo {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: FeedId,
    /// How it was made.
    pub options: FeedOptions,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Writer epoch in force; 0 before the first open.
    pub epoch: Epoch,
    /// Sequence the next record gets.
    pub next_sequence: u64,
    /// Commits published.
    pub commits: u64,
    /// The open stream.
    pub open_stream: Option<StreamId>,
    /// Unpublished streams: open, abandoned, or on their way.
    pub unpublished: u64,
    /// How it was closed, if it was.
    pub closed: Option<Closing>,
    /// Where it goes on from, if it is a fork.
    pub base: Option<Base>,
    /// Producers remembered.
    pub producers: u64,
}

/// What has become of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPhase {
    /// It takes batches.
    Open,
    /// A later stream was opened; it waits to be sealed as it stands or discarded.
    Abandoned,
    /// It is sealed (or discarded) and its commit is on its way.
    Sealed,
    /// Its commit is published.
    Published,
    /// Its range was discarded, and the commit that says so is published.
    Discarded,
}

/// A stream as callers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its id.
    pub id: StreamId,
    /// What has become of it.
    pub phase: StreamPhase,
    /// Its first sequence.
    pub first: u64,
    /// One past its last sequence.
    pub end: u64,
    /// Records in it.
    pub records: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// One past the last sequence that is in packs.
    pub packed_end: u64,
    /// Its commit, once sealed.
    pub commit: Option<CommitNumber>,
}

/// A producer as callers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerInfo {
    /// Its id.
    pub id: Vec<u8>,
    /// Where it stands.
    pub state: ProducerState,
}

fn feed_info(feed: &Feed) -> FeedInfo {
    FeedInfo {
        name: feed.name.to_string(),
        id: feed.id,
        options: feed.options.clone(),
        closed: feed.closed.as_deref().cloned(),
        base: feed.base().cloned(),
        created_ms: feed.created_ms,
        epoch: feed.epoch,
        next_sequence: feed.next_sequence,
        commits: feed.head.commits,
        open_stream: feed.open_stream().map(|stream| stream.id),
        unpublished: feed.streams.len() as u64,
        producers: feed.producers.as_ref().map_or(0, |p| p.len() as u64),
    }
}

fn stream_info(feed: &Feed, stream: &Stream) -> StreamInfo {
    let phase = match feed.open_stream() {
        _ if stream.is_sealed() => StreamPhase::Sealed,
        Some(open) if open.id == stream.id => StreamPhase::Open,
        _ => StreamPhase::Abandoned,
    };
    StreamInfo {
        id: stream.id,
        phase,
        first: stream.first,
        end: stream.end,
        records: stream.totals.records,
        payload_bytes: stream.totals.payload_bytes,
        packed_end: stream.packed_end(),
        commit: stream.seal.as_ref().map(|seal| seal.number),
    }
}

fn published_info(commit: &Commit) -> StreamInfo {
    let phase = match commit.kind {
        CommitKind::Sealed => StreamPhase::Published,
        CommitKind::Discarded => StreamPhase::Discarded,
    };
    StreamInfo {
        id: commit.stream,
        phase,
        first: commit.first.0,
        end: commit.end.0,
        records: commit.records,
        payload_bytes: commit.payload_bytes,
        packed_end: commit.end.0,
        commit: Some(commit.number),
    }
}

impl<E: Env> LogService<E> {
    /// The feed named `name`.
    ///
    /// # Errors
    /// [`crate::Error::FeedNotFound`], [`crate::Error::Poisoned`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn feed(&self, name: &str) -> Result<FeedInfo> {
        self.query(name, |feed| Ok(feed_info(feed))).await
    }

    /// What a feed is at this moment, durable or not: for who goes on to write. An answer that rests on it
    /// must wait for [`LogService::settle`].
    ///
    /// # Errors
    /// [`Error::FeedNotFound`], [`Error::FeedGone`].
    pub fn feed_now(&self, name: &str) -> Result<FeedInfo> {
        super::write::living(&self.feeds.borrow(), name).map(feed_info)
    }

    /// Judges `batch` for a writer that is about to take the lease, and seals with `message` if that
    /// is given; changes nothing. Whether it is a duplicate. LEASE-5.
    ///
    /// # Errors
    /// What the append, or the seal after it, would be refused for; [`crate::Error::Poisoned`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn foresee(
        &self,
        name: &str,
        batch: &FrameView<'_>,
        message: Option<&str>,
    ) -> Result<bool> {
        let now_ms = self.env.realtime_ms();
        let limit = self.config.producers_max;
        self.query(name, |feed| {
            if let Some(message) = message {
                check_commit_message(message)?;
                check_abandoned(feed)?;
            }
            match foresee(feed, batch) {
                Decision::Refuse(error) => Err(error),
                Decision::Duplicate(_) => Ok(true),
                Decision::Accept { new_producer, .. } => {
                    let full = |p: &Producers| p.len() as u64 >= limit && !p.has_idle(now_ms);
                    match new_producer && feed.producers.as_deref().is_some_and(full) {
                        true => Err(Error::ProducersFull { limit }),
                        false => Ok(false),
                    }
                }
            }
        })
        .await
    }

    /// Up to `limit` feeds whose names come after `after` and begin with `prefix`, in name order.
    ///
    /// # Errors
    /// [`crate::Error::Poisoned`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_feeds(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<FeedInfo>> {
        let from = if after > prefix { after } else { prefix };
        let listed = {
            let feeds = self.feeds.borrow();
            feeds
                .names_from(from)
                .filter(|feed| !feed.is_gone() && (after.is_empty() || &*feed.name > after))
                .take_while(|feed| feed.name.starts_with(prefix))
                .take(limit)
                .map(feed_info)
                .collect()
        };
        self.settle().await?;
        Ok(listed)
    }

    /// Up to `limit` streams of a feed with ids after `after`, oldest first, published ones too.
    ///
    /// # Errors
    /// [`crate::Error::FeedNotFound`]; what reading commits from the bucket answers.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_streams(
        self: &Rc<Self>,
        name: &str,
        after: StreamId,
        limit: usize,
    ) -> Result<Vec<StreamInfo>> {
        let (id, commits, last_published) = self
            .query(name, |feed| {
                Ok((feed.id, feed.head.commits, feed.head.stream))
            })
            .await?;
        let mut listed = Vec::new();
        // Stream ids and commit numbers rise together, a commit per stream: FEED-3.
        let mut number = after.0.min(commits);
        while number < commits && listed.len() < limit && after < last_published {
            let commit = self.read_commit(name, id, CommitNumber(number)).await?;
            if commit.stream > after {
                listed.push(published_info(&commit));
            }
            number += 1;
        }
        self.query(name, |feed| {
            let newer = |id: StreamId| id > after && listed.last().is_none_or(|l| l.id < id);
            let rest: Vec<_> = feed.streams.iter().filter(|s| newer(s.id)).collect();
            let room = limit - listed.len();
            listed.extend(
                rest.into_iter()
                    .take(room)
                    .map(|stream| stream_info(feed, stream)),
            );
            Ok(())
        })
        .await?;
        Ok(listed)
    }

    /// Up to `limit` published commits from number `from` on; fewer, but one at least if there is one, when
    /// their messages are long.
    ///
    /// # Errors
    /// [`crate::Error::FeedNotFound`]; what reading commits from the bucket answers.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_commits(
        self: &Rc<Self>,
        name: &str,
        from: CommitNumber,
        limit: usize,
    ) -> Result<Vec<Commit>> {
        let (id, commits) = self
            .query(name, |feed| Ok((feed.id, feed.head.commits)))
            .await?;
        let (mut listed, mut bytes) = (Vec::new(), 0);
        for number in (from.0..commits).take(limit) {
            let commit = self.read_commit(name, id, CommitNumber(number)).await?;
            bytes += COMMIT_BYTES + commit.message.len();
            listed.push(commit);
            if bytes >= PAGE_BYTES {
                break;
            }
        }
        Ok(listed)
    }

    /// Up to `limit` producers of a feed with ids after `after`, in id order.
    ///
    /// # Errors
    /// [`crate::Error::FeedNotFound`], [`crate::Error::Poisoned`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_producers(
        &self,
        name: &str,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<ProducerInfo>> {
        self.query(name, |feed| {
            let all = feed
                .producers
                .iter()
                .flat_map(|producers| producers.iter_after(after));
            let info = |(id, state): (&[u8], &ProducerState)| ProducerInfo {
                id: id.to_vec(),
                state: state.clone(),
            };
            Ok(all.take(limit).map(info).collect())
        })
        .await
    }

    /// Where producer `id` of a feed stands; `None` if it was never seen, or was forgotten.
    ///
    /// # Errors
    /// [`crate::Error::FeedNotFound`], [`crate::Error::Poisoned`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn producer(&self, name: &str, id: &[u8]) -> Result<Option<ProducerState>> {
        self.query(name, |feed| {
            Ok(feed.producers.as_ref().and_then(|p| p.get(id).cloned()))
        })
        .await
    }
}
