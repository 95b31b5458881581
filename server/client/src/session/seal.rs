//! Seal: draining a session, sealing its stream, and finding out what became of a seal.
//!
//! **Invariants**
//! - Only a stream whose batches are all acknowledged is sealed.
//! - Under a lease, a seal whose answer was lost is looked up: it is never reported as failed when it was
//!   done, and never done to another stream.
//!
//! **Not here**: the request (`ops`).

use sealog_protocol::{CommitInfo, Effects, StreamPhase};
use tokio::time::Instant;

use super::{AppendSession, Core, Shared, Unsettled};
use crate::error::{Error, ErrorKind, Result};

impl AppendSession {
    /// Waits for every batch on its way, then seals the stream and waits for its commit. The session takes
    /// no batch from the moment of this call; when the seal is refused it does again.
    ///
    /// # Errors
    /// [`ErrorKind::Stopped`]: the session stopped before everything was acknowledged, nothing was sealed;
    /// [`ErrorKind::Fenced`], [`ErrorKind::AbandonedStream`], [`ErrorKind::OverLimit`] (the message): not
    /// sealed. When the connection does not come back in time the effects are unknown.
    ///
    /// A session that was closed may be sealed; so may one whose seal had an unknown outcome, again.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the stream may be sealed, and publication goes on by itself. The session
    /// stays closed; another call finds out, and seals what is not sealed.
    pub async fn seal(&self, message: &str) -> Result<CommitInfo> {
        let shared = &self.shared;
        let core = &shared.core;
        core.begin_seal()?;
        let deadline = Instant::now() + shared.client.options().seal_timeout;
        if !core.wait_drained(deadline).await {
            core.reopen();
            let within = shared.client.options().seal_timeout;
            let late =
                Error::timed_out(within, "batches are still on their way, nothing was sealed");
            return Err(late.with_effects(Effects::None));
        }
        if let Some(cause) = self.failure_cause() {
            return Err(Error::stopped(&cause, Effects::None));
        }
        let sealed = shared.seal(message, deadline).await;
        match &sealed {
            Ok(_) => {
                core.lock().sealed = true;
                core.finish();
            }
            Err(error) if error.effects() == Effects::None => core.reopen(),
            Err(_) => {}
        }
        sealed
    }
}

/// What a look at the stream says about a seal.
enum Found {
    /// It is still open: the seal did not arrive.
    Open,
    Sealed(CommitInfo),
}

impl Shared {
    async fn seal(&self, message: &str, deadline: Instant) -> Result<CommitInfo> {
        let token = self.lease.map(|lease| lease.epoch);
        let sent_before = std::mem::replace(&mut self.core.lock().seal_sent, true);
        if let (true, Some(lease)) = (sent_before, &self.lease)
            && let Found::Sealed(commit) = self.look_up(lease.stream).await?
        {
            return Ok(commit);
        }
        loop {
            let error = match self.client.seal_under(&self.feed, token, message).await {
                Ok(commit) => return Ok(commit),
                Err(error) => error,
            };
            let Some(lease) = &self.lease else {
                return Err(error);
            };
            if error.effects() != Effects::Unknown || Instant::now() >= deadline {
                return Err(error);
            }
            match self.look_up(lease.stream).await {
                Ok(Found::Sealed(commit)) => return Ok(commit),
                Ok(Found::Open) if error.is_retryable() => {}
                Ok(Found::Open) => return Err(error.with_effects(Effects::None)),
                // Not to be found out now: the seal's own error says what is known.
                Err(look) if look.is_retryable() => return Err(error),
                Err(look) => return Err(look),
            }
        }
    }

    /// What has become of the session's stream.
    async fn look_up(&self, stream: u64) -> Result<Found> {
        let streams = self
            .client
            .list_streams(&self.feed, stream.saturating_sub(1), 2)
            .await?;
        let unknown = |text: &str| Error::disconnected(text);
        let found = streams.into_iter().find(|info| info.id == stream);
        let Some(info) = found else {
            return Err(unknown("the stream is not listed any more"));
        };
        match (info.phase, info.commit) {
            (StreamPhase::Open, _) => Ok(Found::Open),
            (StreamPhase::Sealed | StreamPhase::Published, Some(number)) => {
                self.client.repair(&self.feed).await?;
                let commits = self.client.list_commits(&self.feed, number, 1).await?;
                let commit = commits.into_iter().find(|commit| commit.stream == stream);
                commit
                    .map(Found::Sealed)
                    .ok_or_else(|| unknown("the stream's commit is not listed"))
            }
            // Somebody else has opened the feed since: it can't be sealed by this session.
            (phase, _) => Err(Error::new(
                ErrorKind::Stopped,
                Effects::None,
                format!("the stream is {phase:?}"),
            )),
        }
    }
}

impl Core {
    /// No batch is taken from here on.
    fn begin_seal(&self) -> Result<()> {
        let mut inner = self.lock();
        if let Some(cause) = &inner.state.failure {
            return Err(Error::stopped(cause, Effects::None));
        }
        if inner.sealed {
            return Err(Error::session_closed());
        }
        inner.state.closed = true;
        Ok(())
    }

    /// The seal was refused: batches are taken again.
    fn reopen(&self) {
        let mut inner = self.lock();
        inner.seal_sent = false;
        if !inner.abandoned {
            inner.state.closed = false;
        }
    }

    /// The stream is sealed: the session is over, without a failure.
    fn finish(&self) {
        let acks = self.lock().acks.take();
        if let Some(acks) = acks {
            acks.end();
        }
    }

    /// Stops waiting: what is left, by what is known of it.
    pub(super) fn give_up(&self, cause: Error) -> Result<(), Unsettled> {
        self.stop(cause);
        self.unsettled()
    }

    /// Fine, unless the session stopped.
    pub(super) fn unsettled(&self) -> Result<(), Unsettled> {
        let inner = self.lock();
        if let Some(cause) = inner.state.failure.clone() {
            let (unknown, unsent) = inner.state.given_up.clone();
            return Err(Unsettled {
                cause,
                unknown,
                unsent,
            });
        }
        drop(inner);
        self.finish();
        Ok(())
    }
}
