//! Outbox: answers on their way to the socket, and what of the credit they give back.
//!
//! **Invariants**
//! - Answers leave in the order they were put in; what was put in meanwhile leaves in one write.
//! - A request's bytes count as unanswered until its answer is with the system; one that is shorter than what
//!   it makes the server keep counts [`CHARGE_BYTES_MIN`].
//!
//! **Not here**: the socket (`writer`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use sealog_engine::Event;
use sealog_protocol::Answer;

/// Least that a request counts: a refused append is a few bytes, and what is known of it more.
const CHARGE_BYTES_MIN: usize = 256;

/// What a request of `bytes` counts; nothing if it was counted before.
fn charge(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        _ => bytes.max(CHARGE_BYTES_MIN),
    }
}

/// A buffer that grew beyond this is let go after use.
const KEEP_BYTES: usize = 64 << 10;

/// What leaves in one write.
#[derive(Default)]
pub(super) struct Parcel {
    pub(super) bytes: Vec<u8>,
    /// Bytes of requests that are answered by it.
    pub(super) answered: usize,
}

/// Answers that wait for the socket.
#[derive(Default)]
pub(super) struct Outbox {
    parcels: RefCell<VecDeque<Parcel>>,
    waiting: Cell<usize>,
    spare: RefCell<Vec<u8>>,
    unanswered: Cell<usize>,
    /// Notified when there is something to send, or the connection is to end.
    pub(super) filled: Event,
    /// Notified when something has left.
    pub(super) emptied: Event,
}

impl Outbox {
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
            .is_none_or(|last| last.bytes.len() > KEEP_BYTES)
        {
            parcels.push_back(Parcel {
                bytes: self.spare.take(),
                answered: 0,
            });
        }
        let Some(last) = parcels.back_mut() else {
            return;
        };
        let before = last.bytes.len();
        encode(&mut last.bytes);
        last.answered += charge(answered);
        self.waiting
            .set(self.waiting.get() + last.bytes.len() - before);
    }

    /// Adds bytes as they are, to be sent from where they lie.
    pub(super) fn put_whole(&self, bytes: Vec<u8>) {
        self.waiting.set(self.waiting.get() + bytes.len());
        let parcel = Parcel { bytes, answered: 0 };
        self.parcels.borrow_mut().push_back(parcel);
    }

    /// What is to leave next.
    pub(super) fn next(&self) -> Option<Parcel> {
        self.parcels.borrow_mut().pop_front()
    }

    /// `parcel` is with the system.
    pub(super) fn left(&self, parcel: Parcel) {
        self.waiting.set(self.waiting.get() - parcel.bytes.len());
        self.unanswered
            .set(self.unanswered.get().saturating_sub(parcel.answered));
        let mut bytes = parcel.bytes;
        if bytes.capacity() <= 2 * KEEP_BYTES {
            bytes.clear();
            self.spare.replace(bytes);
        }
        self.emptied.notify();
    }
}
