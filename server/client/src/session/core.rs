//! Core: a session's state behind its lock, and the moves between it, its connection and its users.
//!
//! **Invariants**
//! - The lock is held for moves in memory only, and before the connection's.
//! - Outcomes are told, and waiters woken, when no lock is held.
//! - Answers of a connection that the session has left are ignored.
//!
//! **Not here**: what events do (`state`), reconnecting (`driver`), what users call (`mod`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sealog_frame::Batch;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::acks::AckQueue;
use super::state::{Ack, Done, Outcome, State, Step};
use crate::conn::{Conn, Route};
use crate::error::{Error, Result};

/// A session, shared between its user, its connection and its driver.
pub(crate) struct Core {
    inner: Mutex<Inner>,
    /// The driver has something to do.
    pub(super) wake_driver: Notify,
    /// The queue is empty, or the session stopped.
    pub(super) drained: Notify,
    /// There may be room in the window.
    pub(super) room: Notify,
}

pub(super) struct Inner {
    pub(super) state: State,
    link: Option<Bound>,
    pub(super) acks: Option<Arc<AckQueue>>,
    /// Everything was answered, the front with *not now*.
    rewound: bool,
    /// Somebody waits for room, or for the queue to be empty.
    pub(super) room_wanted: bool,
    pub(super) drain_wanted: usize,
    /// When the newest ack came, or the first batch after a time without any.
    pub(super) progress: Instant,
    /// The user let go of the session.
    pub(super) abandoned: bool,
    /// A seal was sent that may have been done.
    pub(super) seal_sent: bool,
    /// The stream is sealed.
    pub(super) sealed: bool,
    spare: Vec<Outcome>,
}

/// A connection that knows the feed by a number.
struct Bound {
    conn: Arc<Conn>,
    slot: u64,
    binding: u32,
    /// Ordinals are counted anew on each connection.
    next_ordinal: u64,
    answered: u64,
    batches_max: usize,
}

/// A batch, and what it was built with.
pub(super) struct Built {
    pub(super) batch: Batch,
    pub(super) metered_bytes: u64,
    pub(super) producer_sequence: Option<u64>,
}

/// What became of a batch that was built.
pub(super) enum Pushed {
    /// It has this number in the session.
    Taken(u64),
    /// It must be built again.
    Stale(Done),
}

/// What the driver is to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Wait for a wake-up.
    Wait,
    /// There are batches and no connection.
    Connect,
    /// Send all again, after a while: the server said *not now*.
    SendAgain(Error),
    /// Nothing, ever.
    End,
}

impl Core {
    pub(super) fn new(state: State) -> Self {
        Self {
            inner: Mutex::new(Inner {
                state,
                link: None,
                acks: None,
                rewound: false,
                room_wanted: false,
                drain_wanted: 0,
                progress: Instant::now(),
                abandoned: false,
                seal_sent: false,
                sealed: false,
                spare: Vec::new(),
            }),
            wake_driver: Notify::new(),
            drained: Notify::new(),
            room: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the session on a connection that has bound its feed, and sends what waits.
    pub(super) fn attach(self: &Arc<Self>, conn: &Arc<Conn>, binding: u32) -> Result<()> {
        let slot = conn.attach(Route::Session(self.clone()))?;
        let mut inner = self.lock();
        inner.link = Some(Bound {
            conn: conn.clone(),
            slot,
            binding,
            next_ordinal: 0,
            answered: 0,
            batches_max: usize::try_from(conn.welcome.producer_batches_max)
                .unwrap_or(usize::MAX)
                .max(1),
        });
        inner.rewound = false;
        inner.pump(0);
        drop(inner);
        // It may have ended before it had a link to tell.
        if let Some(error) = conn.end() {
            self.on_end(conn, &error);
            return Err(error);
        }
        Ok(())
    }

    /// Takes a batch, if it was built under the producer sequence that is due.
    pub(super) fn push(&self, built: Built, done: Done) -> Result<Pushed> {
        let mut inner = self.lock();
        if let Some(error) = inner.state.refusal() {
            return Err(error);
        }
        if inner.state.next_producer_sequence != built.producer_sequence {
            // A refusal has freed producer sequences meanwhile.
            return Ok(Pushed::Stale(done));
        }
        if inner.state.queue.is_empty() {
            inner.progress = Instant::now();
        }
        let number = inner.state.push(built.batch, built.metered_bytes, done);
        if inner.link.is_some() {
            inner.pump(0);
        } else {
            self.wake_driver.notify_one();
        }
        Ok(Pushed::Taken(number))
    }

    /// Sends what the connection's credit now allows.
    pub(crate) fn go_on(&self) {
        self.lock().pump(0);
    }

    /// Answers of this session's appends, in the order they came.
    pub(crate) fn on_answers(
        &self,
        conn: &Arc<Conn>,
        answers: &mut Vec<(u64, Result<Ack>)>,
    ) -> Result<()> {
        let mut inner = self.lock();
        let current = |bound: &Bound| Arc::ptr_eq(&bound.conn, conn);
        if !inner.link.as_ref().is_some_and(current) {
            answers.clear();
            return Ok(());
        }
        let mut out = std::mem::take(&mut inner.spare);
        let mut result = Ok(());
        let mut wake_driver = false;
        for (ordinal, answer) in answers.drain(..) {
            if let Err(error) = inner.expect(ordinal) {
                result = Err(error);
                break;
            }
            match inner.state.on_answer(answer, &mut out) {
                Step::Moved => {}
                Step::Rewound => {
                    inner.rewound = true;
                    wake_driver = true;
                }
                Step::Stopped => wake_driver = true,
            }
            if inner.link.is_none() || inner.state.failure.is_some() {
                break;
            }
        }
        let answered = out.iter().map(|outcome| outcome.entry_bytes).sum();
        if !out.is_empty() {
            inner.progress = Instant::now();
        }
        inner.pump(answered);
        self.tell(inner, out, wake_driver);
        result
    }

    /// The connection ended.
    pub(crate) fn on_end(&self, conn: &Arc<Conn>, error: &Error) {
        let mut inner = self.lock();
        let current = |bound: &Bound| Arc::ptr_eq(&bound.conn, conn);
        if !inner.link.as_ref().is_some_and(current) {
            return;
        }
        inner.link = None;
        inner.rewound = false;
        let mut out = Vec::new();
        inner.state.on_end(error, &mut out);
        if inner.abandoned {
            let gone = Error::disconnected("the session was dropped before the answer came");
            inner.state.stop(gone, &mut out);
        }
        self.tell(inner, out, true);
    }

    /// Stops the session.
    pub(super) fn stop(&self, cause: Error) {
        let mut inner = self.lock();
        let mut out = Vec::new();
        inner.state.stop(cause, &mut out);
        let answered = out.iter().map(|outcome| outcome.entry_bytes).sum();
        inner.pump(answered);
        inner.leave();
        self.tell(inner, out, true);
    }

    /// No more batches are taken.
    pub(super) fn close(&self) {
        self.lock().state.closed = true;
    }

    /// The user let go: what was not sent is not sent any more.
    pub(super) fn abandon(&self) {
        let mut inner = self.lock();
        let mut out = Vec::new();
        inner.abandoned = true;
        inner.state.abandon(&mut out);
        if inner.link.is_none() {
            let gone = Error::disconnected("the session was dropped before the answer came");
            inner.state.stop(gone, &mut out);
        }
        if inner.state.queue.is_empty() {
            inner.leave();
        }
        self.tell(inner, out, true);
    }

    /// What there is for the driver to do.
    pub(super) fn job(&self) -> Job {
        let inner = self.lock();
        if inner.abandoned || inner.state.failure.is_some() {
            return Job::End;
        }
        match (&inner.link, &inner.state.rewinding) {
            (None, _) if !inner.state.queue.is_empty() => Job::Connect,
            (Some(_), Some(error)) if inner.rewound => Job::SendAgain(error.clone()),
            _ => Job::Wait,
        }
    }

    /// Sends everything again, after the server had said *not now*.
    pub(super) fn send_again(&self) {
        let mut inner = self.lock();
        if inner.rewound {
            inner.rewound = false;
            let queue = inner.state.queue.iter().take(inner.state.sent);
            let answered = queue
                .map(|entry| crate::conn::request_bytes(&entry.batch))
                .sum();
            inner.state.send_again();
            inner.pump(answered);
        }
    }

    /// Lets go of the lock, then tells everybody what happened.
    fn tell(&self, mut inner: MutexGuard<'_, Inner>, mut out: Vec<Outcome>, wake_driver: bool) {
        let stopped = inner.state.failure.is_some();
        let idle = inner.state.queue.is_empty() || stopped;
        let room = inner.room_wanted && (stopped || !out.is_empty());
        inner.room_wanted &= !room;
        let drained = idle && inner.drain_wanted > 0;
        if let Some(acks) = &inner.acks {
            acks.push(out.iter().map(|outcome| outcome.result.clone()), stopped);
        }
        if idle && inner.abandoned {
            inner.leave();
        }
        drop(inner);
        for outcome in out.drain(..) {
            if let Some(done) = outcome.done {
                let _ = done.send(outcome.result);
            }
        }
        if room {
            self.room.notify_one();
        }
        if drained {
            self.drained.notify_waiters();
        }
        if wake_driver {
            self.wake_driver.notify_one();
        }
        if out.capacity() > 0 {
            self.lock().spare = out;
        }
    }
}

impl Inner {
    /// Answers come in the order of what was sent (NATIVE-3).
    fn expect(&mut self, ordinal: u64) -> Result<()> {
        let Some(bound) = &mut self.link else {
            return Ok(());
        };
        if ordinal != bound.answered || ordinal >= bound.next_ordinal {
            return Err(Error::protocol(format!(
                "answer to append {ordinal} of this connection, {} is due",
                bound.answered
            )));
        }
        bound.answered += 1;
        Ok(())
    }

    /// Sends what may be sent; `answered` bytes of requests have been answered.
    fn pump(&mut self, answered: u64) {
        let Some(bound) = &mut self.link else {
            return;
        };
        if answered == 0 && self.state.to_send(bound.batches_max).is_none() {
            return;
        }
        let mut sending = bound.conn.sending(bound.slot, answered);
        while let Some(entry) = self.state.to_send(bound.batches_max) {
            if !sending.append(bound.binding, &entry.batch, bound.next_ordinal) {
                break;
            }
            bound.next_ordinal += 1;
            self.state.mark_sent();
        }
    }

    /// Leaves the connection.
    fn leave(&mut self) {
        if let Some(bound) = self.link.take() {
            bound.conn.detach(bound.slot);
        }
    }
}
