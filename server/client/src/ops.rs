//! Ops: feeds, streams, commits, producers and logs: one call per request.
//!
//! **Invariants**
//! - Calls that only read, and those that are the same when done twice, are asked again over a lost
//!   connection; the others say that their outcome is unknown.
//!
//! **Not here**: appending (`session`), reading records (`read`, `follow`).

use std::sync::Arc;

use sealog_frame::Batch;
use sealog_protocol::{
    Answer, BucketUsage, CommitInfo, FeedInfo, LogInfo, LogUsage, ProducerInfo, Request, Rest,
    Settling, StreamInfo,
};

use crate::client::{Again, Client};
use crate::conn::Conn;
use crate::error::Result;

/// What a feed is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedOptions {
    /// Records may carry keys.
    pub keys: bool,
    /// Only whoever opened or resumed the feed may append: batches without a lease are refused.
    pub exclusive: bool,
}

impl Default for FeedOptions {
    fn default() -> Self {
        Self {
            keys: true,
            exclusive: false,
        }
    }
}

/// What a server holds: [`Client::usage`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// One entry per log.
    pub logs: Vec<LogUsage>,
    /// The bucket.
    pub bucket: BucketUsage,
}

macro_rules! take {
    ($pattern:pat => $value:expr) => {
        |_: &Arc<Conn>, answer: Answer<'_>| match answer {
            $pattern => Some($value),
            _ => None,
        }
    };
}

impl Client {
    /// Makes a feed and returns its id. The same again is success.
    ///
    /// # Errors
    /// [`FeedExists`](crate::ErrorKind::FeedExists) with other options,
    /// [`FeedName`](crate::ErrorKind::FeedName), [`FeedsFull`](crate::ErrorKind::FeedsFull): without effects;
    /// those of the connection: effects unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the feed may be made.
    pub async fn create_feed(&self, feed: &str, options: FeedOptions) -> Result<u64> {
        let request = Request::CreateFeed {
            feed,
            keys: options.keys,
            exclusive: options.exclusive,
        };
        let take = take!(Answer::Created { feed } => feed);
        self.call(Some(feed), &request, Again::Always, take).await
    }

    /// Deletes a feed and all that is in it.
    ///
    /// # Errors
    /// [`FeedNotFound`](crate::ErrorKind::FeedNotFound); over a lost connection the effects are unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the feed may be gone.
    pub async fn delete_feed(&self, feed: &str) -> Result<()> {
        let request = Request::DeleteFeed { feed };
        let take = take!(Answer::Done {} => ());
        self.call(Some(feed), &request, Again::Unsent, take).await
    }

    /// What a feed is, and how far it is.
    ///
    /// # Errors
    /// [`FeedNotFound`](crate::ErrorKind::FeedNotFound), those of the connection.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn feed(&self, feed: &str) -> Result<FeedInfo> {
        let request = Request::DescribeFeed { feed };
        let take = take!(Answer::Feed { feed } => feed);
        self.call(Some(feed), &request, Again::Always, take).await
    }

    /// Up to `limit` feeds in name order, whose names begin with `prefix` and come after `after`. The
    /// server may answer fewer than `limit`; a page without feeds is the last.
    ///
    /// # Errors
    /// Those of the connection.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_feeds(&self, prefix: &str, after: &str, limit: u32) -> Result<Vec<FeedInfo>> {
        let request = Request::ListFeeds {
            prefix,
            after,
            limit,
        };
        let take = take!(Answer::Feeds { feeds } => feeds);
        self.call(None, &request, Again::Always, take).await
    }

    /// Up to `limit` streams of a feed with ids above `after`, oldest first.
    ///
    /// # Errors
    /// [`FeedNotFound`](crate::ErrorKind::FeedNotFound), [`Corrupt`](crate::ErrorKind::Corrupt),
    /// [`Bucket`](crate::ErrorKind::Bucket), those of the connection.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_streams(
        &self,
        feed: &str,
        after: u64,
        limit: u32,
    ) -> Result<Vec<StreamInfo>> {
        let request = Request::ListStreams { feed, after, limit };
        let take = take!(Answer::Streams { streams } => streams);
        self.call(Some(feed), &request, Again::Always, take).await
    }

    /// Up to `limit` published commits of a feed from number `from` on.
    ///
    /// # Errors
    /// As [`Client::list_streams`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_commits(&self, feed: &str, from: u64, limit: u32) -> Result<Vec<CommitInfo>> {
        let request = Request::ListCommits { feed, from, limit };
        let take = take!(Answer::Commits { commits } => commits);
        self.call(Some(feed), &request, Again::Always, take).await
    }

    /// Up to `limit` idempotent producers of a feed, in id order, with ids above `after`.
    ///
    /// # Errors
    /// [`FeedNotFound`](crate::ErrorKind::FeedNotFound), those of the connection.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_producers(
        &self,
        feed: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Vec<ProducerInfo>> {
        let request = Request::ListProducers { feed, after, limit };
        let take = take!(Answer::Producers { producers } => producers);
        self.call(Some(feed), &request, Again::Always, take).await
    }

    /// Where an idempotent producer stands; `None`: it was never seen, or is forgotten.
    ///
    /// # Errors
    /// [`FeedNotFound`](crate::ErrorKind::FeedNotFound), those of the connection.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn producer(&self, feed: &str, id: &[u8]) -> Result<Option<ProducerInfo>> {
        let request = Request::DescribeProducer { feed, id };
        let take = take!(Answer::Producer { producer } => producer);
        self.call(Some(feed), &request, Again::Always, take).await
    }

    /// Seals the feed's open stream on behalf of cooperative writers, and waits for its commit. A session
    /// seals by [`AppendSession::seal`](crate::AppendSession::seal), which finds out what became of a seal
    /// whose answer was lost.
    ///
    /// # Errors
    /// [`NoOpenStream`](crate::ErrorKind::NoOpenStream), [`AbandonedStream`](crate::ErrorKind::AbandonedStream),
    /// [`TokenRequired`](crate::ErrorKind::TokenRequired), [`OverLimit`](crate::ErrorKind::OverLimit) (the
    /// message); over a lost connection the effects are unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the stream may be sealed; publication goes on by itself.
    pub async fn seal(&self, feed: &str, message: &str) -> Result<CommitInfo> {
        self.seal_under(feed, None, message).await
    }

    /// As [`Client::seal`], under the writer epoch `token` if one is given: that of somebody's lease.
    ///
    /// # Errors
    /// As [`Client::seal`], and [`Fenced`](crate::ErrorKind::Fenced).
    ///
    /// # Cancel safety
    /// As [`Client::seal`].
    pub async fn seal_under(
        &self,
        feed: &str,
        token: Option<u64>,
        message: &str,
    ) -> Result<CommitInfo> {
        let request = Request::Seal {
            feed,
            token,
            message,
        };
        let take = take!(Answer::Committed { commit } => commit);
        let within = self.options().seal_timeout;
        self.call_within(within, Some(feed), &request, Again::Unsent, take)
            .await
    }

    /// Settles an unsealed stream whose writer is gone, by default the oldest: as a commit of what is in
    /// it, or as a gap.
    ///
    /// # Errors
    /// [`NoOpenStream`](crate::ErrorKind::NoOpenStream), [`StreamNotFound`](crate::ErrorKind::StreamNotFound),
    /// [`StreamSettled`](crate::ErrorKind::StreamSettled),
    /// [`AbandonedStream`](crate::ErrorKind::AbandonedStream); over a lost connection the effects are unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the stream may be settled.
    pub async fn settle(
        &self,
        feed: &str,
        stream: Option<u64>,
        settling: Settling,
        message: &str,
    ) -> Result<CommitInfo> {
        let request = Request::Settle {
            feed,
            stream,
            settling,
            message,
        };
        let take = take!(Answer::Committed { commit } => commit);
        let within = self.options().seal_timeout;
        self.call_within(within, Some(feed), &request, Again::Unsent, take)
            .await
    }

    /// Waits until everything sealed of a feed is published; how many commits that were.
    ///
    /// # Errors
    /// [`FeedNotFound`](crate::ErrorKind::FeedNotFound), those of the connection.
    ///
    /// # Cancel safety
    /// Cancel safe: publication goes on by itself.
    pub async fn repair(&self, feed: &str) -> Result<u64> {
        let request = Request::Repair { feed };
        let take = take!(Answer::Repaired { commits } => commits);
        let within = self.options().seal_timeout;
        self.call_within(within, Some(feed), &request, Again::Always, take)
            .await
    }

    /// Judges a batch as an append under a lease would (and a seal with `message` after it), and changes
    /// nothing. Whether the batch is a duplicate.
    ///
    /// # Errors
    /// What the append, or the seal, would be refused for; those of the connection. There are no effects.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn foresee(&self, feed: &str, batch: &Batch, message: Option<&str>) -> Result<bool> {
        let frame = Rest(batch.as_bytes());
        let request = Request::Foresee {
            feed,
            message,
            frame,
        };
        let take = take!(Answer::Foreseen { duplicate } => duplicate);
        self.call(Some(feed), &request, Again::Always, take).await
    }

    /// What every log of the server holds, what waits for the bucket, and how the bucket is.
    ///
    /// # Errors
    /// Those of the connection.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn usage(&self) -> Result<Usage> {
        let take = take!(Answer::Usage { logs, bucket } => Usage { logs, bucket });
        self.call(None, &Request::Usage {}, Again::Always, take)
            .await
    }

    /// Counters of every log.
    ///
    /// # Errors
    /// Those of the connection.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn stats(&self) -> Result<Vec<LogInfo>> {
        let take = take!(Answer::Stats { logs } => logs);
        self.call(None, &Request::Stats {}, Again::Always, take)
            .await
    }
}
