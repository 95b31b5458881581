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
use crate::shard::{FeedRef, LogService};

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
        log.append(feed, batch, permit, answer);
        Ok(())
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
        let answer = self
            .handle
            .submit_to(feed, Some(id), batch, |_| {})
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
