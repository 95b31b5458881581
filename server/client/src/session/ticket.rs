//! Ticket: the acknowledgement to come of one batch.
//!
//! **Invariants**
//! - It resolves once, whatever becomes of connection and session.
//! - Dropping it changes nothing: the batch stays on its way.
//!
//! **Not here**: acks of all batches in order (`acks`).

use std::pin::Pin;
use std::task::{Context, Poll};

use sealog_protocol::Effects;
use tokio::sync::oneshot;

use super::state::Ack;
use crate::error::{Error, ErrorKind, Result};

/// The acknowledgement to come of one batch: a future.
///
/// # Cancel safety
/// Dropping it, or the future that awaits it, leaves the batch on its way.
#[derive(Debug)]
#[must_use = "what became of a batch is only known through its ticket"]
pub struct Ticket {
    number: Option<u64>,
    outcome: oneshot::Receiver<Result<Ack>>,
}

impl Ticket {
    pub(super) fn new(number: u64, outcome: oneshot::Receiver<Result<Ack>>) -> Self {
        Self {
            number: Some(number),
            outcome,
        }
    }

    /// One that was refused at once.
    pub(super) fn refused(error: Error) -> Self {
        let (sender, outcome) = oneshot::channel();
        let _ = sender.send(Err(error));
        Self {
            number: None,
            outcome,
        }
    }

    /// Which batch of the session this is, from 0; `None`: it was refused at once.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.number
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
