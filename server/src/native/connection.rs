//! Connection: one client from hello to goodbye: a reader and a writer that share its state.
//!
//! **Invariants**
//! - Until the hello was accepted nothing but a hello is taken, and no more than its few bytes kept.
//! - The connection ends once: whoever meets trouble says so, both sides stop, what waits is dropped.
//! - When the server drains, what was taken in is answered before the goodbye: in time with what it came to,
//!   else with what is not known of it.
//! - Nobody reads for a client that has left, and what else it asked for keeps the connection for
//!   [`LEFT_GRACE`] at most.
//!
//! **Not here**: parsing (`reader`), what requests do (`appends`, `requests`, `follow`).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use sealog_engine::ids::FeedId;
use sealog_engine::{Event, FeedRef};
use sealog_protocol::{Answer, CONNECTION, Refusal};

use super::appends::Appends;
use super::bindings::{Binding, Bindings};
use super::follow::Follows;
use super::memory::Share;
use super::outbox::Outbox;
use super::service::NativeService;
use crate::net::Stream;

/// How long a client that has ended its half is answered what it had asked to be done.
const LEFT_GRACE: Duration = Duration::from_secs(10);

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum Phase {
    /// Nothing was said yet.
    New,
    /// Requests are served.
    Open,
    /// Nothing more is read; what was taken in is answered, then it ends.
    Closing,
    /// The time for that is over: what still waits is told so.
    Late,
    /// It has ended.
    Ended,
}

/// One client.
pub(super) struct Connection {
    pub(super) service: Rc<NativeService>,
    pub(super) stream: Stream,
    /// Its number on the shard.
    number: u64,
    /// It counts as one of the connections there may be.
    welcomed: Cell<bool>,
    pub(super) outbox: Outbox,
    pub(super) appends: Appends,
    pub(super) follows: Follows,
    pub(super) bindings: Bindings,
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
    /// The heartbeat that the client asked for.
    pub(super) heartbeat: Cell<Option<Duration>>,
    phase: Cell<Phase>,
    /// The client will send nothing more, and may be gone.
    left: Cell<bool>,
    /// Notified when nothing more is to be read.
    pub(super) ending: Event,
}

impl Connection {
    pub(super) fn new(service: Rc<NativeService>, stream: Stream, number: u64) -> Rc<Self> {
        let lanes = service.side.handle().logs();
        let now_ns = service.side.monotonic_ns();
        let (kept, small) = (service.memory.share(), service.memory.share());
        let spares = service.memory.spares.clone();
        Rc::new(Self {
            service,
            stream,
            number,
            welcomed: Cell::new(false),
            outbox: Outbox::new(small, spares),
            kept,
            appends: Appends::new(lanes),
            follows: Follows::default(),
            bindings: Bindings::default(),
            running: Cell::new(0),
            heard_ns: Cell::new(now_ns),
            reading: Cell::new(false),
            spoke_ns: Cell::new(now_ns),
            heartbeat: Cell::new(None),
            phase: Cell::new(Phase::New),
            left: Cell::new(false),
            ending: Event::new(),
        })
    }

    /// Serves the client until it has ended.
    pub(super) async fn run(self: Rc<Self>) {
        let reader = self.clone();
        self.service.side.spawn("native reader", async move {
            reader.read().await;
        });
        self.write().await;
        self.set_phase(Phase::Ended);
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Begins to serve, if there may be one more connection.
    pub(super) fn welcome(&self) -> bool {
        let room = self.service.welcome_one(self.number);
        if room {
            self.welcomed.set(true);
            self.set_phase(Phase::Open);
        }
        room
    }

    pub(super) fn was_welcomed(&self) -> bool {
        self.welcomed.get()
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

    pub(super) fn has_left(&self) -> bool {
        self.left.get()
    }

    /// The client has ended its half of the connection, if not all of it.
    pub(super) fn leave(self: &Rc<Self>) {
        self.left.set(true);
        self.set_phase(Phase::Closing);
        self.ending.notify();
        if self.is_settled() {
            return;
        }
        let connection = Rc::downgrade(self);
        let service = self.service.clone();
        self.service.side.spawn("native left", async move {
            service.sleep(LEFT_GRACE).await;
            if let Some(connection) = connection.upgrade() {
                connection.set_phase(Phase::Late);
            }
        });
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

    /// Gives the feed `name`, which has this id, a number.
    pub(super) fn bind(&self, name: &str, id: FeedId) -> u32 {
        let side = &self.service.side;
        self.bindings.bind(id, || Binding {
            log: side.log(name).cloned(),
            lane: side.handle().log_of(name),
            feed: FeedRef {
                name: name.into(),
                id: Some(id),
            },
        })
    }
}
