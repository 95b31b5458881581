//! Session: a writer's hold on a feed: bounded appends in flight, drained by `seal`.
//!
//! **Invariants**
//! - Unacknowledged payload never exceeds `max_unacked_bytes`; waiting for it blocks no thread.
//! - Every batch carries the session's epoch, so a writer that was superseded is told so.
//!
//! **Not here**: retries and connections (the network client has them).

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use sealog_frame::Batch;

use super::Handle;
use crate::append::{AppendResult, Lease};
use crate::commit::Commit;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::shard::LogService;
use crate::sync::Budget;

/// How a session behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOptions {
    /// Payload bytes (keys and headers too) that may be unacknowledged: 16 MiB.
    pub max_unacked_bytes: usize,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            max_unacked_bytes: 16 << 20,
        }
    }
}

/// A writer's session on one feed. Dropping it only stops sending: the stream stays unsealed.
pub struct AppendSession<E: Env> {
    handle: Handle<E>,
    feed: String,
    lease: Lease,
    window: Budget,
}

/// The acknowledgement to come of one batch.
#[must_use = "an append is acknowledged only through its ticket"]
pub struct Ticket<E: Env> {
    answer: flume::r#async::RecvFut<'static, Result<AppendResult>>,
    handle: Handle<E>,
}

impl<E: Env> Future for Ticket<E> {
    type Output = Result<AppendResult>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.answer).poll(cx) {
            Poll::Ready(Ok(result)) => Poll::Ready(result),
            Poll::Ready(Err(_)) => Poll::Ready(Err(self.handle.gone_error())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<E: Env> Handle<E> {
    /// Judges a batch for a writer that is about to open or resume the feed's stream (and to seal it
    /// with `message`, if given), before it fences anybody; changes nothing. Whether the batch is a
    /// duplicate. The append answers the same as long as nobody else writes in between.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`], the refusals of [`Handle::append`] but those that a lease settles
    /// ([`Error::Fenced`], [`Error::TokenRequired`], [`Error::NoOpenStream`]), and those of
    /// [`Handle::seal`] if it is to be sealed; [`Error::Poisoned`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn foresee(&self, feed: &str, batch: &Batch, message: Option<&str>) -> Result<bool> {
        self.check_limits(batch)?;
        let (name, batch) = (feed.to_owned(), batch.clone());
        let message = message.map(str::to_owned);
        let ask = move |s: Rc<LogService<E>>| async move {
            s.foresee(&name, &batch.view(), message.as_deref()).await
        };
        self.ask(self.log_of(feed), ask).await
    }

    /// Opens a new stream and a session on it.
    ///
    /// # Errors
    /// As [`Handle::open`].
    ///
    /// # Cancel safety
    /// As [`Handle::open`].
    pub async fn open_session(
        &self,
        feed: &str,
        options: SessionOptions,
    ) -> Result<AppendSession<E>> {
        let lease = self.open(feed).await?;
        Ok(AppendSession::new(self.clone(), feed, lease, options))
    }

    /// Takes over the newest unsealed stream with a session.
    ///
    /// # Errors
    /// As [`Handle::resume`].
    ///
    /// # Cancel safety
    /// As [`Handle::resume`].
    pub async fn resume_session(
        &self,
        feed: &str,
        options: SessionOptions,
    ) -> Result<AppendSession<E>> {
        let lease = self.resume(feed).await?;
        Ok(AppendSession::new(self.clone(), feed, lease, options))
    }
}

impl<E: Env> AppendSession<E> {
    fn new(handle: Handle<E>, feed: &str, lease: Lease, options: SessionOptions) -> Self {
        let window = Budget::new(options.max_unacked_bytes.max(1));
        Self {
            handle,
            feed: feed.to_owned(),
            lease,
            window,
        }
    }

    /// Epoch, stream and first sequence of this session.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Appends a batch; returns when it is durable.
    ///
    /// # Errors
    /// As [`AppendSession::append_async`], and what the batch came to.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the batch may be stored: effects unknown.
    pub async fn append(&self, batch: Batch) -> Result<AppendResult> {
        self.append_async(batch).await?.await
    }

    /// Sends a batch on its way and returns its ticket; waits, without blocking a thread, while the
    /// window is full. Batches are taken in the order in which these calls are made.
    ///
    /// # Errors
    /// [`Error::OverLimit`] for a batch larger than the window; [`Error::Closed`],
    /// [`Error::Poisoned`]. The ticket answers what [`Handle::append`] would.
    ///
    /// # Cancel safety
    /// Dropped while waiting for the window, nothing was sent.
    pub async fn append_async(&self, batch: Batch) -> Result<Ticket<E>> {
        let bytes = usize::try_from(batch.view().metered_bytes()).unwrap_or(usize::MAX);
        let limit = self.window.limit();
        if bytes > limit {
            let (value, limit) = (bytes as u64, limit as u64);
            return Err(Error::OverLimit {
                what: "batch bytes in a window",
                value,
                limit,
            });
        }
        let batch = match batch.view().fencing_token() {
            Some(_) => batch,
            None => batch.with_fencing_token(self.lease.epoch.0),
        };
        let closed = || self.handle.gone_error();
        let permit = self.window.acquire(bytes).await.ok_or_else(closed)?;
        let answer = self
            .handle
            .submit(&self.feed, batch, move |_| drop(permit))
            .await?;
        Ok(Ticket {
            answer: answer.into_recv_async(),
            handle: self.handle.clone(),
        })
    }

    /// Waits for every append in flight, then seals the stream and waits for its commit.
    ///
    /// # Errors
    /// As [`Handle::seal`]. What became of the appends, their tickets say.
    ///
    /// # Cancel safety
    /// As [`Handle::seal`].
    pub async fn seal(&self, message: &str) -> Result<Commit> {
        let drained = self.window.acquire(self.window.limit()).await;
        let _all = drained.ok_or_else(|| self.handle.gone_error())?;
        self.handle
            .seal(&self.feed, Some(self.lease.epoch), message)
            .await
    }
}
