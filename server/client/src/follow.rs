//! Follow: records as they come, over whatever connections it takes.
//!
//! **Invariants**
//! - No gap, no repeat: after a reconnect the server is asked for the sequence that is due.
//! - What the server may send ahead is bounded by credit, given back as batches are taken.
//! - The feed is the same by its id on every connection, or the follow ends.
//!
//! **Not here**: what is in an answer (`read`).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use sealog_protocol::{Answer, ReadFrom, Request};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout_at};

use crate::backoff::Tries;
use crate::client::Client;
use crate::conn::{Conn, Message, Route};
use crate::error::{Error, ErrorKind, Result};
use crate::read::{ReadOptions, RecordBatch};
use crate::session::replaced;

/// Answers that were not taken yet.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<InboxState>,
    arrived: Notify,
}

#[derive(Default)]
struct InboxState {
    messages: VecDeque<Message>,
    failed: Option<Error>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, message: Message) {
        self.lock().messages.push_back(message);
        self.arrived.notify_one();
    }

    pub(crate) fn fail(&self, error: Error) {
        self.lock().failed.get_or_insert(error);
        self.arrived.notify_one();
    }

    /// The next answer; what has come is given before what ended the connection.
    async fn next(&self) -> Result<Message> {
        loop {
            {
                let mut state = self.lock();
                if let Some(message) = state.messages.pop_front() {
                    return Ok(message);
                }
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
            }
            self.arrived.notified().await;
        }
    }
}

/// The follow as the server knows it.
struct Subscription {
    conn: Arc<Conn>,
    slot: u64,
    inbox: Arc<Inbox>,
    /// Bytes taken and not yet given back as credit.
    taken: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.conn.detach(self.slot);
        self.conn.tell(&Request::Cancel {}, self.slot);
    }
}

/// Records of a feed as they come: [`Follow::next`] by [`Follow::next`], or [`Follow::into_stream`].
pub struct Follow {
    client: Client,
    feed: String,
    /// With the feed's id, once that is known.
    options: ReadOptions,
    /// The sequence that is due; `None` before the first answer.
    position: Option<u64>,
    subscription: Option<Subscription>,
    tries: Tries,
    ended: bool,
}

impl Client {
    /// Follows a feed from where the options say, and waits at its tail for more, until the scope ends.
    /// Nothing is asked before the first [`Follow::next`].
    #[must_use]
    pub fn follow(&self, feed: &str, options: ReadOptions) -> Follow {
        Follow {
            client: self.clone(),
            feed: feed.to_owned(),
            position: None,
            subscription: None,
            tries: Tries::new(self.options().retry),
            ended: false,
            options,
        }
    }
}

impl Follow {
    /// The sequence that is due next; `None` before the first answer. A new follow from here goes on
    /// without gap and without repeat.
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        self.position
    }

    /// The next records; `None` when nothing more will ever come: the stream is sealed and read to its end, or the
    /// end that was asked for is reached. A lost connection is made again, and reading goes on at the
    /// sequence that is due.
    ///
    /// # Errors
    /// [`ErrorKind::FeedNotFound`], [`ErrorKind::StreamNotFound`], [`ErrorKind::CommitNotFound`],
    /// [`ErrorKind::Corrupt`], [`ErrorKind::FeedReplaced`]; [`ErrorKind::Connect`] when the server did not come
    /// back in the policy's time. After an error, another call tries again. There are no effects.
    ///
    /// # Cancel safety
    /// Cancel safe: no record is lost.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while !self.ended {
            match self.step().await {
                Ok(Some(batch)) => return Ok(Some(batch)),
                Ok(None) => {}
                Err(error) => self.retry(error).await?,
            }
        }
        Ok(None)
    }

    /// The batches as a stream. It ends behind the first error.
    #[must_use]
    pub fn into_stream(self) -> FollowStream {
        FollowStream::new(self)
    }

    async fn step(&mut self) -> Result<Option<RecordBatch>> {
        if self.position.is_none() && !matches!(self.options.from, ReadFrom::Sequence(_)) {
            return self.begin().await;
        }
        if self.subscription.is_none() {
            let deadline = self.tries.end();
            let subscribed = timeout_at(deadline, self.subscribe()).await;
            let late = |_| {
                let after = self.client.options().retry.elapsed_max;
                Error::timed_out(after, "no connection")
            };
            self.subscription = Some(subscribed.map_err(late)??);
        }
        let Some(subscription) = &mut self.subscription else {
            return Ok(None);
        };
        let message = subscription.inbox.next().await?;
        if let Answer::Refused { refusal } = message.answer()? {
            return Err(self.as_it_is(Error::from(&refusal)).await);
        }
        let batch = RecordBatch::parse(&message, self.options.end)?;
        if self.position.is_some_and(|due| due != batch.first()) || batch.next() < batch.first() {
            let (due, first) = (self.position.unwrap_or_default(), batch.first());
            return Err(Error::protocol(format!(
                "records from {first} on, {due} is due"
            )));
        }
        subscription.give_back(batch.frames_bytes(), self.options.buffer_bytes);
        self.tries.restart();
        self.position = Some(batch.next());
        self.ended = batch.is_end() || batch.next() >= self.options.end;
        if !self.ended && !message.has_more() {
            // The server ended the follow, not the scope: ask again from here.
            self.subscription = None;
        }
        Ok((!batch.is_empty()).then_some(batch))
    }

    /// Settles where a follow begins that was not given a sequence, by a first read: the tail moves on, and
    /// what comes after a lost connection must not be skipped.
    async fn begin(&mut self) -> Result<Option<RecordBatch>> {
        if self.options.feed_id.is_none() {
            self.options.feed_id = Some(self.client.feed(&self.feed).await?.id);
        }
        let options = self.options.without_wait();
        let batch = match self.client.read(&self.feed, &options).await {
            Ok(batch) => batch,
            Err(error) => return Err(self.as_it_is(error).await),
        };
        self.position = Some(batch.next());
        self.ended = batch.is_end() || batch.next() >= self.options.end;
        Ok((!batch.is_empty()).then_some(batch))
    }

    /// A feed that is not found because another one has its name is told as that.
    async fn as_it_is(&self, error: Error) -> Error {
        let (ErrorKind::FeedNotFound { .. }, Some(before)) = (error.kind(), self.options.feed_id)
        else {
            return error;
        };
        match self.client.feed(&self.feed).await {
            Ok(now) if now.id != before => replaced(&self.feed, before, now.id),
            _ => error,
        }
    }

    async fn retry(&mut self, error: Error) -> Result<()> {
        self.subscription = None;
        let delay = match error.is_retryable() {
            true => self.tries.after(&error),
            false => None,
        };
        match delay {
            // The link paces its own tries.
            Some(_)
                if matches!(
                    error.kind(),
                    ErrorKind::Connect { .. } | ErrorKind::Disconnected
                ) =>
            {
                Ok(())
            }
            Some(delay) => {
                sleep(delay).await;
                Ok(())
            }
            None => {
                self.tries.restart();
                Err(error)
            }
        }
    }

    async fn subscribe(&mut self) -> Result<Subscription> {
        let conn = self.client.connection(Some(&self.feed)).await?;
        let describe = Request::DescribeFeed { feed: &self.feed };
        let described = conn
            .ask(&describe, self.client.options().request_timeout)
            .await?;
        let id = match described.answer()? {
            Answer::Feed { feed } => feed.id,
            _ => return Err(Error::protocol("a feed is described by something else")),
        };
        let before = *self.options.feed_id.get_or_insert(id);
        if before != id {
            return Err(replaced(&self.feed, before, id));
        }
        let inbox = Arc::new(Inbox::default());
        let slot = conn.attach(Route::Follow(inbox.clone()))?;
        let from = self.position.map_or(self.options.from, ReadFrom::Sequence);
        let request = Request::Follow {
            scope: self.options.scope(&self.feed, from),
            credit_bytes: self.options.buffer_bytes.max(1),
        };
        conn.tell(&request, slot);
        Ok(Subscription {
            conn,
            slot,
            inbox,
            taken: 0,
        })
    }
}

impl Subscription {
    /// Gives credit back, half a buffer at a time: not a message for each batch.
    fn give_back(&mut self, bytes: u64, buffer_bytes: u64) {
        self.taken += bytes;
        if self.taken >= (buffer_bytes / 2).max(1) {
            let bytes = std::mem::take(&mut self.taken);
            self.conn.tell(&Request::Credit { bytes }, self.slot);
        }
    }
}

type Next = Pin<Box<dyn Future<Output = (Follow, Result<Option<RecordBatch>>)> + Send>>;

/// The batches of a follow as a stream: [`Follow::into_stream`].
pub struct FollowStream(Option<Next>);

impl FollowStream {
    fn new(follow: Follow) -> Self {
        Self(Some(Self::next_of(follow)))
    }

    fn next_of(mut follow: Follow) -> Next {
        Box::pin(async move {
            let next = follow.next().await;
            (follow, next)
        })
    }
}

impl Stream for FollowStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(next) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let (follow, result) = match next.as_mut().poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(ready) => ready,
        };
        let item = result.transpose();
        self.0 = match &item {
            Some(Ok(_)) => Some(Self::next_of(follow)),
            _ => None,
        };
        Poll::Ready(item)
    }
}
