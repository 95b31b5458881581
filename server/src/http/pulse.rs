//! Pulse: signs of life of the connections of a shard, and which of them are cut.
//!
//! **Invariants**
//! - A connection is cut for what its client does not do, never for what the server has not done yet: while a
//!   request runs and nothing waits to be written, it stays.
//! - Looking at all of them costs one timer a shard, however many there are.
//!
//! **Not here**: bodies of requests that drip (`intake`), the connections (`connection`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use sealog_engine::{Event, ShardSide};

const SECOND_NS: u64 = 1_000_000_000;
/// From the first byte of a request's head to its last.
const HEAD_MAX_NS: u64 = 10 * SECOND_NS;
/// A connection that asks nothing.
const IDLE_MAX_NS: u64 = 120 * SECOND_NS;
/// One that asks nothing, when another waits for its place.
const IDLE_MAX_FULL_NS: u64 = SECOND_NS;
/// A client that takes nothing of what is written to it.
const STALL_MAX_NS: u64 = 30 * SECOND_NS;
/// The same, when others wait for the memory of what it does not take.
const STALL_MAX_TIGHT_NS: u64 = 2 * SECOND_NS;

/// Why a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// A request's head did not come whole.
    Head,
    /// It asked nothing.
    Idle,
    /// It took nothing.
    Stall,
}

/// What a connection was seen to do.
#[derive(Debug, Clone, Copy)]
struct Signs {
    /// Several requests at once: what comes between them need not be a head.
    multiplexed: bool,
    /// Requests taken in and not answered whole.
    running: usize,
    /// Since when none is.
    idle_since_ns: u64,
    /// Since when part of a head is there.
    head_since_ns: Option<u64>,
    /// Since when bytes wait for the client to take some.
    stalled_since_ns: Option<u64>,
}

impl Signs {
    /// Whether the connection is to be cut; `tight`: others wait for memory.
    fn verdict(&self, now_ns: u64, tight: bool) -> Option<Cut> {
        let longer = |since_ns: u64, most_ns| now_ns.saturating_sub(since_ns) >= most_ns;
        let stall_ns = match tight {
            true => STALL_MAX_TIGHT_NS,
            false => STALL_MAX_NS,
        };
        if self.stalled_since_ns.is_some_and(|at| longer(at, stall_ns)) {
            return Some(Cut::Stall);
        }
        if self.running > 0 {
            return None;
        }
        if self.head_since_ns.is_some_and(|at| longer(at, HEAD_MAX_NS)) {
            return Some(Cut::Head);
        }
        longer(self.idle_since_ns, IDLE_MAX_NS).then_some(Cut::Idle)
    }
}

/// One connection's.
pub(crate) struct Pulse {
    signs: Cell<Signs>,
    cut: Cell<bool>,
    changed: Event,
}

impl Pulse {
    fn new(now_ns: u64) -> Self {
        Self {
            signs: Cell::new(Signs {
                multiplexed: false,
                running: 0,
                idle_since_ns: now_ns,
                head_since_ns: None,
                stalled_since_ns: None,
            }),
            cut: Cell::new(false),
            changed: Event::new(),
        }
    }

    fn note(&self, change: impl FnOnce(&mut Signs)) {
        let mut signs = self.signs.get();
        change(&mut signs);
        self.signs.set(signs);
    }

    /// Requests come several at once.
    pub(super) fn is_multiplexed(&self) {
        self.note(|signs| signs.multiplexed = true);
    }

    /// Bytes came.
    pub(crate) fn received(&self, now_ns: impl FnOnce() -> u64) {
        self.note(|signs| {
            if signs.running == 0 && !signs.multiplexed {
                signs.head_since_ns.get_or_insert_with(now_ns);
            }
        });
    }

    /// The system took bytes to be sent, or would not.
    pub(crate) fn sent(&self, taken: bool, now_ns: impl FnOnce() -> u64) {
        self.note(|signs| match taken {
            true => signs.stalled_since_ns = None,
            false => {
                signs.stalled_since_ns.get_or_insert_with(now_ns);
            }
        });
    }

    /// Whether bytes wait for the client to take some.
    pub(super) fn is_stalled(&self) -> bool {
        self.signs.get().stalled_since_ns.is_some()
    }

    /// What was begun is whole: from here on nothing is due.
    pub(super) fn rests(&self, now_ns: u64) {
        self.note(|signs| {
            signs.head_since_ns = None;
            signs.idle_since_ns = now_ns;
        });
    }

    fn cut(&self) {
        self.cut.set(true);
        self.changed.notify();
    }

    /// Completes when the connection is to be cut.
    pub(super) async fn until_cut(&self) {
        self.changed.until(|| self.cut.get().then_some(())).await;
    }
}

/// A request that runs, until its answer has been handed over whole.
pub(super) struct Running {
    pulse: Rc<Pulse>,
    side: ShardSide,
}

impl Running {
    pub(super) fn begin(pulse: &Rc<Pulse>, side: &ShardSide) -> Self {
        pulse.note(|signs| {
            signs.running += 1;
            signs.head_since_ns = None;
        });
        Self {
            pulse: pulse.clone(),
            side: side.clone(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let now_ns = self.side.monotonic_ns();
        self.pulse.note(|signs| {
            signs.running -= 1;
            signs.idle_since_ns = now_ns;
        });
    }
}

/// Those of a shard.
#[derive(Default)]
pub(super) struct Pulses {
    all: RefCell<BTreeMap<u64, Rc<Pulse>>>,
    next: Cell<u64>,
}

impl Pulses {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.all.borrow().len()
    }

    /// A new connection's, and the number to take it out by.
    pub(super) fn add(&self, now_ns: u64) -> (u64, Rc<Pulse>) {
        let number = self.next.replace(self.next.get() + 1);
        let pulse = Rc::new(Pulse::new(now_ns));
        self.all.borrow_mut().insert(number, pulse.clone());
        (number, pulse)
    }

    pub(super) fn remove(&self, number: u64) {
        self.all.borrow_mut().remove(&number);
    }

    /// Cuts those whose time is over; `tight`: others wait for memory.
    pub(super) fn cut_late(&self, now_ns: u64, tight: bool) {
        for pulse in self.all.borrow().values() {
            if pulse.signs.get().verdict(now_ns, tight).is_some() {
                pulse.cut();
            }
        }
    }

    /// Cuts the one that has asked nothing for longest, if that is long enough.
    pub(super) fn give_way(&self, now_ns: u64) {
        let all = self.all.borrow();
        let idle = all.values().filter(|pulse| pulse.signs.get().running == 0);
        let longest = idle.min_by_key(|pulse| pulse.signs.get().idle_since_ns);
        if let Some(pulse) = longest {
            let idle_ns = now_ns.saturating_sub(pulse.signs.get().idle_since_ns);
            if idle_ns >= IDLE_MAX_FULL_NS {
                pulse.cut();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(pulse: &Pulse, now_ns: u64) -> Option<Cut> {
        pulse.signs.get().verdict(now_ns, false)
    }

    #[test]
    fn who_asks_nothing_is_cut_in_time_and_gives_way_before() {
        let pulses = Pulses::default();
        let ((_, busy), (_, idle)) = (pulses.add(0), pulses.add(1));
        busy.note(|signs| signs.running = 1);
        assert_eq!(verdict(&idle, IDLE_MAX_NS), None);
        assert_eq!(verdict(&idle, IDLE_MAX_NS + 1), Some(Cut::Idle));
        assert_eq!(verdict(&busy, u64::MAX), None);
        pulses.give_way(IDLE_MAX_FULL_NS);
        assert!(!idle.cut.get(), "it has just asked something");
        pulses.give_way(IDLE_MAX_FULL_NS + 1);
        assert!(idle.cut.get() && !busy.cut.get());
        pulses.cut_late(u64::MAX, true);
        assert!(!busy.cut.get());
    }

    #[test]
    fn head_that_drips_is_cut_whatever_came_last() {
        let pulse = Pulse::new(0);
        for at in 0..10 {
            pulse.received(|| at * SECOND_NS);
        }
        assert_eq!(verdict(&pulse, HEAD_MAX_NS), Some(Cut::Head));
        pulse.rests(HEAD_MAX_NS);
        assert_eq!(verdict(&pulse, HEAD_MAX_NS), None);
        pulse.is_multiplexed();
        pulse.received(|| HEAD_MAX_NS);
        assert_eq!(verdict(&pulse, 2 * HEAD_MAX_NS), None);
    }

    #[test]
    fn who_takes_nothing_is_cut_sooner_when_memory_is_short() {
        let pulse = Pulse::new(0);
        pulse.note(|signs| signs.running = 1);
        pulse.sent(false, || 5);
        pulse.sent(false, || 9);
        let at = |now_ns, tight| pulse.signs.get().verdict(now_ns, tight);
        assert_eq!(at(5 + STALL_MAX_TIGHT_NS, false), None);
        assert_eq!(at(5 + STALL_MAX_TIGHT_NS, true), Some(Cut::Stall));
        assert_eq!(at(5 + STALL_MAX_NS, false), Some(Cut::Stall));
        pulse.sent(true, || 10);
        assert_eq!(at(u64::MAX, true), None);
    }
}
