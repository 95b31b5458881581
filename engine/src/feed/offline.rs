//! Offline: changes of state that no log entry makes: a loss that was accepted, a move to another log.
//!
//! **Invariants**
//! - FEED-1 and FEED-2 hold after each of them; chunks of changed feeds are dirty.
//! - They are made only where a checkpoint of the changed state is taken before anything else.
//!
//! **Not here**: what was lost and what is moved (`engine::offline`).

use super::store::Doomed;
use super::{Feed, Feeds, Head, Stream, Totals};
use crate::commit::Commit;
use crate::ids::{CommitNumber, Digest, Epoch, FeedId, StreamId};
use crate::subscription::{Phase, SUBSCRIPTIONS_ID, Subscription, Subscriptions};

/// What is known of a feed from behind the damage: the least that must never be given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// One past the highest sequence.
    pub(crate) end: u64,
    /// Highest writer epoch.
    pub(crate) epoch: Epoch,
    /// Highest stream id.
    pub(crate) stream: StreamId,
}

impl Feeds {
    /// Moves a feed past what was `seen` of it: sequences, stream ids and epochs are not used again,
    /// and whoever wrote is fenced.
    pub(crate) fn move_past(&mut self, id: FeedId, seen: Seen) {
        let Some(feed) = self.get_mut(id) else { return };
        feed.next_sequence = feed.next_sequence.max(seen.end);
        feed.next_stream = feed.next_stream.max(StreamId(seen.stream.0 + 1));
        feed.epoch = Epoch(feed.epoch.max(seen.epoch).0 + 1);
        feed.open_after_loss();
        self.changed(id);
    }

    /// Ends a stream at `end`: the records behind are lost.
    pub(crate) fn cut_stream(&mut self, id: FeedId, stream: StreamId, end: u64, totals: Totals) {
        let Some(feed) = self.get_mut(id) else { return };
        if let Some(stream) = feed.stream_mut(stream) {
            stream.end = end;
            stream.totals = totals;
            stream.index.retain(|entry| entry.sequence < end);
            if stream.packed_end() == end {
                stream.index = Vec::new();
            }
        }
        feed.epoch = Epoch(feed.epoch.0 + 1);
        feed.open_after_loss();
        self.changed(id);
    }

    /// Takes over a published commit that continues the history.
    pub(crate) fn adopt(&mut self, id: FeedId, commit: &Commit, digest: Digest) {
        let Some(feed) = self.get_mut(id) else { return };
        feed.streams.retain(|stream| stream.id > commit.stream);
        feed.head = Head {
            commits: commit.number.0 + 1,
            digest,
            end: commit.end.0,
            stream: commit.stream,
        };
        feed.next_commit = feed.next_commit.max(CommitNumber(feed.head.commits));
        feed.next_sequence = feed.next_sequence.max(commit.end.0);
        feed.next_stream = feed.next_stream.max(StreamId(commit.stream.0 + 1));
        feed.epoch = feed.epoch.max(commit.epoch);
        feed.open_after_loss();
        self.changed(id);
    }

    /// Takes everything out: feeds with their log indexes emptied, deleted feeds, subscriptions.
    pub(crate) fn take_apart(self) -> (Vec<Feed>, Vec<(FeedId, Doomed)>, Subscriptions) {
        let strip = |mut feed: Box<Feed>| {
            feed.streams
                .iter_mut()
                .for_each(|stream| stream.index = Vec::new());
            feed.last_group = 0;
            *feed
        };
        let feeds = self.by_id.into_values().map(strip).collect();
        (feeds, self.doomed.into_iter().collect(), self.subscriptions)
    }

    /// Takes in a subscription of another log.
    pub(crate) fn move_in_subscription(&mut self, name: &str, subscription: Subscription) {
        self.subscriptions.insert(name, subscription);
        self.mark(SUBSCRIPTIONS_ID);
    }

    /// Moves a subscription past a generation that was seen of it: whoever held a wake is fenced.
    pub(crate) fn move_subscription_past(&mut self, name: &str, generation: u64) {
        if let Some(subscription) = self.subscriptions.get_mut(name) {
            subscription.generation = subscription.generation.max(generation) + 1;
            subscription.phase = Phase::Idle;
            self.mark(SUBSCRIPTIONS_ID);
        }
    }

    /// Takes in a feed of another log.
    pub(crate) fn move_in(&mut self, feed: Feed) {
        let id = feed.id;
        self.insert(feed);
        self.mark(id);
    }

    /// Takes in a deleted feed of another log.
    pub(crate) fn move_in_doomed(&mut self, id: FeedId, doomed: Doomed) {
        self.doomed.insert(id, doomed);
        self.mark(id);
    }

    /// Notes where in this log a batch was copied to.
    pub(crate) fn place_batch(&mut self, id: FeedId, stream: StreamId, sequence: u64, offset: u64) {
        let geometry = self.geometry;
        if let Some(feed) = self.get_mut(id) {
            feed.index_batch(stream, sequence, offset, geometry);
        }
        self.changed(id);
    }

    fn changed(&mut self, id: FeedId) {
        self.mark(id);
        self.refresh(id);
    }
}

impl Feed {
    /// An open stream takes only what follows its own end: if sequences behind it are gone, it is
    /// left abandoned and another is open.
    fn open_after_loss(&mut self) {
        let next = self.next_sequence;
        if self.open_stream().is_none_or(|open| open.end == next) {
            return;
        }
        let id = self.next_stream;
        self.next_stream = StreamId(id.0 + 1);
        self.streams.push(Stream {
            id,
            epoch: self.epoch,
            first: next,
            end: next,
            totals: Totals::default(),
            first_arrival_ms: 0,
            seal: None,
            manifest: None,
            packs: Vec::new(),
            index: Vec::new(),
        });
    }
}
