//! Memory: bounds on what connections of a shard hold together.
//!
//! ```text
//!  socket ──> beginnings of messages [loose] ──> long ones [receiving] ──> log, queue (the engine's)
//!  socket <── small answers [loose] · records and pages [sending] <── engine
//! ```
//!
//! **Invariants**
//! - A long message is read on, records are read and pages are made only with their bytes reserved.
//! - What is small is not reserved but counted: beyond [`Memory::is_tight`] a connection adds
//!   [`TIGHT_BYTES`] to what it holds and no more.
//!
//! **Not here**: the memory of logs, batches and reads (the engine's limits).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use sealog_engine::Budget;

use super::meters::Meters;

/// Bytes of small answers and of batches behind them that a connection may leave unread.
const ANSWERS_KEPT_MAX: usize = 64 << 10;
/// The same, and what is read from a socket at once, while memory is tight.
const TIGHT_BYTES: usize = 4 << 10;

/// Buffers for answers that all connections of a shard use in turn.
const SPARES_MAX: usize = 16;
/// One larger than this is let go.
const SPARE_BYTES_MAX: usize = 128 << 10;

/// Buffers that are not in use.
#[derive(Clone, Default)]
pub(super) struct Spares(Rc<RefCell<Vec<Vec<u8>>>>);

impl Spares {
    /// An empty buffer.
    pub(super) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes `buffer` back.
    pub(super) fn put(&self, mut buffer: Vec<u8>) {
        let mut spares = self.0.borrow_mut();
        if spares.len() < SPARES_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
            buffer.clear();
            spares.push(buffer);
        }
    }
}

/// Memory of long messages that were handled, for those to come: fresh memory costs more than filling it.
pub(super) struct LongSpares {
    free: RefCell<VecDeque<Vec<u8>>>,
    bytes_max: usize,
}

impl LongSpares {
    fn new(bytes_max: usize) -> Self {
        Self {
            free: RefCell::default(),
            bytes_max,
        }
    }

    /// An empty buffer for `bytes`, not much larger.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        let mut free = self.free.borrow_mut();
        let fits = bytes..=bytes + bytes / 4;
        let at = free.iter().position(|kept| fits.contains(&kept.capacity()));
        let kept = at.and_then(|at| free.remove(at));
        kept.unwrap_or_else(|| Vec::with_capacity(bytes))
    }

    /// Takes `buffer` back; those that have lain there longest make room for it.
    pub(super) fn put(&self, mut buffer: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        buffer.clear();
        free.push_back(buffer);
        while free.iter().map(Vec::capacity).sum::<usize>() > self.bytes_max {
            free.pop_front();
        }
    }
}

/// What one holder has of what is counted together.
pub(super) struct Share {
    own: Cell<usize>,
    all: Rc<Cell<usize>>,
    meters: Arc<Meters>,
}

impl Share {
    /// It holds `bytes` now.
    pub(super) fn set(&self, bytes: usize) {
        let all = self.all.get() - self.own.replace(bytes) + bytes;
        self.all.set(all);
        self.meters.unreserved.set(all as u64);
    }

    pub(super) fn get(&self) -> usize {
        self.own.get()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The memory of a shard's connections.
pub(super) struct Memory {
    /// Long messages on their way in.
    pub(super) receiving: Budget,
    /// Records and pages on their way out.
    pub(super) sending: Budget,
    /// Buffers of small answers.
    pub(super) spares: Spares,
    /// Buffers of long messages.
    pub(super) long_spares: LongSpares,
    loose: Rc<Cell<usize>>,
    loose_max: usize,
    meters: Arc<Meters>,
}

impl Memory {
    /// Room for two of the longest messages, for four of the longest answers, and for as much as two of the
    /// longest messages in small pieces.
    pub(super) fn new(shard: usize, message_bytes_max: usize) -> Self {
        let sending = Budget::new(4 * message_bytes_max);
        Self {
            meters: Arc::new(Meters::new(shard, sending.clone())),
            receiving: Budget::new(2 * message_bytes_max),
            sending,
            spares: Spares::default(),
            long_spares: LongSpares::new(message_bytes_max / 2),
            loose: Rc::default(),
            loose_max: 2 * message_bytes_max,
        }
    }

    /// What the shard counts, of this and else.
    pub(super) fn meters(&self) -> Arc<Meters> {
        self.meters.clone()
    }

    /// A part of what is counted together.
    pub(super) fn share(&self) -> Share {
        Share {
            own: Cell::new(0),
            all: self.loose.clone(),
            meters: self.meters.clone(),
        }
    }

    /// Whether no connection may add much to what is counted together.
    pub(super) fn is_tight(&self) -> bool {
        self.loose.get() > self.loose_max
    }

    /// Bytes to take from a socket at once, of `most`; from one whose answers wait no more than it may leave
    /// unread.
    pub(super) fn read_bytes(&self, most: usize, answers_wait: bool) -> usize {
        match (self.is_tight(), answers_wait) {
            (true, _) => most.min(TIGHT_BYTES),
            (false, true) => most.min(ANSWERS_KEPT_MAX),
            (false, false) => most,
        }
    }

    /// Bytes of answers that a connection may leave unread before nothing more is read from it.
    pub(super) fn answers_kept_max(&self) -> usize {
        match self.is_tight() {
            true => TIGHT_BYTES,
            false => ANSWERS_KEPT_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_buffers_are_used_again_within_their_bound() {
        let spares = LongSpares::new(3_000);
        let kept = |bytes| {
            let buffer = spares.take(bytes);
            let which = (buffer.as_ptr(), buffer.capacity());
            spares.put(buffer);
            which
        };
        let (small, large) = (kept(1_000), kept(2_000));
        assert_eq!(kept(900), small);
        assert_eq!(kept(2_000), large);
        assert_eq!(kept(700).1, 700, "the others are too large for that");
        let capacities = || {
            spares
                .free
                .borrow()
                .iter()
                .map(Vec::capacity)
                .collect::<Vec<_>>()
        };
        assert_eq!(capacities(), [2_000, 700], "the oldest made room");
        spares.put(Vec::with_capacity(3_001));
        assert!(spares.free.borrow().is_empty());
    }

    #[test]
    fn shares_count_together_until_they_are_gone() {
        let memory = Memory::new(0, 1000);
        let (one, other) = (memory.share(), memory.share());
        one.set(1500);
        other.set(500);
        assert!(!memory.is_tight());
        assert_eq!(memory.read_bytes(256 << 10, false), 256 << 10);
        assert_eq!(memory.read_bytes(256 << 10, true), ANSWERS_KEPT_MAX);
        other.set(501);
        assert!(memory.is_tight());
        assert_eq!(memory.read_bytes(256 << 10, false), TIGHT_BYTES);
        assert_eq!(memory.answers_kept_max(), TIGHT_BYTES);
        drop(one);
        assert_eq!((memory.loose.get(), other.get()), (501, 501));
        assert_eq!(memory.answers_kept_max(), ANSWERS_KEPT_MAX);
    }
}
