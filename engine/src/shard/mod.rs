//! Shard: one log and the feeds in it, served by one executor: the queue of writes, the answers,
//! the tasks behind them.
//!
//! ```text
//!  jobs (channel) -> write queue -> room? -> judge -> log -> durable -> answer
//!                 \-> queries, reads (tasks of their own)
//! ```
//!
//! **Invariants**
//! - Writes are decided one after the other, in the order they came.
//! - No answer rests on state that is not durable: every answer waits for the group that was open
//!   when it was decided.
//!
//! **Not here**: threads and the handle that callers hold (`engine`).

mod admin;
mod asked;
mod close;
mod direct;
mod fork;
mod make;
mod query;
mod roll;
mod subscriptions;
mod tails;
mod usage;
mod watch;
mod write;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

pub use close::{CloseRequest, Closed};
pub use direct::Direct;
pub(crate) use fork::{Claim, Doubts, Hold, Pinned};
pub use make::{Made, MakeRequest};
pub use query::{FeedInfo, ProducerInfo, StreamInfo, StreamPhase};
pub use subscriptions::{AckRequest, DueWake, PendingFeed, SubscriptionInfo};
pub use usage::{LogUsage, Usage};
pub(crate) use watch::News;
pub(crate) use write::{Answer, check_feed_name, living};
pub use write::{FeedRef, OrderKey};

use crate::checkpoint::Checkpoints;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::feed::{Feed, Feeds};
use crate::lane::LaneState;
use crate::lane::claim::Standing;
use crate::lane::owner::{self, Witness};
use crate::limits::EngineConfig;
use crate::read::ReadCache;
use crate::recovery::{LogPlace, Report, examine_drained, revive};
use crate::sync::{Budget, Event, race};
use crate::wal::Wal;
use crate::wal::log::{Room, RoomClass};
use tails::Tails;

/// Writes decided between two looks at other tasks.
const WRITES_PER_TURN: usize = 4;

type WriteJob<E> = Box<dyn FnOnce(&Rc<LogService<E>>, Result<()>)>;

struct PendingWrite<E: Env> {
    bytes: usize,
    queued_ns: u64,
    run: WriteJob<E>,
}

/// One log and everything that serves it.
pub struct LogService<E: Env> {
    pub(crate) env: E,
    pub(crate) config: EngineConfig,
    pub(crate) wal: Wal<E>,
    pub(crate) feeds: RefCell<Feeds>,
    pub(crate) checkpoints: RefCell<Option<Checkpoints<E>>>,
    pub(crate) lane: LaneState,
    pub(crate) read_cache: RefCell<ReadCache>,
    /// Memory for what readers load from the log's disk.
    pub(crate) reading: Budget,
    /// Memory for what readers load from packs. Apart: a bucket may take its time.
    pub(crate) fetching: Budget,
    pub(crate) report: Report,
    queue: RefCell<VecDeque<PendingWrite<E>>>,
    queued: Event,
    /// Writes that were queued and are not decided yet.
    undecided: Cell<usize>,
    tails: Tails,
    /// Pins to be dropped, here and elsewhere.
    pub(crate) releases: fork::Releases,
    /// Notified when a subscription has changed.
    subscribed: Event,
    rolls: roll::Rolls,
    closing: Cell<bool>,
    /// No write will be decided any more.
    writes_ended: Cell<bool>,
}

impl<E: Env> LogService<E> {
    /// Recovers the log and starts serving it.
    ///
    /// # Errors
    /// [`Error::Unusable`] for a bucket that is not this directory's.
    /// What recovery refuses: [`Error::Corrupt`], [`Error::NewerFormat`], [`Error::Io`], and
    /// [`Error::StorageFull`] when not even a checkpoint fits.
    pub(crate) async fn start(env: E, config: EngineConfig, place: LogPlace) -> Result<Rc<Self>> {
        let examined = examine_drained(&env, &place).await?;
        let witness = Witness::of(&examined.loaded.feeds);
        let standing = owner::settle(&env, &config, witness).await?;
        let owner_known = matches!(standing, Standing::Ours);
        let recovered = revive(&env, &place, examined).await?;
        let service = Rc::new(Self {
            env: env.clone(),
            wal: recovered.wal,
            releases: fork::Releases::of(&recovered.feeds),
            feeds: RefCell::new(recovered.feeds),
            checkpoints: RefCell::new(Some(recovered.checkpoints)),
            lane: LaneState::new(&config, owner_known),
            read_cache: RefCell::new(ReadCache::new(config.wal.cache_bytes / 4)),
            reading: Budget::new(config.reading_bytes_max()),
            fetching: Budget::new(config.reading_bytes_max()),
            report: recovered.report,
            queue: RefCell::new(VecDeque::new()),
            queued: Event::new(),
            undecided: Cell::new(0),
            tails: Tails::default(),
            subscribed: Event::new(),
            rolls: roll::Rolls::default(),
            closing: Cell::new(false),
            writes_ended: Cell::new(false),
            config,
        });
        env.spawn("writes", service.clone().run_writes());
        env.spawn("subscriptions", service.clone().run_subscriptions());
        env.spawn("rolls", service.clone().run_rolls());
        crate::lane::start(&service);
        Ok(service)
    }

    /// Queues a write that takes `bytes` of log; zero for a small change of state.
    fn queue_write(
        self: &Rc<Self>,
        bytes: usize,
        run: impl FnOnce(&Rc<Self>, Result<()>) + 'static,
    ) {
        if self.closing.get() {
            run(self, Err(Error::Closed));
            return;
        }
        let queued_ns = self.env.monotonic_ns();
        let write = PendingWrite {
            bytes,
            queued_ns,
            run: Box::new(run),
        };
        self.queue.borrow_mut().push_back(write);
        self.undecided.set(self.undecided.get() + 1);
        self.queued.notify();
    }

    async fn run_writes(self: Rc<Self>) {
        let mut turn = 0;
        while let Some(write) = self.next_write().await {
            let room = self.wait_room(write.bytes, write.queued_ns).await;
            (write.run)(&self, room);
            self.undecided.set(self.undecided.get() - 1);
            turn += 1;
            if turn % WRITES_PER_TURN == 0 {
                self.env.yield_if_needed().await;
            }
        }
        self.writes_ended.set(true);
        self.queued.notify();
    }

    /// The next write in line; `None` once the service is closing and the line is empty.
    async fn next_write(&self) -> Option<PendingWrite<E>> {
        self.queued
            .until(|| match self.queue.borrow_mut().pop_front() {
                Some(write) => Some(Some(write)),
                None => self.closing.get().then_some(None),
            })
            .await
    }

    /// Waits until `bytes` may enter the log, or says why they may not.
    async fn wait_room(&self, bytes: usize, queued_ns: u64) -> Result<()> {
        loop {
            if let Some(error) = self.wal.poisoned() {
                return Err(error);
            }
            if self.closing.get() {
                return Err(Error::Closed);
            }
            let moved = self.wal.progress().listen();
            let class = if bytes == 0 {
                RoomClass::Change
            } else {
                RoomClass::Batch
            };
            let room = self.wal.room(bytes, class);
            match room {
                Room::Ready => return Ok(()),
                Room::Wait => moved.await,
                Room::Full(detail) => return Err(Error::StorageFull { detail }),
                Room::Bound => {
                    let waited = Duration::from_nanos(self.env.monotonic_ns() - queued_ns);
                    let left = self.config.wal.full_wait.saturating_sub(waited);
                    self.lane.press();
                    if left.is_zero() {
                        return Err(self.at_bound());
                    }
                    race(moved, self.env.sleep(left.min(Duration::from_millis(100)))).await;
                }
            }
        }
    }

    fn at_bound(&self) -> Error {
        if let Some(detail) = self.wal.space().held() {
            return Error::StorageFull { detail };
        }
        let bound = self.config.wal.disk_bytes_max;
        let cause = self
            .lane
            .trouble()
            .map_or(String::new(), |t| format!(" ({})", t.text));
        Error::StorageFull {
            detail: format!("the log is at wal.disk_bytes_max = {bound} and not packed yet{cause}"),
        }
    }

    /// Runs `answer` once everything accepted so far is durable.
    fn settled(&self, answer: impl FnOnce(Result<()>) + 'static) {
        let accepted = self.wal.accepted();
        self.wal.on_durable(accepted.group, answer);
    }

    /// Waits until everything accepted so far is durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: only waits.
    pub async fn settle(&self) -> Result<()> {
        self.wal.durable(self.wal.accepted().group).await
    }

    /// Answers `query` over the state of feed `name`, once that state is durable.
    async fn query<T>(&self, name: &str, query: impl FnOnce(&Feed) -> Result<T>) -> Result<T> {
        let answer = living(&self.feeds.borrow(), name).and_then(query);
        self.settle().await?;
        answer
    }

    /// Wakes everyone who waits for records or publications, to look again.
    pub(crate) fn wake_all(&self) {
        self.tails.watch.moved.notify();
        self.subscribed.notify();
        self.rolls.moved.notify();
        self.lane.press();
        self.queued.notify();
        self.wal.progress().notify();
        self.tails.notify_all();
        self.releases.moved().notify();
    }

    /// Stops for good after a bug in one of the shard's tasks.
    pub(crate) fn poison(&self, reason: &str) {
        self.wal.poison(reason);
        self.wake_all();
    }

    /// Whether the service is on its way down.
    pub(crate) fn is_stopping(&self) -> bool {
        self.closing.get() || self.wal.poisoned().is_some()
    }

    /// Takes no more writes, makes the accepted ones durable, and writes the clean marker.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    ///
    /// # Cancel safety
    /// A dropped close may leave the log without its marker; the next open recovers.
    pub async fn close(self: &Rc<Self>) -> Result<()> {
        self.closing.set(true);
        self.wake_all();
        // The checkpoint task waits for this; it would notice by itself a second later.
        self.wal.progress().notify();
        // What was accepted must be in the log before its last marker.
        let ended = || self.writes_ended.get().then_some(());
        self.queued.until(ended).await;
        self.lane.idle().await;
        self.wal.close().await
    }

    /// Takes a checkpoint now.
    ///
    /// # Errors
    /// As [`Checkpoints::take`].
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        let Some(mut checkpoints) = self.checkpoints.borrow_mut().take() else {
            return Ok(());
        };
        let taken = checkpoints.take(&self.wal, &self.feeds).await;
        let retain_from = match crate::bug!("retire_too_early") {
            true => self.wal.durable_end(),
            false => checkpoints.retain_from(),
        };
        *self.checkpoints.borrow_mut() = Some(checkpoints);
        self.wal
            .space()
            .retire_below(self.wal.geometry().segment_of(retain_from));
        taken
    }
}
