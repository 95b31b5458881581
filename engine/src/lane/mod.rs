//! Lane: turns acknowledged batches into packs, sealed streams into commits, and frees the log.
//! Spec: spec/wal.md §11.
//!
//! ```text
//!  durable groups -> packer (demultiplexes) -> packs -> staged in the log -> checkpoint -> segment retired
//!  sealed stream  -> packer (the rest) -> key index -> manifest -> logged -> commit created -> published
//! ```
//!
//! **Invariants**
//! - LANE-1: appends never wait for the lane, only for log space; groups give way to it (`wal::pace`).
//! - LANE-2: a pack is staged only when it is durable in the bucket; packs of a stream are staged in
//!   sequence order without gap.
//! - LANE-3: a commit is created only when its seal and its manifest digest are durable in the log,
//!   and in number order.
//! - LANE-4: memory is bounded by `lane_bytes`, whatever the number of streams.
//!
//! **Not here**: formats (`pack`, `commit`), retirement of segments (`checkpoint`, `wal::space`).

pub(crate) mod claim;
mod closer;
pub(crate) mod keys;
mod orphans;
pub(crate) mod owner;
mod pack_writer;
mod packer;
mod packs;
mod part_queue;
pub(crate) mod publish;
mod region;
mod sweep;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::env::{Bucket, BucketError, Env};
use crate::error::{Error, Result};
use crate::limits::EngineConfig;
use crate::shard::LogService;
use crate::sync::{Event, race};
use crate::wal::space::Shortage;
use claim::Standing;
use orphans::Orphans;
use packer::Packer;
pub(crate) use packer::pack_holding;

/// First and longest pause after the bucket failed.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The lane looks for work at least this often.
const LOOK: Duration = Duration::from_secs(1);

/// What went wrong last, and since when nothing has gone well.
#[derive(Clone)]
pub(crate) struct Trouble {
    pub(crate) text: String,
    /// There was no room.
    pub(crate) full: bool,
    since_ns: u64,
}

/// What others see of the lane, and how they wake it.
pub struct LaneState {
    pressed: Cell<bool>,
    press: Event,
    published: Event,
    /// It has come to the end of a round, well or not.
    tried: Cell<bool>,
    /// What went wrong last, and since when nothing has gone well.
    trouble: RefCell<Option<Trouble>>,
    /// The bucket is known to be this directory's.
    owner_known: Cell<bool>,
    running: Cell<usize>,
    /// Something may have been left in the bucket that nobody names.
    littered: Cell<bool>,
    ended: Event,
    /// Memory for packs in the making.
    pub(crate) lane_bytes: usize,
}

impl LaneState {
    pub(crate) fn new(config: &EngineConfig, owner_known: bool) -> Self {
        Self {
            pressed: Cell::new(false),
            press: Event::new(),
            published: Event::new(),
            tried: Cell::new(false),
            trouble: RefCell::new(None),
            owner_known: Cell::new(owner_known),
            running: Cell::new(0),
            littered: Cell::new(false),
            ended: Event::new(),
            lane_bytes: config.inflight_bytes_max,
        }
    }

    /// Asks the lane to look for work now.
    pub(crate) fn press(&self) {
        self.pressed.set(true);
        self.press.notify();
        self.published.notify();
    }

    /// Notified when a commit was published, or the lane was pressed.
    pub(crate) fn published(&self) -> &Event {
        &self.published
    }

    /// What keeps the lane from working, if anything.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.trouble.borrow().clone()
    }

    /// What keeps the lane from working, and for how long it has.
    pub(crate) fn trouble_for(&self, now_ns: u64) -> Option<(String, Duration)> {
        let trouble = self.trouble()?;
        let lasts = Duration::from_nanos(now_ns.saturating_sub(trouble.since_ns));
        Some((trouble.text, lasts))
    }

    /// Waits until the lane's tasks have ended.
    pub(crate) async fn idle(&self) {
        self.ended
            .until(|| (self.running.get() == 0).then_some(()))
            .await;
    }

    /// Whether anything is known of how it works: it has tried since the start.
    pub(crate) fn has_tried(&self) -> bool {
        self.tried.get()
    }

    fn set_trouble(&self, error: &Error, now_ns: u64) {
        self.tried.set(true);
        let mut trouble = self.trouble.borrow_mut();
        let since_ns = trouble.as_ref().map_or(now_ns, |trouble| trouble.since_ns);
        *trouble = Some(Trouble {
            text: error.reason(),
            full: matches!(error, Error::StorageFull { .. }),
            since_ns,
        });
    }

    fn end_trouble(&self) {
        self.tried.set(true);
        *self.trouble.borrow_mut() = None;
    }

    fn enter(&self) {
        self.running.set(self.running.get() + 1);
    }

    fn leave(&self) {
        self.running.set(self.running.get() - 1);
        self.ended.notify();
    }
}

/// Starts the lane's tasks.
pub(crate) fn start<E: Env>(service: &Rc<LogService<E>>) {
    for _ in 0..2 {
        service.lane.enter();
    }
    let packing = service.clone();
    service.env.spawn("lane", async move {
        run(&packing).await;
        // Nothing will be published any more: whoever waits for it must hear of it.
        packing.wake_all();
        packing.lane.leave();
    });
    let checkpointing = service.clone();
    service.env.spawn("checkpoints", async move {
        run_checkpoints(&checkpointing).await;
        checkpointing.lane.leave();
    });
}

async fn run<E: Env>(service: &Rc<LogService<E>>) {
    let mut packer = Packer::new(service);
    let mut orphans = Orphans::new();
    let mut pause = RETRY.0;
    while !service.is_stopping() {
        match work(service, &mut packer, &mut orphans).await {
            Ok(worked) => {
                service.lane.end_trouble();
                packer.found_room();
                pause = RETRY.0;
                if !worked {
                    wait(service, LOOK).await;
                }
            }
            Err(error) => {
                service.lane.littered.set(true);
                packer.forget().await;
                let full = matches!(error, Error::StorageFull { .. });
                if full && packer.make_room().await {
                    pause = RETRY.0;
                }
                let now_ns = service.env.monotonic_ns();
                service.lane.set_trouble(&error, now_ns);
                let jitter = service.env.random_u64() % 1000;
                let part = pause.mul_f64(0.5 + jitter as f64 / 2000.0);
                let press = &service.lane.press;
                let stopping = press.until(|| service.is_stopping().then_some(()));
                race(stopping, service.env.sleep(part)).await;
                pause = (pause * 2).min(RETRY.1);
            }
        }
    }
}

/// One round of work; `false` when there was none.
async fn work<E: Env>(
    service: &Rc<LogService<E>>,
    packer: &mut Packer<E>,
    orphans: &mut Orphans,
) -> Result<bool> {
    settle_owner(service).await?;
    let published = publish::publish_next(service, packer).await?;
    if published {
        // Whoever sees the commit sees no trouble that was in its way.
        service.lane.end_trouble();
    }
    let short = is_short_of_space(service);
    // Also while there is always something to publish: feeds that roll see to that.
    if short || packer.has_backlog() {
        packer.claim_space().await;
        let packed = packer.demultiplex().await?;
        let freed = short && packer.relieve().await?;
        if packed || freed {
            return Ok(true);
        }
    }
    if published {
        return Ok(true);
    }
    // Also of a log that is always under pressure: what is deleted must go some time.
    let swept = sweep::sweep_one(service).await?;
    if !swept {
        orphans.step(service).await;
    }
    Ok(swept)
}

/// A bucket that was out of reach at the start may be another one than it was.
async fn settle_owner<E: Env>(service: &Rc<LogService<E>>) -> Result<()> {
    if service.lane.owner_known.get() {
        return Ok(());
    }
    let witness = owner::Witness::of(&service.feeds.borrow());
    match owner::settle(&service.env, &service.config, witness).await? {
        Standing::Ours => service.lane.owner_known.set(true),
        Standing::Unknown(error) => return Err(error),
    }
    Ok(())
}

async fn wait<E: Env>(service: &Rc<LogService<E>>, longest: Duration) {
    let pressed = service.lane.press.listen();
    if service.lane.pressed.replace(false) {
        return;
    }
    let due = service.wal.pace().due().listen();
    race(race(pressed, due), service.env.sleep(longest)).await;
    service.lane.pressed.set(false);
}

/// Between two looks at whether waiting for the bucket still makes sense.
const HOPE_LOOK: Duration = Duration::from_millis(250);

/// Waits for an object to be durable in the bucket, unless the service stops while a bucket elsewhere is
/// in trouble: what it holds is in the log, and closing must not take as long as trying does.
async fn unless_hopeless<E: Env>(
    service: &LogService<E>,
    finish: impl Future<Output = std::result::Result<(), BucketError>>,
) -> Result<()> {
    let bucket = service.env.bucket();
    if bucket.keeps_disk_pace() {
        return Ok(finish.await?);
    }
    let finished = RefCell::new(None);
    let finishing = async { *finished.borrow_mut() = Some(finish.await) };
    let hopeless = async {
        while !(service.is_stopping() && bucket.health().trouble.is_some()) {
            service.env.sleep(HOPE_LOOK).await;
        }
    };
    race(finishing, hopeless).await;
    match finished.into_inner() {
        Some(done) => Ok(done?),
        None => Err(stopping(service)),
    }
}

/// Whether the log holds so much that its oldest segments must be freed.
fn is_short_of_space<E: Env>(service: &LogService<E>) -> bool {
    let space = service.wal.space();
    let segment_bytes = service.config.wal.segment_bytes;
    let held = (space.live_segments() as u64).saturating_sub(1) * segment_bytes;
    // A lane that is told not to start by itself starts when space runs short, not before.
    let much = (service.config.wal.disk_bytes_max / 2).max(service.config.wal.lane_start_bytes);
    held > much || space.shortage() != Shortage::Preparing
}

/// Takes checkpoints when enough log has gone by, and when one would free segments.
async fn run_checkpoints<E: Env>(service: &Rc<LogService<E>>) {
    while !service.is_stopping() {
        if checkpoint_due(service) {
            let taken = service.checkpoint().await;
            if taken.is_ok() {
                continue;
            }
            // The checkpoints before stand; the log keeps growing until one succeeds.
            let press = &service.lane.press;
            let stopping = press.until(|| service.is_stopping().then_some(()));
            race(stopping, service.env.sleep(RETRY.0)).await;
        }
        let moved = service.wal.progress().listen();
        if !service.is_stopping() {
            race(moved, service.env.sleep(LOOK)).await;
        }
    }
}

fn checkpoint_due<E: Env>(service: &LogService<E>) -> bool {
    let checkpoints = service.checkpoints.borrow();
    let Some(checkpoints) = &*checkpoints else {
        return false;
    };
    let since = service
        .wal
        .durable_end()
        .saturating_sub(checkpoints.replay_from());
    if since >= service.config.wal.checkpoint_bytes {
        return true;
    }
    if !is_short_of_space(service) {
        return false;
    }
    let geometry = service.wal.geometry();
    let needed = needed_from(service);
    let would_free = geometry.segment_of(needed) > geometry.segment_of(checkpoints.retain_from());
    would_free && (since > 0 || !checkpoints.older_caught_up())
}

/// Log offset below which no stream needs the log.
fn needed_from<E: Env>(service: &LogService<E>) -> u64 {
    let feeds = service.feeds.borrow();
    feeds
        .needed_from()
        .unwrap_or(u64::MAX)
        .min(service.wal.durable_end())
}

/// The error of work that was cut short because the service stops.
pub(crate) fn stopping<E: Env>(service: &LogService<E>) -> Error {
    service.wal.poisoned().unwrap_or(Error::Closed)
}
