//! Ticket: the acknowledgement to come of one batch.
//!
//! **Invariants**
//! - It resolves once, whatever becomes of connection and session.
//! - Dropping it changes nothing: the batch stays on its way.
//! - What is settled is told at once, however many tickets a task awaits: the runtime's budget for one
//!   turn of a task does not apply, or of thousands awaited together all but 128 would be polled in vain.
//!
//! **Not here**: acks of all batches in order (`acks`).

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use sealog_protocol::Effects;
use tokio::sync::oneshot;
use tokio::task::coop::{Unconstrained, unconstrained};

use super::state::Ack;
use crate::error::{Error, ErrorKind, Result};

/// The acknowledgement to come of one batch: a future.
///
/// # Cancel safety
/// Dropping it, or the future that awaits it, leaves the batch on its way.
#[must_use = "what became of a batch is only known through its ticket"]
pub struct Ticket {
    number: Option<u64>,
    outcome: Unconstrained<oneshot::Receiver<Result<Ack>>>,
}

impl Ticket {
    pub(super) fn new(number: u64, outcome: oneshot::Receiver<Result<Ack>>) -> Self {
        Self {
            number: Some(number),
            outcome: unconstrained(outcome),
        }
    }

    /// One that was refused at once.
    pub(super) fn refused(error: Error) -> Self {
        let (sender, outcome) = oneshot::channel();
        let _ = sender.send(Err(error));
        Self {
            number: None,
            outcome: unconstrained(outcome),
        }
    }

    /// Which batch of the session this is, from 0; `None`: it was refused at once.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.number
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &mut f.debug_struct("Ticket");
        shown.field("number", &self.number).finish_non_exhaustive()
    }
}

impl Future for Ticket {
    type Output = Result<Ack>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome).poll(cx).map(|outcome| {
            outcome.unwrap_or_else(|_| {
                let text = "the session ended without an outcome";
                Err(Error::new(ErrorKind::Stopped, Effects::Unknown, text))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[tokio::test]
    async fn ticket_of_thousands_awaited_in_one_turn_is_told_at_once() {
        let settled = |_| Ticket::refused(Error::new(ErrorKind::Stopped, Effects::None, "x"));
        let tickets: Vec<Ticket> = (0..1_000).map(settled).collect();
        let mut cx = Context::from_waker(Waker::noop());
        let ready = tickets.into_iter().filter_map(|mut ticket| {
            let polled = Pin::new(&mut ticket).poll(&mut cx);
            polled.is_ready().then_some(())
        });
        assert_eq!(ready.count(), 1_000);
    }
}
