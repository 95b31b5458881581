//! World: what outlives a process (disk, bucket, time, faults, trace) and the process that runs.
//!
//! **Invariants**
//! - No `RefCell` of the world is borrowed while a task is polled or dropped.
//! - An environment of an ended process panics when used: nothing leaks across a crash but the disk
//!   and the bucket.
//!
//! **Not here**: the loop that drives it, see `Sim`.

use super::bucket::BucketState;
use super::clock::{CLOCK_FAULTS, Clock};
use super::disk::DiskState;
use super::executor::{Class, Executor};
use super::faults::{Fault, FaultPlan, Faults};
use super::rng::Rng;
use super::trace::{Event as TraceEvent, Kind, Trace};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Independent streams of chance, one per concern.
pub(super) struct Streams {
    pub(super) sched: RefCell<Rng>,
    pub(super) disk: RefCell<Rng>,
    pub(super) bucket: RefCell<Rng>,
    pub(super) clock: RefCell<Rng>,
    pub(super) random: RefCell<Rng>,
}

/// Everything of one simulation.
pub struct World {
    pub(super) seed: u64,
    now_ns: Cell<u64>,
    incarnation: Cell<u64>,
    ending: Cell<bool>,
    /// When the last late write to a file lands, by the file's number.
    pub(super) late: RefCell<BTreeMap<u64, u64>>,
    /// What the process is told on its command line, so to say.
    pub(super) logs: Cell<u16>,
    pub(super) streams: Streams,
    pub(super) executor: Executor,
    pub(super) faults: RefCell<Faults>,
    pub(super) trace: RefCell<Trace>,
    pub(super) clock: RefCell<Clock>,
    pub(super) disk: RefCell<DiskState>,
    pub(super) bucket: RefCell<BucketState>,
}

impl World {
    pub(super) fn new(seed: u64, plan: FaultPlan) -> Rc<Self> {
        let stream = |salt| RefCell::new(Rng::derive(seed, salt));
        Rc::new(Self {
            seed,
            now_ns: Cell::new(0),
            incarnation: Cell::new(1),
            ending: Cell::new(false),
            late: RefCell::default(),
            logs: Cell::new(1),
            streams: Streams {
                sched: stream("scheduler"),
                disk: stream("disk"),
                bucket: stream("bucket"),
                clock: stream("clock"),
                random: stream("random_u64"),
            },
            executor: Executor::default(),
            faults: RefCell::new(Faults::new(plan)),
            trace: RefCell::default(),
            clock: RefCell::default(),
            disk: RefCell::default(),
            bucket: RefCell::default(),
        })
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation.get()
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// Panics when `incarnation` is not the running process, unless destructors are at work.
    pub(super) fn check(&self, incarnation: u64) {
        assert!(
            incarnation == self.incarnation.get() || self.ending.get(),
            "seed {}: environment of process {incarnation} used in process {}",
            self.seed,
            self.incarnation.get()
        );
    }

    /// Appends to the trace.
    pub(super) fn note(&self, kind: Kind, what: &'static str, name: &str, a: u64, b: u64) {
        self.trace.borrow_mut().push(TraceEvent {
            at_ns: self.now_ns.get(),
            kind,
            what,
            name: name.to_owned(),
            a,
            b,
        });
    }

    /// Whether `fault` fires now, by a draw of `stream`.
    pub(super) fn fires(&self, fault: Fault, stream: &RefCell<Rng>) -> bool {
        let fired = self
            .faults
            .borrow_mut()
            .fires(fault, &mut stream.borrow_mut());
        if fired {
            self.note(Kind::Fault, fault.name(), "", fault as u64, 0);
        }
        fired
    }

    /// Realtime, and the faults of its clock.
    pub(super) fn realtime_ms(&self) -> u64 {
        for fault in CLOCK_FAULTS {
            if self.fires(fault, &self.streams.clock) {
                let mut rng = self.streams.clock.borrow_mut();
                self.clock
                    .borrow_mut()
                    .disturb(fault, self.now_ns(), &mut rng);
            }
        }
        self.clock.borrow().read(self.now_ns())
    }

    /// Moves time and lets everything happen that is due by then, in order.
    pub(super) fn advance_to(self: &Rc<Self>, target_ns: u64) {
        while let Some(due) = self.executor.next_due().filter(|&due| due <= target_ns) {
            self.now_ns.set(self.now_ns.get().max(due));
            if let Some(event) = self.executor.take_due(self.now_ns.get()) {
                (event.action)(self);
            }
        }
        self.now_ns.set(self.now_ns.get().max(target_ns));
    }

    /// Ends the running process: drops its tasks and decides what in flight lands.
    pub(super) fn end(self: &Rc<Self>, fault: Fault) {
        self.faults.borrow_mut().count(fault);
        self.note(Kind::Process, fault.name(), "", self.incarnation.get(), 0);
        self.ending.set(true);
        self.executor.drop_tasks();
        let events = std::mem::take(&mut *self.executor.events.borrow_mut());
        for (_, event) in events {
            let lot = self.streams.sched.borrow_mut().below(6);
            let late = matches!(event.class, Class::Write(_))
                && fault == Fault::Kill
                && self.fires(Fault::LateWrite, &self.streams.disk);
            let (lands, later) = match event.class {
                Class::Timer => (false, false),
                Class::Disk | Class::Write(_) => (lot < 3 && !late, late),
                Class::Bucket => (lot < 2, lot >= 4),
            };
            if lands {
                (event.action)(self);
            } else if later {
                let longest = match event.class {
                    Class::Bucket => 30_000_000_000,
                    _ => 3_000_000_000,
                };
                let due = self.now_ns() + self.streams.sched.borrow_mut().below(longest);
                if let Class::Write(file) = event.class {
                    let mut late = self.late.borrow_mut();
                    let last = late.entry(file).or_insert(due);
                    *last = due.max(*last);
                }
                self.executor.at(due, event);
            }
        }
        if fault == Fault::Crash {
            DiskState::power_loss(self);
        }
        self.ending.set(false);
        self.incarnation.set(self.incarnation.get() + 1);
        let down_ns = self.streams.sched.borrow_mut().below(5_000_000_000);
        self.advance_to(self.now_ns() + down_ns);
    }

    /// Breaks the reference cycle of world and tasks.
    pub(super) fn dismantle(self: &Rc<Self>) {
        self.ending.set(true);
        self.executor.drop_tasks();
        let events = std::mem::take(&mut *self.executor.events.borrow_mut());
        drop(events);
    }
}
