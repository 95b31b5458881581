//! Connection: one client from hello to goodbye: a reader and a writer that share its state.
//!
//! **Invariants**
//! - Until the hello was accepted nothing but a hello is taken, and no more than its few bytes kept.
//! - The connection ends once: whoever meets trouble says so, both sides stop, what waits is dropped.
//! - When the server drains, what was taken in is answered before the goodbye.
//!
//! **Not here**: parsing (`reader`), what requests do (`appends`, `requests`, `follow`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sealog_engine::{Event, FeedRef, LocalLog};
use sealog_protocol::{Answer, CONNECTION, Refusal};

use super::appends::Appends;
use super::follow::Follows;
use super::memory::Share;
use super::outbox::Outbox;
use super::service::NativeService;
use crate::net::Stream;

/// A feed by number.
#[derive(Clone)]
pub(super) struct Binding {
    pub(super) feed: FeedRef,
    /// Its log, if it is this shard's.
    pub(super) log: Option<LocalLog>,
    /// Number of its log.
    pub(super) lane: usize,
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum Phase {
    /// Nothing was said yet.
    New,
    /// Requests are served.
    Open,
    /// Nothing more is read; what was taken in is answered, then it ends.
    Closing,
    /// It has ended.
    Ended,
}

/// One client.
pub(super) struct Connection {
    pub(super) service: Rc<NativeService>,
    pub(super) stream: Stream,
    pub(super) outbox: Outbox,
    pub(super) appends: Appends,
    pub(super) follows: Follows,
    pub(super) bindings: RefCell<Vec<Binding>>,
    /// Bytes taken in that are not handled yet, and that nothing is reserved for.
    pub(super) kept: Share,
    /// Requests that run as tasks.
    pub(super) running: Cell<usize>,
    /// When bytes last came, and since when the reader waits for some; nanoseconds.
    pub(super) heard_ns: Cell<u64>,
    /// The reader waits for bytes: silence is the client's.
    pub(super) reading: Cell<bool>,
    /// When bytes last left.
    pub(super) spoke_ns: Cell<u64>,
    phase: Cell<Phase>,
    /// Notified when nothing more is to be read.
    pub(super) ending: Event,
}

impl Connection {
    pub(super) fn new(service: Rc<NativeService>, stream: Stream) -> Rc<Self> {
        let lanes = service.side.handle().logs();
        let now_ns = service.side.monotonic_ns();
        let (kept, small) = (service.memory.share(), service.memory.share());
        let spares = service.memory.spares.clone();
        Rc::new(Self {
            service,
            stream,
            outbox: Outbox::new(small, spares),
            kept,
            appends: Appends::new(lanes),
            follows: Follows::default(),
            bindings: RefCell::new(Vec::new()),
            running: Cell::new(0),
            heard_ns: Cell::new(now_ns),
            reading: Cell::new(false),
            spoke_ns: Cell::new(now_ns),
            phase: Cell::new(Phase::New),
            ending: Event::new(),
        })
    }

    /// Serves the client until it has ended.
    pub(super) async fn run(self: Rc<Self>) {
        let reader = self.clone();
        self.service.side.spawn("native reader", async move {
            reader.read().await;
        });
        self.limit_hello();
        self.write().await;
        self.set_phase(Phase::Ended);
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Phases only go forward.
    pub(super) fn set_phase(&self, phase: Phase) {
        if self.phase.get() < phase {
            self.phase.set(phase);
            self.follows.look();
            self.ending.notify();
            self.outbox.filled.notify();
            self.outbox.emptied.notify();
        }
    }

    /// Whether everything that was taken in is answered.
    pub(super) fn is_settled(&self) -> bool {
        self.appends.is_empty() && self.running.get() == 0 && self.follows.is_empty()
    }

    /// Answers `request`, which took `bytes`.
    pub(super) fn answer(&self, answer: &Answer<'_>, request: u64, bytes: usize) {
        self.outbox.put(answer, (request, 0), bytes);
    }

    /// Says what is wrong with the connection as a whole, and ends it.
    pub(super) fn fail(&self, refusal: Refusal<'_>) {
        if self.phase() == Phase::New {
            self.service.note_refused(self.stream.peer, refusal.text);
        }
        self.service.meters.refuse(refusal.code);
        let answer = Answer::Refused { refusal };
        self.outbox.put(&answer, (CONNECTION, 0), 0);
        self.set_phase(Phase::Closing);
    }

    /// Gives `feed` a number.
    pub(super) fn bind(&self, feed: FeedRef) -> u32 {
        let side = &self.service.side;
        let mut bindings = self.bindings.borrow_mut();
        let known = bindings.iter().position(|known| known.feed == feed);
        let index = known.unwrap_or_else(|| {
            bindings.push(Binding {
                log: side.log(&feed.name).cloned(),
                lane: side.handle().log_of(&feed.name),
                feed,
            });
            bindings.len() - 1
        });
        u32::try_from(index).unwrap_or(u32::MAX)
    }
}
