//! Driver: the task of a session: it reconnects, waits out *not now*, and notices when nothing moves.
//!
//! **Invariants**
//! - A session without batches on their way makes no connection: one that is idle costs the server nothing.
//! - The feed of a new connection is the same feed, by its id, or the session stops.
//! - A session whose batches do not move for its stall time-out stops: nobody waits for ever.
//!
//! **Not here**: what is sent again (`state`).

use std::sync::Arc;
use std::time::Duration;

use sealog_protocol::{Answer, Effects, Request};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::core::{Core, Job};
use crate::backoff::Tries;
use crate::client::Client;
use crate::conn::Conn;
use crate::error::{Error, ErrorKind, Result};

/// What the driver must know of its session.
pub(super) struct Driver {
    pub(super) core: Arc<Core>,
    pub(super) client: Client,
    pub(super) feed: String,
    pub(super) feed_id: u64,
    pub(super) stall_timeout: Duration,
}

impl Driver {
    /// Runs until the session ends.
    pub(super) async fn run(self) {
        let mut tries = Tries::new(self.client.options().retry);
        let mut progress = self.core.lock().progress;
        loop {
            let newest = self.core.lock().progress;
            if newest != progress {
                progress = newest;
                tries.restart();
            }
            match self.core.job() {
                Job::End => return,
                Job::Wait => self.wait().await,
                Job::Connect => self.connect(&mut tries).await,
                Job::SendAgain(error) => match tries.after(&error) {
                    Some(delay) => {
                        self.pause(delay).await;
                        self.core.send_again();
                    }
                    None => self.core.stop(error),
                },
            }
        }
    }

    /// Waits for a wake-up; looks now and then whether anything moves.
    async fn wait(&self) {
        let woken = timeout(self.stall_timeout / 4, self.core.wake_driver.notified());
        if woken.await.is_err() {
            self.check_progress();
        }
    }

    fn check_progress(&self) {
        let stalled = {
            let inner = self.core.lock();
            !inner.state.queue.is_empty() && inner.progress.elapsed() >= self.stall_timeout
        };
        if stalled {
            let text = "no batch was acknowledged";
            self.core.stop(Error::timed_out(self.stall_timeout, text));
        }
    }

    /// Sleeps, unless the session ends.
    async fn pause(&self, delay: Duration) {
        let until = Instant::now() + delay;
        while !matches!(self.core.job(), Job::End) {
            let woken = timeout_at(until, self.core.wake_driver.notified());
            if woken.await.is_err() {
                return;
            }
        }
    }

    async fn connect(&self, tries: &mut Tries) {
        let deadline = tries
            .end()
            .min(self.core.lock().progress + self.stall_timeout);
        let ended = async {
            while !matches!(self.core.job(), Job::End) {
                self.core.wake_driver.notified().await;
            }
        };
        let error = tokio::select! {
            bound = timeout_at(deadline, self.bind()) => match bound {
                Ok(Ok((conn, binding))) => match self.core.attach(&conn, binding) {
                    Ok(()) => return,
                    Err(error) => error,
                },
                Ok(Err(error)) => error,
                Err(_) => Error::timed_out(self.stall_timeout, "no connection"),
            },
            () = ended => return,
        };
        let again = error.is_retryable() && Instant::now() < deadline;
        match again.then(|| tries.after(&error)).flatten() {
            // The link paces its own tries.
            Some(_)
                if matches!(
                    error.kind(),
                    ErrorKind::Connect { .. } | ErrorKind::Disconnected
                ) => {}
            Some(delay) => sleep(delay).await,
            // What was sent is told apart by the state.
            None => self.core.stop(error.with_effects(Effects::Unknown)),
        }
    }

    async fn bind(&self) -> Result<(Arc<Conn>, u32)> {
        let conn = self.client.connection(Some(&self.feed)).await?;
        let request = Request::Bind { feed: &self.feed };
        let message = conn
            .ask(&request, self.client.options().request_timeout)
            .await?;
        match message.answer()? {
            Answer::Bound { binding, feed, .. } if feed == self.feed_id => Ok((conn, binding)),
            Answer::Bound { feed, .. } => Err(replaced(&self.feed, self.feed_id, feed)),
            _ => Err(Error::protocol("a bind is answered by something else")),
        }
    }
}

/// The error for a feed that was deleted and made again.
pub(crate) fn replaced(feed: &str, before: u64, now: u64) -> Error {
    let feed = feed.to_owned();
    let kind = ErrorKind::FeedReplaced { feed, before, now };
    Error::new(kind, Effects::None, "")
}
