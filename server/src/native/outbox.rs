//! Outbox: answers on their way to the socket, and what of the credit they give back.
//!
//! **Invariants**
//! - Answers leave in the order they were put in; what was put in meanwhile leaves in one write.
//! - A request's bytes count as unanswered until its answer is with the system; one that is shorter than what
//!   it makes the server keep counts [`CHARGE_BYTES_MIN`].
//! - Small answers are counted, records and pages hold what was reserved for them, until they have left.
//!
//! **Not here**: the socket (`writer`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use sealog_engine::{Event, Held};
use sealog_protocol::Answer;

use super::memory::{Share, Spares};

/// Least that a request counts: a refused append is a few bytes, and what is known of it more.
const CHARGE_BYTES_MIN: usize = 256;

/// What a request of `bytes` counts; nothing if it was counted before.
fn charge(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        _ => bytes.max(CHARGE_BYTES_MIN),
    }
}

/// A parcel that has grown beyond this is not added to.
const PARCEL_BYTES: usize = 64 << 10;

/// What leaves in one write.
#[derive(Default)]
pub(super) struct Parcel {
    pub(super) bytes: Vec<u8>,
    /// Bytes of requests that are answered by it.
    pub(super) answered: usize,
    /// Bytes of it that nothing is reserved for.
    small: usize,
    /// What is reserved for the others.
    _held: Held,
}

/// Answers that wait for the socket.
pub(super) struct Outbox {
    parcels: RefCell<VecDeque<Parcel>>,
    waiting: Cell<usize>,
    /// Those of `waiting` that nothing is reserved for.
    small: Share,
    spares: Spares,
    unanswered: Cell<usize>,
    /// Notified when there is something to send, or the connection is to end.
    pub(super) filled: Event,
    /// Notified when something has left.
    pub(super) emptied: Event,
}

impl Outbox {
    pub(super) fn new(small: Share, spares: Spares) -> Self {
        Self {
            parcels: RefCell::default(),
            waiting: Cell::default(),
            small,
            spares,
            unanswered: Cell::default(),
            filled: Event::new(),
            emptied: Event::new(),
        }
    }

    /// A request of `bytes` was taken in.
    pub(super) fn take_in(&self, bytes: usize) {
        self.unanswered.set(self.unanswered.get() + charge(bytes));
    }

    /// A request of `bytes` needs no answer, or was answered otherwise.
    pub(super) fn answered(&self, bytes: usize) {
        self.unanswered
            .set(self.unanswered.get().saturating_sub(charge(bytes)));
        self.emptied.notify();
    }

    /// Bytes of requests whose answers are not with the system.
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered.get()
    }

    /// Bytes that wait for the socket.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Bytes that wait for the socket without anything being reserved for them.
    pub(super) fn small(&self) -> usize {
        self.small.get()
    }

    /// Adds an answer to a request of `answered` bytes.
    pub(super) fn put(&self, answer: &Answer<'_>, (request, flags): (u64, u8), answered: usize) {
        self.put_with(answered, |out| answer.encode(request, flags, out));
        self.filled.notify();
    }

    /// Adds what `encode` writes; the caller notifies `filled` when it has added all it has.
    pub(super) fn put_with(&self, answered: usize, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut parcels = self.parcels.borrow_mut();
        if parcels
            .back()
            .is_none_or(|last| last.bytes.len() > PARCEL_BYTES)
        {
            parcels.push_back(Parcel {
                bytes: self.spares.take(),
                ..Parcel::default()
            });
        }
        let Some(last) = parcels.back_mut() else {
            return;
        };
        let before = last.bytes.len();
        encode(&mut last.bytes);
        let added = last.bytes.len() - before;
        last.answered += charge(answered);
        last.small += added;
        self.waiting.set(self.waiting.get() + added);
        self.small.set(self.small.get() + added);
    }

    /// Adds bytes as they are, to be sent from where they lie, that `held` is reserved for: an answer to a
    /// request of `answered` bytes, which was counted before if that is 0.
    pub(super) fn put_whole(&self, bytes: Vec<u8>, answered: usize, held: Held) {
        self.waiting.set(self.waiting.get() + bytes.len());
        self.parcels.borrow_mut().push_back(Parcel {
            bytes,
            answered: charge(answered),
            small: 0,
            _held: held,
        });
    }

    /// What is to leave next.
    pub(super) fn next(&self) -> Option<Parcel> {
        self.parcels.borrow_mut().pop_front()
    }

    /// `parcel` is with the system.
    pub(super) fn left(&self, parcel: Parcel) {
        self.waiting.set(self.waiting.get() - parcel.bytes.len());
        self.small.set(self.small.get() - parcel.small);
        self.unanswered
            .set(self.unanswered.get().saturating_sub(parcel.answered));
        self.spares.put(parcel.bytes);
        self.emptied.notify();
    }
}
