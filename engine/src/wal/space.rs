//! Space: the segment files of one log: which are live, which are spare, what is being prepared.
//! Spec: spec/wal.md §5.
//!
//! **Invariants**
//! - WAL-9: a segment's header block is durable before any group is written into the segment.
//! - WAL-10: only segments that retirement named are recycled.
//! - A spare is given back to the disk where packs find no room on it: what is packed frees more.
//! - The files together never exceed `disk_bytes_max`. The last two segments of it are kept for
//!   groups that are on their way already: what frees a log at its bound must itself get into it.
//!
//! **Not here**: when a segment may be retired (`lane` and `checkpoint` decide).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::env::fs_ops::no_room;
use crate::env::{AlignedBuf, BLOCK_BYTES, Disk, Env, File};
use crate::error::Error;
use crate::ids::LogId;
use crate::sync::{Event, race};
use crate::wal::segment::SegmentHeader;

/// Fresh segments are zero-filled in writes of this size.
const FILL_BYTES: usize = 1 << 20;
/// Segments of the bound that only groups on their way may take.
const OVERDRAFT: usize = 2;
/// Pause between tries to make a segment on a full disk.
const RETRY: Duration = Duration::from_millis(500);

pub(crate) type FileOf<E> = <<E as Env>::Disk as Disk>::File;

/// A segment file that is open.
#[derive(Clone)]
pub(crate) struct SegmentFile<F> {
    pub(crate) name: Rc<str>,
    pub(crate) file: F,
}

/// Why the next segment is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// It is being made.
    Preparing,
    /// All segments that the bound allows, or the disk for want of room for packs, hold data that is not
    /// packed yet.
    AtBound,
    /// The disk refused.
    Failing(String),
}

struct State<F> {
    live: BTreeMap<u64, SegmentFile<F>>,
    spare: Vec<SegmentFile<F>>,
    next_slot: u64,
    first: u64,
    wanted: u64,
    /// Segment that a group on its way needs.
    demanded: u64,
    failing: Option<String>,
    /// Why the log is to take no more of the disk.
    held: Option<String>,
    closed: bool,
}

/// What recovery found, to start from.
pub(crate) struct SpaceStart<F> {
    pub(crate) live: BTreeMap<u64, SegmentFile<F>>,
    pub(crate) spare: Vec<SegmentFile<F>>,
    pub(crate) next_slot: u64,
    /// Number to begin with when no segment is live.
    pub(crate) first: u64,
}

pub(crate) struct SpaceParams {
    pub(crate) dir: PathBuf,
    pub(crate) log: LogId,
    pub(crate) incarnation: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) segments_max: usize,
}

pub(crate) struct Space<E: Env> {
    env: E,
    params: SpaceParams,
    state: RefCell<State<FileOf<E>>>,
    changed: Event,
}

impl<E: Env> Space<E> {
    pub(crate) fn new(
        env: E,
        params: SpaceParams,
        start: SpaceStart<FileOf<E>>,
        changed: Event,
    ) -> Self {
        let SpaceStart {
            live,
            spare,
            next_slot,
            first,
        } = start;
        let state = State {
            live,
            spare,
            next_slot,
            first,
            wanted: 0,
            demanded: 0,
            failing: None,
            held: None,
            closed: false,
        };
        let state = RefCell::new(state);
        Self {
            env,
            params,
            state,
            changed,
        }
    }

    /// Asks for segment `number`, and all before it, to be made ready.
    pub(crate) fn want(&self, number: u64) {
        let mut state = self.state.borrow_mut();
        if state.wanted < number {
            state.wanted = number;
            drop(state);
            self.changed.notify();
        }
    }

    pub(crate) fn is_ready(&self, number: u64) -> bool {
        self.state.borrow().live.contains_key(&number)
    }

    pub(crate) fn file(&self, number: u64) -> Option<SegmentFile<FileOf<E>>> {
        self.state.borrow().live.get(&number).cloned()
    }

    /// Waits until segment `number` is ready; `None` when the log closed first.
    pub(crate) async fn ready(&self, number: u64) -> Option<SegmentFile<FileOf<E>>> {
        self.demand(number);
        self.changed
            .until(|| {
                let state = self.state.borrow();
                match state.live.get(&number) {
                    Some(file) => Some(Some(file.clone())),
                    None => state.closed.then_some(None),
                }
            })
            .await
    }

    /// Whether groups on their way had to take what is kept for them: nothing else may enter.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.state.borrow().live.len() > self.params.segments_max - OVERDRAFT
    }

    fn demand(&self, number: u64) {
        self.want(number);
        let mut state = self.state.borrow_mut();
        if state.demanded < number {
            state.demanded = number;
            drop(state);
            self.changed.notify();
        }
    }

    pub(crate) fn shortage(&self) -> Shortage {
        let state = self.state.borrow();
        if state.held.is_some() {
            return Shortage::AtBound;
        }
        if let Some(reason) = &state.failing {
            return Shortage::Failing(reason.clone());
        }
        let ordinary = self.params.segments_max - OVERDRAFT;
        let used = state.live.len();
        if used > ordinary || (state.spare.is_empty() && used == ordinary) {
            return Shortage::AtBound;
        }
        Shortage::Preparing
    }

    pub(crate) fn live_segments(&self) -> usize {
        self.state.borrow().live.len()
    }

    /// Recycles every live segment below `number`. WAL-10.
    pub(crate) fn retire_below(&self, number: u64) -> usize {
        let mut state = self.state.borrow_mut();
        let kept = state.live.split_off(&number);
        let retired = std::mem::replace(&mut state.live, kept);
        let count = retired.len();
        state.spare.extend(retired.into_values());
        drop(state);
        if count > 0 {
            self.changed.notify();
        }
        count
    }

    /// Until [`Space::go_on`], no segment is made ready but for groups that are on their way: what room the
    /// disk has is for what frees the log.
    pub(crate) fn hold(&self, reason: String) {
        self.state.borrow_mut().held = Some(reason);
        self.changed.notify();
    }

    /// Why the log is held, if it is.
    pub(crate) fn held(&self) -> Option<String> {
        self.state.borrow().held.clone()
    }

    /// The log may take of the disk again.
    pub(crate) fn go_on(&self) {
        self.state.borrow_mut().held = None;
        self.changed.notify();
    }

    /// Gives the disk back what spare segments take of it; `true` when there were any.
    pub(crate) async fn give_back(&self) -> bool {
        let spare = std::mem::take(&mut self.state.borrow_mut().spare);
        let any = !spare.is_empty();
        for segment in spare {
            let path = self.params.dir.join(&*segment.name);
            drop(segment);
            // One that stays is found again at the next start.
            let _ = self.env.disk().remove(&path).await;
        }
        // The next file that is made syncs the folder, too, before its header is written.
        let _ = self.env.disk().sync_dir(&self.params.dir).await;
        any
    }

    pub(crate) fn close(&self) {
        self.state.borrow_mut().closed = true;
        self.changed.notify();
    }

    /// The preparing task: keeps every wanted segment ready until the log closes.
    pub(crate) async fn run(self: Rc<Self>) {
        while let Some(number) = self.next_to_prepare().await {
            let done = self.prepare(number).await;
            let failing = done.err().map(|error| error.reason());
            let pause = failing.is_some();
            self.state.borrow_mut().failing = failing;
            self.changed.notify();
            if pause {
                let closed = self
                    .changed
                    .until(|| self.state.borrow().closed.then_some(()));
                race(closed, self.env.sleep(RETRY)).await;
            }
        }
    }

    async fn next_to_prepare(&self) -> Option<u64> {
        self.changed
            .until(|| {
                let state = self.state.borrow();
                if state.closed {
                    return Some(None);
                }
                let next = state
                    .live
                    .last_key_value()
                    .map_or(state.first, |(number, _)| number + 1);
                let bound = match next <= state.demanded {
                    true => self.params.segments_max,
                    false => self.params.segments_max - OVERDRAFT,
                };
                let room = !state.spare.is_empty() || state.live.len() < bound;
                let may = state.held.is_none() || next <= state.demanded;
                (next <= state.wanted && room && may).then_some(Some(next))
            })
            .await
    }

    async fn prepare(&self, number: u64) -> Result<(), Error> {
        let spare = self.state.borrow_mut().spare.pop();
        let segment = match spare {
            Some(segment) => self.made_whole(segment).await?,
            None => self.make_file().await?,
        };
        let header = SegmentHeader {
            log: self.params.log,
            number,
            segment_bytes: self.params.segment_bytes,
            incarnation: self.params.incarnation,
        };
        let written = segment.file.commit(Arc::new(header.encode()), 0).await;
        let path = self.params.dir.join(&*segment.name);
        if let Err(error) = written {
            // The header may be there all the same: the same file must be the one that is tried
            // again, or two files would claim this number.
            self.state.borrow_mut().spare.push(segment);
            return Err(Error::io("write", &path, &error));
        }
        self.state.borrow_mut().live.insert(number, segment);
        Ok(())
    }

    /// A spare that a crash caught while it was being made has no space yet: it gets it, or goes.
    async fn made_whole(
        &self,
        segment: SegmentFile<FileOf<E>>,
    ) -> Result<SegmentFile<FileOf<E>>, Error> {
        let path = self.params.dir.join(&*segment.name);
        let len = segment.file.len().await;
        let len = len.map_err(|e| Error::io("stat", &path, &e))?;
        if len >= self.params.segment_bytes {
            return Ok(segment);
        }
        let from = len - len % BLOCK_BYTES as u64;
        if let Err(error) = fill(&segment.file, from, self.params.segment_bytes).await {
            drop(segment);
            let _ = self.env.disk().remove(&path).await;
            return Err(Error::io("fill", &path, &error));
        }
        Ok(segment)
    }

    async fn make_file(&self) -> Result<SegmentFile<FileOf<E>>, Error> {
        let slot = {
            let mut state = self.state.borrow_mut();
            state.next_slot += 1;
            state.next_slot - 1
        };
        let name: Rc<str> = slot_name(slot).into();
        let path = self.params.dir.join(&*name);
        let disk = self.env.disk();
        let room = check_room(disk, &self.params.dir, self.params.segment_bytes).await;
        room.map_err(|e| Error::io("fill", &path, &e))?;
        let file = disk
            .create(&path)
            .await
            .map_err(|e| Error::io("create", &path, &e))?;
        let filled = fill(&file, 0, self.params.segment_bytes).await;
        let done = match filled {
            Ok(()) if crate::bug!("missing_directory_sync") => Ok(()),
            Ok(()) => disk.sync_dir(&self.params.dir).await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            drop(file);
            let _ = disk.remove(&path).await;
            return Err(Error::io("fill", &path, &error));
        }
        Ok(SegmentFile { name, file })
    }
}

/// File name of a slot; says nothing about what is in it.
pub(crate) fn slot_name(slot: u64) -> String {
    format!("{slot:08}.seg")
}

/// The slot of a file name, if it is one.
pub(crate) fn slot_of(name: &str) -> Option<u64> {
    name.strip_suffix(".seg")?.parse().ok()
}

/// Refuses what the disk has no room for before any of it is written: a disk that stays full would
/// otherwise be filled and emptied again for as long.
pub(crate) async fn check_room<D: Disk>(disk: &D, dir: &Path, bytes: u64) -> io::Result<()> {
    // Where it cannot be told, writing tells.
    match disk.free_bytes(dir).await {
        Ok(Some(free)) if free < bytes => Err(no_room(free, bytes)),
        _ => Ok(()),
    }
}

/// Writes zeros over `from..to` and syncs.
pub(crate) async fn fill<F: File>(file: &F, from: u64, to: u64) -> io::Result<()> {
    debug_assert!(from.is_multiple_of(BLOCK_BYTES as u64) && to.is_multiple_of(BLOCK_BYTES as u64));
    let zeros = Arc::new(AlignedBuf::zeroed(FILL_BYTES));
    let mut at = from;
    while at < to {
        let len = usize::try_from(to - at)
            .unwrap_or(usize::MAX)
            .min(FILL_BYTES);
        let buf = if len == FILL_BYTES {
            zeros.clone()
        } else {
            Arc::new(AlignedBuf::zeroed(len))
        };
        file.write_at(buf, at).await?;
        at += len as u64;
    }
    file.sync_data().await
}
