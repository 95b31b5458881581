//! Shard side: what a front end that runs on the shards works with: their logs, without a channel.
//!
//! ```text
//!  socket -> task of this shard -> own log: LogService::append_direct
//!                              \\-> other shard's log: Handle, by channel
//! ```
//!
//! **Invariants**
//! - It never leaves its shard.
//! - It must let go of everything when the front end is told to end: the engine closes after it.
//!
//! **Not here**: sockets and protocols (the server's).

use std::rc::Rc;
use std::time::Duration;

use sealog_frame::Batch;

use super::{Handle, ProductionEnv};
use crate::append::AppendResult;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::ids::FeedId;
use crate::shard::{FeedInfo, FeedRef, LogService, OrderKey};

/// A log of this shard.
pub type LocalLog = Rc<LogService<ProductionEnv>>;

/// One shard, to whoever serves on it. Cheap to clone.
#[derive(Clone)]
pub struct ShardSide {
    pub(super) shard: usize,
    pub(super) shards: usize,
    pub(super) env: ProductionEnv,
    pub(super) handle: Handle<ProductionEnv>,
    /// By log number; `None`: another shard's.
    pub(super) logs: Rc<[Option<LocalLog>]>,
}

impl ShardSide {
    /// Which shard this is.
    #[must_use]
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// How many there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// The way to every log.
    #[must_use]
    pub fn handle(&self) -> &Handle<ProductionEnv> {
        &self.handle
    }

    /// The log that `feed` is in, if it is this shard's.
    #[must_use]
    pub fn log(&self, feed: &str) -> Option<&LocalLog> {
        self.logs.get(self.handle.log_of(feed))?.as_ref()
    }

    /// The logs of this shard.
    pub fn logs(&self) -> impl Iterator<Item = &LocalLog> {
        self.logs.iter().flatten()
    }

    /// Starts a task on this shard. A panic in it poisons the shard's logs, as one of the engine's would.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + 'static) {
        self.env.spawn(name, future);
    }

    /// Completes after `duration`.
    ///
    /// # Cancel safety
    /// Cancel safe: only waits.
    pub async fn sleep(&self, duration: Duration) {
        self.env.sleep(duration).await;
    }

    /// Nanoseconds of a clock that never goes back.
    #[must_use]
    pub fn monotonic_ns(&self) -> u64 {
        self.env.monotonic_ns()
    }

    /// Lets other tasks run, if this one has had its share.
    ///
    /// # Cancel safety
    /// Cancel safe: only waits.
    pub async fn yield_if_needed(&self) {
        self.env.yield_if_needed().await;
    }

    /// Queues a batch behind the writes that wait; `answer` runs when it is settled, on this shard.
    /// Returns when its bytes are reserved, which is when the caller may take in more.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`]: nothing was queued, and `answer` is dropped.
    ///
    /// # Cancel safety
    /// Dropped before it returned, nothing was queued.
    pub async fn queue_append(
        &self,
        (log, feed): (&LocalLog, FeedRef),
        batch: Batch,
        answer: impl FnOnce(Result<AppendResult>) + 'static,
    ) -> Result<()> {
        let (_, budget) = self.handle.port(self.handle.log_of(&feed.name))?;
        let permit = budget.acquire(batch.as_bytes().len()).await;
        let permit = permit.ok_or_else(|| self.handle.gone_error())?;
        log.append(feed, (batch, None), permit, answer);
        Ok(())
    }

    /// What a feed is at this moment, durable or not: for who goes on to write. An answer that rests on it
    /// must wait for [`ShardSide::settle`].
    ///
    /// # Errors
    /// [`Error::FeedNotFound`], [`Error::Poisoned`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn peek(&self, feed: &str) -> Result<FeedInfo> {
        if let Some(log) = self.log(feed) {
            return log.feed_now(feed);
        }
        let name = feed.to_owned();
        let log = self.handle.log_of(feed);
        let ask = move |s: LocalLog| async move { s.feed_now(&name) };
        self.handle.ask(log, ask).await
    }

    /// Waits until what was accepted so far for the log of `feed` is durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: only waits.
    pub async fn settle(&self, feed: &str) -> Result<()> {
        match self.log(feed) {
            Some(log) => log.settle().await,
            None => {
                let log = self.handle.log_of(feed);
                let ask = |s: LocalLog| async move { s.settle().await };
                self.handle.ask(log, ask).await
            }
        }
    }

    /// Appends a batch to the feed with this id, if its order key, should it have one, is above the feed's last;
    /// returns when both are durable.
    ///
    /// # Errors
    /// As [`Handle::append`]; [`Error::OutOfOrder`]: no effects.
    ///
    /// # Cancel safety
    /// Dropped before it returned, the batch may be stored: effects unknown.
    pub async fn append(
        &self,
        (feed, id): (&str, FeedId),
        batch: Batch,
        order: Option<OrderKey>,
    ) -> Result<AppendResult> {
        let Some(log) = self.log(feed) else {
            let sent = self.send_ordered((feed, id), (batch, order)).await?;
            return sent.await;
        };
        let permit = self.handle.permit(self.handle.log_of(feed), &batch).await?;
        let feed = FeedRef {
            id: Some(id),
            ..FeedRef::named(feed)
        };
        log.append_settled(feed, (batch, order), permit).await
    }

    /// Sends a batch to another shard's log. Returns when its bytes are reserved and it is on its way.
    ///
    /// # Errors
    /// As [`Handle::append`]; what the batch came to, the future that is returned tells.
    ///
    /// # Cancel safety
    /// Dropped before it returned, the batch may be stored all the same.
    pub async fn send_append(
        &self,
        (feed, id): (&str, FeedId),
        batch: Batch,
    ) -> Result<impl Future<Output = Result<AppendResult>> + 'static> {
        self.send_ordered((feed, id), (batch, None)).await
    }

    async fn send_ordered(
        &self,
        (feed, id): (&str, FeedId),
        (batch, order): (Batch, Option<OrderKey>),
    ) -> Result<impl Future<Output = Result<AppendResult>> + 'static> {
        let answer = self
            .handle
            .submit_to((feed, Some(id)), (batch, order), |_| {})
            .await?
            .into_recv_async();
        let handle = self.handle.clone();
        Ok(async move { answer.await.unwrap_or_else(|_| Err(handle.gone_error())) })
    }

    /// What every later call would be answered, if the engine is on its way down.
    #[must_use]
    pub fn gone(&self) -> Error {
        self.handle.gone_error()
    }
}
