//! State: what a session knows, and what each event does to it. Pure: no sockets, no clocks, no tasks.
//!
//! ```text
//!  queue:  [ sent on this connection | to be sent ]
//!            ^ answers come from the front, acks leave from the front
//! ```
//!
//! **Invariants**
//! - Acks leave in the order of submission; a batch leaves the queue exactly once, with one outcome.
//! - With an identity, batches behind one that is not in the log are not in the log either.
//! - `unacked_bytes` is the sum over the queue, whatever happens to connections.
//!
//! **Not here**: sending (`core`), reconnecting (`driver`).

use std::collections::VecDeque;

use sealog_frame::Batch;
use sealog_protocol::{Answer, Effects};
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind, Result};

/// A batch is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Sequence of the first record.
    pub first: u64,
    /// Sequence of the last record.
    pub last: u64,
    /// Number of records. 0 for a batch that was sent again when the server did not remember its range
    /// any more: it is stored once, `first` and `last` are those of the producer's newest batch.
    pub records: u32,
    /// It was in the log already: an earlier try had arrived.
    pub duplicate: bool,
    /// Highest producer sequence accepted, for a session with an identity.
    pub producer_sequence: Option<u64>,
}

impl Ack {
    /// What `answer` acknowledges; `None`: it answers something else.
    pub(crate) fn of(answer: &Answer<'_>) -> Option<Self> {
        match *answer {
            Answer::Appended {
                first,
                last,
                records,
                duplicate,
                producer_sequence,
            } => Some(Self {
                first,
                last,
                records,
                duplicate,
                producer_sequence,
            }),
            _ => None,
        }
    }
}

/// A batch of which no acknowledgement has left yet.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) batch: Batch,
    pub(crate) number: u64,
    pub(crate) metered_bytes: u64,
    pub(crate) producer_sequence: Option<u64>,
    /// It was in flight when a connection ended: it may be in the log.
    pub(crate) lost: bool,
    /// It was put on some connection.
    pub(crate) handed_out: bool,
    pub(crate) done: Done,
}

/// Where a ticket waits, if one does.
pub(crate) type Done = Option<oneshot::Sender<Result<Ack>>>;

/// An outcome on its way to whoever waits for it; sent when no lock is held.
pub(crate) struct Outcome {
    pub(crate) done: Done,
    pub(crate) result: Result<Ack>,
    /// What its request counted against the credit of the connection; 0 if it was not on it.
    pub(crate) entry_bytes: u64,
}

/// What an answer did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Go on.
    Moved,
    /// Every answer is there, and the front was refused for now: send all of it again, after a while.
    Rewound,
    /// The session stopped.
    Stopped,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) queue: VecDeque<Entry>,
    /// Of the queue, on the current connection.
    pub(crate) sent: usize,
    /// Of those, answered while rewinding.
    answered: usize,
    /// The front was refused for now; what is behind it is waited for and not sent on.
    pub(crate) rewinding: Option<Error>,
    pub(crate) unacked_bytes: u64,
    pub(crate) next_number: u64,
    /// `None`: without identity.
    pub(crate) next_producer_sequence: Option<u64>,
    pub(crate) last_acked: Option<Ack>,
    pub(crate) failure: Option<Error>,
    /// No batch is taken any more.
    pub(crate) closed: bool,
    /// Numbers of what was on its way when the session stopped: with unknown outcome, and not stored.
    pub(crate) given_up: (Vec<u64>, Vec<u64>),
}

impl State {
    pub(crate) fn new(first_producer_sequence: Option<u64>) -> Self {
        Self {
            queue: VecDeque::new(),
            sent: 0,
            answered: 0,
            rewinding: None,
            unacked_bytes: 0,
            next_number: 0,
            next_producer_sequence: first_producer_sequence,
            last_acked: None,
            failure: None,
            closed: false,
            given_up: (Vec::new(), Vec::new()),
        }
    }

    /// Why no batch is taken, if so.
    pub(crate) fn refusal(&self) -> Option<Error> {
        match &self.failure {
            Some(cause) => Some(Error::stopped(cause, Effects::None)),
            None => self.closed.then(Error::session_closed),
        }
    }

    /// Takes a batch that was built under [`State::next_producer_sequence`]; its number.
    pub(crate) fn push(&mut self, batch: Batch, metered_bytes: u64, done: Done) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.unacked_bytes += metered_bytes;
        let producer_sequence = self.next_producer_sequence;
        self.next_producer_sequence = producer_sequence.map(|sequence| sequence + 1);
        self.queue.push_back(Entry {
            batch,
            number,
            metered_bytes,
            producer_sequence,
            lost: false,
            handed_out: false,
            done,
        });
        number
    }

    /// The next batch to send, if there is one and `batches_max` in flight are not reached.
    pub(crate) fn to_send(&self, batches_max: usize) -> Option<&Entry> {
        let limited = self.next_producer_sequence.is_some() && self.sent >= batches_max;
        match self.rewinding.is_some() || limited {
            true => None,
            false => self.queue.get(self.sent),
        }
    }

    /// The batch that [`State::to_send`] gave is on its way.
    pub(crate) fn mark_sent(&mut self) {
        self.queue[self.sent].handed_out = true;
        self.sent += 1;
    }

    /// The answer to the oldest unanswered batch on this connection.
    pub(crate) fn on_answer(&mut self, answer: Result<Ack>, out: &mut Vec<Outcome>) -> Step {
        debug_assert!(self.answered < self.sent, "answers belong to what was sent");
        if self.rewinding.is_some() {
            // Nothing behind the front can have been taken: it is all sent again.
            self.answered += 1;
            return self.rewound();
        }
        match answer {
            Ok(ack) => {
                self.last_acked = Some(ack);
                self.settle_front(Ok(ack), out);
                Step::Moved
            }
            Err(error) => self.on_refusal(error, out),
        }
    }

    fn on_refusal(&mut self, error: Error, out: &mut Vec<Outcome>) -> Step {
        let with_identity = self.next_producer_sequence.is_some();
        let front = &self.queue[0];
        let error = match front.lost && !is_judged_behind_the_producer(error.kind()) {
            // An earlier try may have arrived: this refusal does not say that it did not.
            true => error.with_effects(Effects::Unknown),
            false => error,
        };
        if error.is_retryable() && with_identity {
            self.rewinding = Some(error);
            self.answered = 1;
            return self.rewound();
        }
        let definite = error.effects() == Effects::None;
        let alone = self.queue.len() == 1;
        let fatal = ends_a_session(error.kind());
        if !fatal && ((definite && alone) || !with_identity) {
            // Its producer sequence is still free.
            self.next_producer_sequence = front.producer_sequence;
            self.settle_front(Err(error), out);
            return Step::Moved;
        }
        self.stop(error, out);
        Step::Stopped
    }

    fn rewound(&self) -> Step {
        match self.answered == self.sent {
            true => Step::Rewound,
            false => Step::Moved,
        }
    }

    fn settle_front(&mut self, result: Result<Ack>, out: &mut Vec<Outcome>) {
        let Some(entry) = self.queue.pop_front() else {
            return;
        };
        self.sent -= 1;
        self.unacked_bytes -= entry.metered_bytes;
        out.push(Outcome {
            entry_bytes: crate::conn::request_bytes(&entry.batch),
            done: entry.done,
            result,
        });
    }

    /// All of the queue may be sent again, on the same connection.
    pub(crate) fn send_again(&mut self) {
        self.rewinding = None;
        self.answered = 0;
        self.sent = 0;
    }

    /// The connection ended. Without identity, what was in flight has an unknown outcome and the session
    /// stops; with one, it is sent again.
    pub(crate) fn on_end(&mut self, error: &Error, out: &mut Vec<Outcome>) {
        for entry in self.queue.iter_mut().take(self.sent) {
            entry.lost = true;
        }
        let in_flight = self.sent > 0;
        self.send_again();
        if in_flight && self.next_producer_sequence.is_none() {
            self.stop(error.with_effects(Effects::Unknown), out);
        }
    }

    /// Ends the session: the front gets `cause`, those behind it that the session stopped, each with what
    /// is known of its effects.
    pub(crate) fn stop(&mut self, cause: Error, out: &mut Vec<Outcome>) {
        // Behind a batch that is surely not in the log nothing is, if producer sequences chain them.
        let chained = self.next_producer_sequence.is_some();
        let front_is_out = chained && cause.effects() == Effects::None && self.sent > 0;
        for (at, entry) in self.queue.drain(..).enumerate() {
            let effects = match entry.handed_out && !front_is_out {
                true => Effects::Unknown,
                false => Effects::None,
            };
            match effects {
                Effects::None => self.given_up.1.push(entry.number),
                _ => self.given_up.0.push(entry.number),
            }
            let result = match at {
                0 => cause.with_effects(effects),
                _ => Error::stopped(&cause, effects),
            };
            out.push(Outcome {
                entry_bytes: match at < self.sent {
                    true => crate::conn::request_bytes(&entry.batch),
                    false => 0,
                },
                done: entry.done,
                result: Err(result),
            });
        }
        self.sent = 0;
        self.answered = 0;
        self.rewinding = None;
        self.unacked_bytes = 0;
        self.failure.get_or_insert(cause);
    }

    /// Lets go of what was never sent; what was stays until it is answered.
    pub(crate) fn abandon(&mut self, out: &mut Vec<Outcome>) {
        self.closed = true;
        while self.queue.back().is_some_and(|entry| !entry.handed_out) {
            if let Some(entry) = self.queue.pop_back() {
                self.unacked_bytes -= entry.metered_bytes;
                out.push(Outcome {
                    entry_bytes: 0,
                    done: entry.done,
                    result: Err(Error::session_closed()),
                });
            }
        }
    }
}

/// The server looks at these only once it knows that the producer did not send the batch before.
fn is_judged_behind_the_producer(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::SequenceMismatch { .. }
            | ErrorKind::KeysNotAllowed { .. }
            | ErrorKind::NoOpenStream { .. }
            | ErrorKind::ProducerGap { .. }
            | ErrorKind::ProducerEpochStart { .. }
            | ErrorKind::ProducersFull { .. }
    )
}

/// Refused for what the session is, not for what the batch is: the next one would be, too.
fn ends_a_session(kind: &ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::SequenceMismatch { .. }
            | ErrorKind::KeysNotAllowed { .. }
            | ErrorKind::OverLimit { .. }
            | ErrorKind::Batch
            | ErrorKind::Invalid
            | ErrorKind::StorageFull
            | ErrorKind::Overloaded { .. }
            | ErrorKind::Bucket
    )
}

#[cfg(test)]
mod tests;
