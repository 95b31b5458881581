//! Sink: appends with backpressure, for streams of batches.
//!
//! **Invariants**
//! - Unacknowledged bytes stay within the session's window; one batch may wait in the sink for room.
//! - The first batch that fails ends the sink: nothing behind a hole is sent through it.
//!
//! **Not here**: acks (`acks`).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_sink::Sink;
use sealog_frame::Batch;

use super::ticket::Ticket;
use super::{IntoBatch, Shared};
use crate::error::{Error, Result};

/// Appends batches in order: [`AppendSession::sink`](crate::AppendSession::sink). Flushed when all of them
/// are acknowledged.
pub struct AppendSink {
    pub(super) session: Arc<Shared>,
    pub(super) held: Option<Batch>,
    pub(super) room: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pub(super) in_flight: VecDeque<Ticket>,
    pub(super) failed: Option<Error>,
}

impl AppendSink {
    /// Sends the batch that is held, when there is room for it.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.check(cx)?;
        while let Some(batch) = &self.held {
            if let Some(room) = &mut self.room {
                ready!(room.as_mut().poll(cx));
                self.room = None;
            }
            if !self.session.has_room(batch.metered_bytes()) {
                let (session, bytes) = (self.session.clone(), batch.metered_bytes());
                self.room = Some(Box::pin(async move { session.wait_for_room(bytes).await }));
                continue;
            }
            self.in_flight.push_back(self.session.submit(batch));
            self.held = None;
        }
        self.check(cx)?;
        Poll::Ready(Ok(()))
    }

    /// Looks at the oldest outcomes there are.
    fn check(&mut self, cx: &mut Context<'_>) -> Result<()> {
        while let Some(oldest) = self.in_flight.front_mut() {
            match Pin::new(oldest).poll(cx) {
                Poll::Pending => break,
                Poll::Ready(outcome) => {
                    self.in_flight.pop_front();
                    if let Err(error) = outcome {
                        self.failed.get_or_insert(error);
                    }
                }
            }
        }
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

impl Sink<Batch> for AppendSink {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_held(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, batch: Batch) -> Result<()> {
        self.session.check_window(batch.metered_bytes())?;
        self.held = Some(batch);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_held(cx))?;
        match self.in_flight.is_empty() {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_flush(cx)
    }
}
