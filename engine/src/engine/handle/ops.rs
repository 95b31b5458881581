//! Ops: what may be done with feeds, streams, commits and producers, but for appending and reading.
//!
//! **Invariants**
//! - One call is one job of the log that owns the feed.
//!
//! **Not here**: how calls get there, appends and reads (`handle`), decisions (`shard`).

use std::rc::Rc;

use super::Handle;
use crate::append::Lease;
use crate::commit::{Commit, CommitKind};
use crate::env::Env;
use crate::error::Result;
use crate::feed::FeedOptions;
use crate::ids::{CommitNumber, Epoch, FeedId, StreamId};
use crate::limits::check_commit_message;
use crate::producer::ProducerState;
use crate::shard::{
    CloseRequest, Closed, FeedInfo, FeedRef, LogService, Made, MakeRequest, ProducerInfo,
    StreamInfo,
};

impl<E: Env> Handle<E> {
    /// Creates a feed; creating it again with the same options is success.
    ///
    /// # Errors
    /// [`Error::FeedName`](crate::Error::FeedName), [`Error::FeedExists`](crate::Error::FeedExists) (other
    /// options), [`Error::FeedsFull`](crate::Error::FeedsFull), [`Error::Poisoned`](crate::Error::Poisoned),
    /// [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the feed may exist.
    pub async fn create_feed(&self, feed: &str, options: FeedOptions) -> Result<FeedId> {
        let name = feed.to_owned();
        self.call(self.log_of(feed), move |s, answer| {
            s.create_feed(name, options, answer)
        })
        .await
    }

    /// Makes a feed with its first records, closed behind them if the request says so, in one step; a feed that
    /// is there already is left as it is.
    ///
    /// # Errors
    /// [`Error::FeedName`](crate::Error::FeedName), [`Error::FeedsFull`](crate::Error::FeedsFull),
    /// [`Error::OverLimit`](crate::Error::OverLimit) (attributes, batch), those of [`Handle::append`] for the
    /// batch: without effects. After [`Error::Closed`](crate::Error::Closed) or
    /// [`Error::Poisoned`](crate::Error::Poisoned) effects are unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the feed may exist.
    pub async fn make_feed(&self, feed: &str, request: MakeRequest) -> Result<Made> {
        let log = self.log_of(feed);
        let permit = match &request.batch {
            Some(batch) => Some(self.permit(log, batch).await?),
            None => None,
        };
        let name = feed.to_owned();
        self.call(log, move |s, answer| {
            s.make_feed(name, request, None, permit, answer)
        })
        .await
    }

    /// Deletes a feed and all that is in it. One that forks go on from is kept for them: by name it is gone
    /// ([`Error::FeedGone`](crate::Error::FeedGone)) until the last of them is deleted, and then by itself.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound), [`Error::FeedGone`](crate::Error::FeedGone), [`Error::Poisoned`](crate::Error::Poisoned),
    /// [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the feed may be gone.
    pub async fn delete_feed(&self, feed: &str) -> Result<()> {
        let name = feed.to_owned();
        self.call(self.log_of(feed), move |s, answer| {
            s.delete_feed(name, None, answer)
        })
        .await
    }

    /// As [`Handle::delete_feed`], of the feed with this id: another that has its name by now stays.
    ///
    /// # Errors
    /// As [`Handle::delete_feed`]; [`Error::FeedNotFound`](crate::Error::FeedNotFound) if it is another.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the feed may be gone.
    pub async fn delete_this_feed(&self, feed: &str, id: FeedId) -> Result<()> {
        let name = feed.to_owned();
        self.call(self.log_of(feed), move |s, answer| {
            s.delete_feed(name, Some(id), answer)
        })
        .await
    }

    /// What a feed is. Of one that was deleted and is kept for its forks, all calls by name but those that list
    /// feeds answer [`Error::FeedGone`](crate::Error::FeedGone).
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound), [`Error::Poisoned`](crate::Error::Poisoned),
    /// [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn feed(&self, feed: &str) -> Result<FeedInfo> {
        let name = feed.to_owned();
        self.ask(self.log_of(feed), |s| async move { s.feed(&name).await })
            .await
    }

    /// Up to `limit` feeds whose names begin with `prefix` and come after `after`, in name order.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned), [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_feeds(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<FeedInfo>> {
        let mut all = Vec::new();
        for log in 0..self.logs() {
            let (prefix, after) = (prefix.to_owned(), after.to_owned());
            let ask = move |s: Rc<LogService<E>>| async move {
                s.list_feeds(&prefix, &after, limit).await
            };
            all.extend(self.ask(log, ask).await?);
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.truncate(limit);
        Ok(all)
    }

    /// Takes the writer lease and opens a new stream; the writer before is fenced.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound), [`Error::Poisoned`](crate::Error::Poisoned),
    /// [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the writer before may be fenced and a stream open.
    pub async fn open(&self, feed: &str) -> Result<Lease> {
        let name = feed.to_owned();
        self.call(self.log_of(feed), move |s, answer| s.open(name, answer))
            .await
    }

    /// Takes the writer lease over the newest unsealed stream; the writer before is fenced.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound),
    /// [`Error::NoOpenStream`](crate::Error::NoOpenStream), [`Error::Poisoned`](crate::Error::Poisoned),
    /// [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the writer before may be fenced.
    pub async fn resume(&self, feed: &str) -> Result<Lease> {
        let name = feed.to_owned();
        self.call(self.log_of(feed), move |s, answer| s.resume(name, answer))
            .await
    }

    /// Seals the open stream and waits until its commit is published. `token` is the writer epoch,
    /// `None` a cooperative caller.
    ///
    /// # Errors
    /// [`Error::Fenced`](crate::Error::Fenced), [`Error::TokenRequired`](crate::Error::TokenRequired),
    /// [`Error::NoOpenStream`](crate::Error::NoOpenStream),
    /// [`Error::AbandonedStream`](crate::Error::AbandonedStream), [`Error::OverLimit`](crate::Error::OverLimit)
    /// (message). After [`Error::Closed`](crate::Error::Closed) or [`Error::Poisoned`](crate::Error::Poisoned)
    /// effects are unknown; publication of a sealed stream finishes by itself.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the stream may be sealed.
    pub async fn seal(&self, feed: &str, token: Option<Epoch>, message: &str) -> Result<Commit> {
        let (name, message) = (feed.to_owned(), message.to_owned());
        self.call(self.log_of(feed), move |s, answer| {
            s.seal(name, token, message, answer)
        })
        .await
    }

    /// Closes a feed for good, with a last batch if the request has one: no batch and no stream comes any more,
    /// readers are told the end. Closing a closed feed changes nothing. Its stream is sealed; publication
    /// follows by itself.
    ///
    /// # Errors
    /// Those of [`Handle::append`] for the batch, and [`Error::FeedClosed`](crate::Error::FeedClosed) when it comes after the closing;
    /// [`Error::ProducerGap`](crate::Error::ProducerGap) and its kin for a producer's closing without a batch;
    /// [`Error::Fenced`](crate::Error::Fenced), [`Error::TokenRequired`](crate::Error::TokenRequired),
    /// [`Error::OverLimit`](crate::Error::OverLimit) (note): without effects. After
    /// [`Error::Closed`](crate::Error::Closed) or [`Error::Poisoned`](crate::Error::Poisoned) effects are unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the feed may be closed.
    pub async fn close_feed(
        &self,
        feed: &str,
        id: Option<FeedId>,
        request: CloseRequest,
    ) -> Result<Closed> {
        let log = self.log_of(feed);
        let permit = match &request.batch {
            Some(batch) => Some(self.permit(log, batch).await?),
            None => None,
        };
        let name = feed.to_owned();
        self.call(log, move |s, answer| {
            let feed = FeedRef {
                id,
                ..FeedRef::named(&name)
            };
            s.close_feed(feed, request, permit, answer);
        })
        .await
    }

    /// Settles an unsealed stream as it stands, as a commit (`Sealed`) or as a gap (`Discarded`):
    /// the given one, else the oldest.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound),
    /// [`Error::StreamNotFound`](crate::Error::StreamNotFound),
    /// [`Error::StreamSettled`](crate::Error::StreamSettled),
    /// [`Error::NoOpenStream`](crate::Error::NoOpenStream),
    /// [`Error::AbandonedStream`](crate::Error::AbandonedStream) naming an older one,
    /// [`Error::Pinned`](crate::Error::Pinned) (to be discarded, and forks go on from it),
    /// [`Error::Poisoned`](crate::Error::Poisoned), [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the stream may be settled.
    pub async fn settle_stream(
        &self,
        feed: &str,
        stream: Option<StreamId>,
        kind: CommitKind,
        message: &str,
    ) -> Result<Commit> {
        check_commit_message(message)?;
        let (name, message) = (feed.to_owned(), message.to_owned());
        let job = move |s: &Rc<LogService<E>>, answer| {
            s.settle_stream(name, stream, kind, message, answer);
        };
        self.call(self.log_of(feed), job).await
    }

    /// Waits until everything sealed of a feed is published; answers how many commits that took.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound), [`Error::Poisoned`](crate::Error::Poisoned),
    /// [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Cancel safe: publication goes on by itself.
    pub async fn repair(&self, feed: &str) -> Result<u64> {
        let name = feed.to_owned();
        self.ask(self.log_of(feed), |s| async move { s.repair(&name).await })
            .await
    }

    /// Up to `limit` streams with ids after `after`, oldest first.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound), [`Error::Corrupt`](crate::Error::Corrupt),
    /// [`Error::Bucket`](crate::Error::Bucket).
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_streams(
        &self,
        feed: &str,
        after: StreamId,
        limit: usize,
    ) -> Result<Vec<StreamInfo>> {
        let name = feed.to_owned();
        let ask =
            move |s: Rc<LogService<E>>| async move { s.list_streams(&name, after, limit).await };
        self.ask(self.log_of(feed), ask).await
    }

    /// Up to `limit` published commits from number `from` on; fewer, but one at least if there is one, when
    /// their messages are long.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound), [`Error::Corrupt`](crate::Error::Corrupt),
    /// [`Error::Bucket`](crate::Error::Bucket).
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_commits(
        &self,
        feed: &str,
        from: CommitNumber,
        limit: usize,
    ) -> Result<Vec<Commit>> {
        let name = feed.to_owned();
        let ask =
            move |s: Rc<LogService<E>>| async move { s.list_commits(&name, from, limit).await };
        self.ask(self.log_of(feed), ask).await
    }

    /// Up to `limit` producers with ids after `after`, in id order.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound), [`Error::Poisoned`](crate::Error::Poisoned),
    /// [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn list_producers(
        &self,
        feed: &str,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<ProducerInfo>> {
        let (name, after) = (feed.to_owned(), after.map(<[u8]>::to_vec));
        let ask = move |s: Rc<LogService<E>>| async move {
            s.list_producers(&name, after.as_deref(), limit).await
        };
        self.ask(self.log_of(feed), ask).await
    }

    /// Where a producer stands; `None` if it was never seen, or was forgotten.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`](crate::Error::FeedNotFound), [`Error::Poisoned`](crate::Error::Poisoned),
    /// [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn producer(&self, feed: &str, id: &[u8]) -> Result<Option<ProducerState>> {
        let (name, id) = (feed.to_owned(), id.to_vec());
        self.ask(self.log_of(feed), |s| async move {
            s.producer(&name, &id).await
        })
        .await
    }
}
