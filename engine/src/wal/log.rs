//! Log: takes entries, cuts groups, makes them durable, tells everyone who waits. Spec: spec/wal.md §6.
//!
//! **Invariants**
//! - WAL-11: completions run in log order, and only after their group and all before it are durable.
//! - WAL-12: after a failed write or sync nothing is acknowledged again and no sync is retried.
//! - WAL-13: at most two groups are in flight; each has a sync of its own that follows its own write.
//! - Memory is bounded: one open group, one full group, two in flight, and the cache.
//!
//! **Not here**: admission (`append`), segment files (`space`), reading back (`reader`).

mod flush;
mod state;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use sealog_frame::Stamp;

use crate::env::{AlignedBuf, BLOCK_BYTES, BufPool, Env, round_up};
use crate::error::{Error, Result};
use crate::frontier::Frontiers;
use crate::ids::{FeedId, LogId, StreamId};
use crate::limits::WalConfig;
use crate::sync::Event;
use crate::wal::alone::Alone;
use crate::wal::entry::{self, Change};
use crate::wal::group::{FLAG_CLEAN, FLAG_MARKER, GROUP_HEADER_BYTES};
use crate::wal::histogram::Histogram;
use crate::wal::pace::Pace;
use crate::wal::reader::GroupCache;
use crate::wal::segment::Geometry;
use crate::wal::space::{FileOf, Shortage, Space, SpaceParams, SpaceStart};
use state::State;

/// Whole group buffers kept for reuse, at most: what the lane lets go of at once. Fewer where the cache is small.
const POOL: usize = 24;

/// What is kept of groups that were read: this part of the cache of the newest, beside it.
const RECENT_SHARE: usize = 16;

/// Where an entry lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Log offset of its group.
    pub offset: u64,
    /// Index in its group.
    pub index: u32,
    /// Running number of its group since the log was opened.
    pub group: u64,
}

/// What a log starts from.
#[derive(Debug, Clone)]
pub struct WalParams {
    /// Its id.
    pub log: LogId,
    /// Folder of the segments.
    pub dir: PathBuf,
    /// The numbers.
    pub config: WalConfig,
    /// This incarnation.
    pub incarnation: u64,
    /// Where the last group ended; all before it is durable.
    pub end: u64,
    /// Header checksum of the last group.
    pub predecessor: u32,
}

/// What wants to enter the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomClass {
    /// A batch.
    Batch,
    /// A caller's change of state.
    Change,
}

/// Whether an append may enter the log now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    /// It may.
    Ready,
    /// Wait for [`Wal::progress`] and ask again.
    Wait,
    /// Wait as above, but only for so long: the log is at its bound.
    Bound,
    /// The disk has no room.
    Full(String),
}

/// Counters of a log, for metrics and benchmarks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalStats {
    /// Groups made durable.
    pub groups: u64,
    /// Their bytes, as written.
    pub bytes: u64,
    /// Sizes of the last few thousand groups, oldest first.
    pub group_sizes: VecDeque<u32>,
    /// What groups took from submission until they and all before them were durable, in nanoseconds.
    pub commit_times: Histogram,
    /// Sizes of all groups, in bytes.
    pub commit_sizes: Histogram,
}

impl Default for WalStats {
    fn default() -> Self {
        Self {
            groups: 0,
            bytes: 0,
            group_sizes: VecDeque::new(),
            commit_times: Histogram::of_times(),
            commit_sizes: Histogram::of_sizes(),
        }
    }
}

struct Inner<E: Env> {
    env: E,
    params: WalParams,
    geometry: Geometry,
    state: RefCell<State>,
    space: Rc<Space<E>>,
    cache: RefCell<GroupCache>,
    recent: RefCell<GroupCache>,
    pace: Pace,
    alone: Alone,
    work: Event,
    progress: Event,
    /// Notified when completions are due.
    answers: Event,
    /// Notified when the log is poisoned or closed.
    ended: Event,
    activity: Cell<u64>,
}

/// A log. Clones share it.
pub struct Wal<E: Env>(Rc<Inner<E>>);

impl<E: Env> Clone for Wal<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E: Env> Wal<E> {
    /// Opens the log where recovery left it and starts its tasks.
    pub(crate) fn start(env: E, params: WalParams, start: SpaceStart<FileOf<E>>) -> Self {
        let segment_bytes = params.config.segment_bytes;
        let geometry = Geometry { segment_bytes };
        let progress = Event::new();
        let space = Rc::new(Space::new(
            env.clone(),
            SpaceParams {
                dir: params.dir.clone(),
                log: params.log,
                incarnation: params.incarnation,
                segment_bytes,
                segments_max: usize::try_from(params.config.disk_bytes_max / segment_bytes)
                    .unwrap_or(usize::MAX),
            },
            start,
            progress.clone(),
        ));
        let group_bytes_max = params.config.flush_bytes + BLOCK_BYTES;
        let pooled = params.config.cache_bytes / 4 / params.config.flush_bytes;
        let pooled_bytes = group_bytes_max * pooled.clamp(2, POOL);
        let state = State {
            open: None,
            full: VecDeque::new(),
            in_flight: VecDeque::new(),
            completions: VecDeque::new(),
            due: VecDeque::new(),
            pool: BufPool::mixed(group_bytes_max.max(pooled_bytes / 4), pooled_bytes),
            last_bytes: 0,
            frontiers: Frontiers::at(params.end),
            next_group: 1,
            predecessor: params.predecessor,
            durable_groups: 0,
            durable_predecessor: params.predecessor,
            last_is_marker: true,
            marker_due: None,
            poisoned: None,
            closed: false,
            stats: WalStats::default(),
        };
        let cache = RefCell::new(GroupCache::new(params.config.cache_bytes));
        let wal = Self(Rc::new(Inner {
            env: env.clone(),
            geometry,
            state: RefCell::new(state),
            space: space.clone(),
            cache,
            recent: RefCell::new(GroupCache::new(params.config.cache_bytes / RECENT_SHARE)),
            pace: Pace::new(params.config.cache_bytes, params.end),
            alone: Alone::default(),
            work: Event::new(),
            progress,
            answers: Event::new(),
            ended: Event::new(),
            activity: Cell::new(0),
            params,
        }));
        space.want(geometry.segment_of(wal.0.params.end) + 1);
        env.spawn("wal space", space.run());
        env.spawn_urgent("wal flush", wal.clone().flush());
        env.spawn("wal answers", wal.clone().answer());
        env.spawn("wal idle", wal.clone().mark_idle());
        wal
    }

    /// Asks whether `bytes` more may enter. A quarter of the last segment is kept for changes of
    /// state; callers' own may use half of that, the lane all of it.
    #[must_use]
    pub fn room(&self, bytes: usize, class: RoomClass) -> Room {
        let inner = &*self.0;
        let state = inner.state.borrow();
        let pending = state.open.as_ref().map_or(0, |open| open.buf.len());
        if !state.full.is_empty() && pending >= inner.params.config.flush_bytes {
            return Room::Wait;
        }
        // Where the log would end with these bytes in it, on the safe side of block rounding.
        let (start, len) = match &state.open {
            Some(open) => (open.offset, open.buf.len() + bytes),
            None => (state.frontiers.accepted().0, GROUP_HEADER_BYTES + bytes),
        };
        drop(state);
        let len = (round_up(len) + BLOCK_BYTES) as u64;
        let at = inner.geometry.place(start, len);
        let segment = inner.geometry.segment_of(at);
        inner.space.want(segment + 1);
        let share = match class {
            RoomClass::Batch => 4,
            RoomClass::Change => 8,
        };
        let reserve = inner.params.config.segment_bytes / share;
        let ready = inner.space.is_ready(segment)
            && (inner.space.is_ready(segment + 1)
                || at + len + reserve <= inner.geometry.end_offset(segment));
        if ready && !inner.space.is_overdrawn() {
            return Room::Ready;
        }
        match inner.space.shortage() {
            Shortage::Preparing => Room::Wait,
            Shortage::AtBound => Room::Bound,
            Shortage::Failing(reason) => Room::Full(reason),
        }
    }

    /// Puts a copy of a stamped batch frame into the open group.
    pub fn append_batch(&self, feed: FeedId, stream: StreamId, frame: &[u8]) -> Position {
        self.put(entry::entry_bytes(frame.len()), |buf| {
            entry::put_batch(buf, feed, stream, frame)
        })
    }

    /// Puts a copy of a client's frame into the open group and stamps the copy; `fold` sees it there.
    /// `fold` must not call the log.
    pub(crate) fn append_stamped<T>(
        &self,
        (feed, stream): (FeedId, StreamId),
        frame: &[u8],
        stamp: &Stamp,
        fold: impl FnOnce(&[u8], Position) -> T,
    ) -> T {
        self.put_then(
            entry::entry_bytes(frame.len()),
            |buf| {
                let start = buf.len() + entry::ENTRY_HEADER_BYTES;
                entry::put_batch(buf, feed, stream, frame);
                sealog_frame::stamp(&mut buf[start..start + frame.len()], stamp);
            },
            |entry, at| fold(&entry[entry::ENTRY_HEADER_BYTES..][..frame.len()], at),
        )
    }

    /// Puts a change of state into the open group.
    pub fn append_change(&self, feed: FeedId, stream: StreamId, change: &Change) -> Position {
        self.put(entry::change_bytes(change), |buf| {
            entry::put_change(buf, feed, stream, change)
        })
    }

    /// The entries of the next `bytes` at most, put without a pause, are one group: a crash leaves all of
    /// them or none. At least one must follow.
    pub(crate) fn keep_together(&self, bytes: usize) {
        let inner = &*self.0;
        let mut state = inner.state.borrow_mut();
        state.make_open(inner, bytes);
        if let Some(open) = &mut state.open {
            open.together = open.together.max(open.buf.len() + bytes);
        }
    }

    fn put(&self, bytes: usize, write: impl FnOnce(&mut AlignedBuf)) -> Position {
        self.put_then(bytes, write, |_, at| at)
    }

    fn put_then<T>(
        &self,
        bytes: usize,
        write: impl FnOnce(&mut AlignedBuf),
        then: impl FnOnce(&[u8], Position) -> T,
    ) -> T {
        let inner = &*self.0;
        let mut state = inner.state.borrow_mut();
        state.make_open(inner, bytes);
        let open = state.open.as_mut().expect("just made");
        let before = open.buf.len();
        write(&mut open.buf);
        open.crc = crc32c::crc32c_append(open.crc, &open.buf[before..]);
        open.entries += 1;
        let position = Position {
            offset: open.offset,
            index: open.entries - 1,
            group: open.number,
        };
        let result = then(&open.buf[before..], position);
        inner.activity.set(inner.activity.get() + 1);
        drop(state);
        inner.work.notify();
        result
    }

    /// Runs `then` once group `group` is durable, or the log is poisoned. In log order: WAL-11.
    pub fn on_durable(&self, group: u64, then: impl FnOnce(Result<()>) + 'static) {
        let settled = self.outcome(group);
        let mut state = self.0.state.borrow_mut();
        match settled {
            Some(Ok(())) if !state.due.is_empty() => state.due.push_back(Box::new(then)),
            Some(result) => {
                drop(state);
                then(result);
            }
            None => {
                let group = state
                    .completions
                    .back()
                    .map_or(group, |(last, _)| group.max(*last));
                state.completions.push_back((group, Box::new(then)));
            }
        }
    }

    /// Waits until `group` is durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    ///
    /// # Cancel safety
    /// Cancel safe: only waits.
    pub async fn durable(&self, group: u64) -> Result<()> {
        self.0.progress.until(|| self.outcome(group)).await
    }

    /// Whether `group` is durable, whatever became of the log since; `None` while it is under way.
    pub(crate) fn outcome(&self, group: u64) -> Option<Result<()>> {
        let state = self.0.state.borrow();
        match &state.poisoned {
            _ if group <= state.durable_groups => Some(Ok(())),
            Some(error) => Some(Err(error.clone())),
            None => state.closed.then_some(Err(Error::Closed)),
        }
    }

    /// Notified whenever the durable frontier or the space moved, on poison, and when the log was closed.
    #[must_use]
    pub fn progress(&self) -> &Event {
        &self.0.progress
    }

    /// Everything before this log offset is durable.
    #[must_use]
    pub fn durable_end(&self) -> u64 {
        self.0.state.borrow().frontiers.durable().0
    }

    /// The durable frontier and the header checksum of the group that ended there.
    pub(crate) fn durable_tail(&self) -> (u64, u32) {
        let state = self.0.state.borrow();
        (state.frontiers.durable().0, state.durable_predecessor)
    }

    /// Position that the next entry will have or exceed: all entries accepted so far lie before it.
    #[must_use]
    pub fn accepted(&self) -> Position {
        let state = self.0.state.borrow();
        match &state.open {
            Some(open) => Position {
                offset: open.offset,
                index: open.entries,
                group: open.number,
            },
            None => Position {
                offset: state.frontiers.accepted().0,
                index: 0,
                group: state.next_group - 1,
            },
        }
    }

    /// Why the log takes nothing any more, if so.
    #[must_use]
    pub fn poisoned(&self) -> Option<Error> {
        let state = self.0.state.borrow();
        match &state.poisoned {
            Some(error) => Some(error.clone()),
            None => state.closed.then_some(Error::Closed),
        }
    }

    /// Stops the log for good: WAL-12.
    pub fn poison(&self, reason: &str) {
        let error = Error::Poisoned {
            log: self.0.params.log.0,
            reason: reason.to_owned(),
        };
        let completions = {
            let mut state = self.0.state.borrow_mut();
            state.poisoned.get_or_insert(error.clone());
            std::mem::take(&mut state.completions)
        };
        // What was durable before is answered before, and so.
        self.answer_due();
        for (_, then) in completions {
            then(Err(error.clone()));
        }
        self.0.space.close();
        self.0.work.notify();
        self.0.answers.notify();
        self.0.ended.notify();
        self.0.progress.notify();
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> WalStats {
        self.0.state.borrow().stats.clone()
    }

    pub(crate) fn space(&self) -> &Rc<Space<E>> {
        &self.0.space
    }

    pub(crate) fn cache(&self) -> &RefCell<GroupCache> {
        &self.0.cache
    }

    /// Groups that answers were read from.
    pub(crate) fn recent(&self) -> &RefCell<GroupCache> {
        &self.0.recent
    }

    /// How log and lane share the disk.
    pub(crate) fn pace(&self) -> &Pace {
        &self.0.pace
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    pub(crate) fn params(&self) -> &WalParams {
        &self.0.params
    }

    /// Makes everything accepted durable, writes the clean marker, and stops.
    ///
    /// # Errors
    /// [`Error::Poisoned`]; what was acknowledged before is durable all the same.
    ///
    /// # Cancel safety
    /// Not cancel safe in effect: the log may stay open without a marker; a later open recovers.
    pub async fn close(&self) -> Result<()> {
        let last = self.accepted().group;
        self.durable(last).await?;
        self.0.state.borrow_mut().marker_due = Some(FLAG_MARKER | FLAG_CLEAN);
        self.0.work.notify();
        self.durable(last + 1).await?;
        self.0.state.borrow_mut().closed = true;
        self.0.space.close();
        self.0.work.notify();
        self.0.answers.notify();
        self.0.ended.notify();
        // Who watches for the log's end waits here.
        self.0.progress.notify();
        Ok(())
    }

    /// Writes a marker and waits until it is durable; `false` if no segment has room for it.
    pub(crate) async fn mark(&self) -> Result<bool> {
        let last = self.accepted();
        let at = self.0.geometry.place(last.offset, BLOCK_BYTES as u64);
        if !self.0.space.is_ready(self.0.geometry.segment_of(at)) {
            return Ok(false);
        }
        self.0.state.borrow_mut().marker_due = Some(FLAG_MARKER);
        self.0.work.notify();
        self.durable(last.group + 1).await?;
        Ok(true)
    }
}
