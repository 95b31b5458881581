//! Acks: the acknowledgements of a session as a stream, in order.
//!
//! **Invariants**
//! - Every outcome after the stream was asked for is in it once, in order of submission; after the error
//!   that stopped the session it ends.
//! - What is not taken counts against the session's `max_unacked_batches`, so it is bounded for all who
//!   append with backpressure.
//!
//! **Not here**: single outcomes (`ticket`).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::core::Core;
use super::state::Ack;
use crate::error::Result;

/// Outcomes that were not taken yet.
#[derive(Default)]
pub(super) struct AckQueue(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    outcomes: VecDeque<Result<Ack>>,
    ended: bool,
    waker: Option<Waker>,
}

impl AckQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().outcomes.len()
    }

    pub(super) fn push(&self, outcomes: impl Iterator<Item = Result<Ack>>, stopped: bool) {
        let mut queue = self.lock();
        for outcome in outcomes {
            if queue.ended {
                break;
            }
            queue.ended = stopped && outcome.is_err();
            queue.outcomes.push_back(outcome);
        }
        queue.ended |= stopped;
        let waker = match queue.outcomes.is_empty() && !queue.ended {
            true => None,
            false => queue.waker.take(),
        };
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn end(&self) {
        self.push(std::iter::empty(), true);
    }
}

/// A session's acknowledgements, in order of submission: [`AppendSession::acks`](crate::AppendSession::acks).
pub struct Acks {
    pub(super) queue: Arc<AckQueue>,
    pub(super) core: Arc<Core>,
}

impl Stream for Acks {
    type Item = Result<Ack>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut queue = self.queue.lock();
        if let Some(outcome) = queue.outcomes.pop_front() {
            drop(queue);
            self.core.taken();
            return Poll::Ready(Some(outcome));
        }
        if queue.ended {
            return Poll::Ready(None);
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Acks {
    fn drop(&mut self) {
        self.core.forget_acks(&self.queue);
    }
}
