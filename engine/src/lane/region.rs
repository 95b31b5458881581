//! Region: a run of the log in memory, its batches by stream.
//!
//! **Invariants**
//! - LANE-4: groups are read once, into regions of bounded size.
//! - Batches stay where they were read: a region holds places, not copies.
//! - What takes as long as there are batches is done on the side; the shard answers meanwhile.
//!
//! **Not here**: what becomes of the batches (`packer`).

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use sealog_frame::FrameView;

use super::needed_from;
use crate::env::{AlignedBuf, Env};
use crate::error::{Error, Result};
use crate::ids::{FeedId, StreamId};
use crate::shard::LogService;
use crate::wal::reader::{Group, LogReader, Missing};

/// A record's fingerprint in the pack's column, and its entry of a key run.
const COLUMN_BYTES: u64 = 72;

/// A stream of a feed.
pub(super) type Key = (FeedId, StreamId);

/// A batch in a group that is held in memory.
#[derive(Clone)]
pub(super) struct FrameRef {
    memory: Arc<AlignedBuf>,
    start: u32,
    len: u32,
    pub base: u64,
    pub end: u64,
}

impl FrameRef {
    pub(super) fn bytes(&self) -> &[u8] {
        let start = self.start as usize;
        self.memory.get(start..start + self.len()).unwrap_or(&[])
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// About what it takes in a pack: itself, and what columns and key runs say of its records.
    pub(super) fn packed_bytes(&self) -> u64 {
        u64::from(self.len) + (self.end - self.base) * COLUMN_BYTES
    }
}

/// Batches of one stream, in order, in runs of bounded size: a run is what is hashed in one go.
#[derive(Default)]
pub(super) struct Frames {
    runs: VecDeque<Vec<FrameRef>>,
    bytes: usize,
    bytes_in_last: usize,
}

impl Frames {
    /// Adds the next batch; a run that holds `run_bytes` takes no more.
    pub(super) fn push(&mut self, frame: FrameRef, run_bytes: usize) {
        if self.runs.is_empty() || self.bytes_in_last >= run_bytes {
            self.runs.push_back(Vec::new());
            self.bytes_in_last = 0;
        }
        self.bytes += frame.len();
        self.bytes_in_last += frame.len();
        if let Some(run) = self.runs.back_mut() {
            run.push(frame);
        }
    }

    /// Bytes of all batches.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// About what all of them take in a pack.
    pub(super) fn packed_bytes(&self) -> u64 {
        self.runs.iter().flatten().map(FrameRef::packed_bytes).sum()
    }

    /// Sequence of the first record, if there is one.
    pub(super) fn base(&self) -> Option<u64> {
        Some(self.runs.front()?.first()?.base)
    }

    /// One past the sequence of the last record.
    pub(super) fn end(&self) -> Option<u64> {
        Some(self.runs.back()?.last()?.end)
    }

    /// Without the batches before sequence `built`.
    pub(super) fn since(mut self, built: u64) -> Self {
        while let Some(run) = self.runs.front_mut() {
            let before = run.partition_point(|frame| frame.base < built);
            self.bytes -= run.drain(..before).map(|frame| frame.len()).sum::<usize>();
            if !run.is_empty() {
                break;
            }
            self.runs.pop_front();
        }
        self
    }

    /// The runs, in order.
    pub(super) fn into_runs(self) -> impl Iterator<Item = Vec<FrameRef>> {
        self.runs.into_iter()
    }
}

/// Batches of a run of the log.
#[derive(Default)]
pub(super) struct Region {
    pub frames: BTreeMap<Key, Frames>,
    /// Bytes of the groups they are in, and of their places: tiny batches take more for these.
    pub held: usize,
}

impl Region {
    /// The batches of `groups` by stream. Takes as long as there are batches: not for the executor.
    pub(super) fn of(groups: &[Group], run_bytes: usize) -> Result<Self> {
        let mut region = Self::default();
        for group in groups {
            region.held += held_by(group);
            for (key, frame) in frames_of(group)? {
                region.frames.entry(key).or_default().push(frame, run_bytes);
            }
        }
        Ok(region)
    }
}

/// How much of the log is taken at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct RegionSize {
    /// Read and dealt out in one go.
    pub region_bytes: usize,
    /// Hashed in one go.
    pub run_bytes: usize,
}

/// Reads the log forwards, region by region.
pub(super) struct Intake<E: Env> {
    service: Rc<LogService<E>>,
    reader: LogReader<E>,
    /// Everything before this log offset was given out.
    cursor: u64,
    size: RegionSize,
}

impl<E: Env> Intake<E> {
    /// An intake that begins where the log is needed from.
    pub(super) fn new(service: &Rc<LogService<E>>, size: RegionSize) -> Self {
        Self {
            service: service.clone(),
            reader: Self::reader(service, size.region_bytes),
            cursor: needed_from(service),
            size,
        }
    }

    /// A reader for whole regions: a full group in one read, the memory of two regions used again.
    pub(super) fn reader(service: &LogService<E>, region_bytes: usize) -> LogReader<E> {
        let chunk_bytes = service.config.wal.flush_bytes;
        let lent_max = 2 * region_bytes / chunk_bytes.max(1) + 2;
        LogReader::in_chunks(service.wal.clone(), chunk_bytes, lent_max)
    }

    /// Begins again where the log is needed from.
    pub(super) fn rewind(&mut self) {
        self.reader = Self::reader(&self.service, self.size.region_bytes);
        self.cursor = needed_from(&self.service);
        self.service.wal.pace().read(self.cursor);
    }

    /// Everything before this log offset was given out.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Whether a whole region is durable and not given out.
    pub(super) fn has_region(&self) -> bool {
        self.service.wal.durable_end() >= self.cursor + self.size.region_bytes as u64
    }

    /// The next region below log offset `target`; `None` when there is nothing more.
    pub(super) async fn next(&mut self, target: u64) -> Result<Option<Region>> {
        let (mut groups, mut held) = (Vec::new(), 0);
        while held < self.size.region_bytes && self.cursor < target && !self.service.is_stopping() {
            let group = match self.reader.group(self.cursor).await? {
                Ok(group) => group,
                Err(Missing::AtEnd) => break,
                Err(Missing::Retired) => {
                    self.cursor = needed_from(&self.service).max(self.cursor + 1);
                    continue;
                }
            };
            self.cursor = group.header.end();
            held += held_by(&group);
            groups.push(group);
            self.service.env.yield_if_needed().await;
        }
        self.service.wal.pace().read(self.cursor);
        if groups.is_empty() {
            self.reader.release();
            return Ok(None);
        }
        let run_bytes = self.size.run_bytes;
        let deal = move || Region::of(&groups, run_bytes);
        self.service.env.offload(deal).await.map(Some)
    }
}

/// What a group takes in a region: its bytes, and the places of its batches.
fn held_by(group: &Group) -> usize {
    group.bytes().len() + group.header.entries as usize * size_of::<FrameRef>()
}

/// All batches of a group, each with the stream it belongs to.
pub(super) fn frames_of(group: &Group) -> Result<Vec<(Key, FrameRef)>> {
    let memory = group.memory();
    let place = memory.as_ptr() as usize;
    let mut frames = Vec::with_capacity(group.header.entries as usize);
    for entry in group.entries() {
        let corrupt = |detail: String| Error::corrupt("log group", group.header.offset, detail);
        let entry = entry.map_err(|error| corrupt(error.to_string()))?;
        let Some(bytes) = entry.frame() else { continue };
        let view = FrameView::trusted(bytes).map_err(|error| corrupt(error.to_string()))?;
        let start = bytes.as_ptr() as usize - place;
        let small =
            |n: usize| u32::try_from(n).map_err(|_| corrupt(format!("{n} bytes in memory")));
        let frame = FrameRef {
            memory: memory.clone(),
            start: small(start)?,
            len: small(bytes.len())?,
            base: view.base_sequence(),
            end: view.end_sequence(),
        };
        frames.push(((entry.feed, entry.stream), frame));
    }
    Ok(frames)
}
