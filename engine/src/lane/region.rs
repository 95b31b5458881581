//! Region: a run of the log in memory, its batches by stream.
//!
//! **Invariants**
//! - LANE-4: groups are read once, into regions of bounded size.
//! - Batches stay where they were read: a region holds places, not copies.
//!
//! **Not here**: what becomes of the batches (`packer`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use sealog_frame::FrameView;

use super::needed_from;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::ids::{FeedId, StreamId};
use crate::shard::LogService;
use crate::wal::reader::{Group, LogReader, Missing};

/// A stream of a feed.
pub(super) type Key = (FeedId, StreamId);

/// A batch in a group that is held in memory.
#[derive(Clone)]
pub(super) struct FrameRef {
    group: Group,
    range: Range<usize>,
    pub base: u64,
    pub end: u64,
}

impl FrameRef {
    pub(super) fn bytes(&self) -> &[u8] {
        self.group.bytes().get(self.range.clone()).unwrap_or(&[])
    }

    pub(super) fn len(&self) -> usize {
        self.range.len()
    }
}

/// Batches of a run of the log.
#[derive(Default)]
pub(super) struct Region {
    pub frames: BTreeMap<Key, Vec<FrameRef>>,
    /// Bytes of the groups they are in, and of their places: tiny batches take more for these.
    pub held: usize,
}

/// Reads the log forwards, region by region.
pub(super) struct Intake<E: Env> {
    service: Rc<LogService<E>>,
    reader: LogReader<E>,
    /// Everything before this log offset was given out.
    cursor: u64,
    region_bytes: usize,
}

impl<E: Env> Intake<E> {
    /// An intake that begins where the log is needed from.
    pub(super) fn new(service: &Rc<LogService<E>>, region_bytes: usize) -> Self {
        Self {
            service: service.clone(),
            reader: Self::reader(service, region_bytes),
            cursor: needed_from(service),
            region_bytes,
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
        self.reader = Self::reader(&self.service, self.region_bytes);
        self.cursor = needed_from(&self.service);
        self.service.wal.pace().read(self.cursor);
    }

    /// Everything before this log offset was given out.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Whether a whole region is durable and not given out.
    pub(super) fn has_region(&self) -> bool {
        self.service.wal.durable_end() >= self.cursor + self.region_bytes as u64
    }

    /// The next region below log offset `target`; `None` when there is nothing more.
    pub(super) async fn next(&mut self, target: u64) -> Result<Option<Region>> {
        let mut region = Region::default();
        while region.held < self.region_bytes && self.cursor < target && !self.service.is_stopping()
        {
            let group = match self.reader.group(self.cursor).await? {
                Ok(group) => group,
                Err(Missing::AtEnd) => break,
                Err(Missing::Retired) => {
                    self.cursor = needed_from(&self.service).max(self.cursor + 1);
                    continue;
                }
            };
            self.cursor = group.header.end();
            region.held += group.bytes().len();
            for (key, frame) in frames_of(&group)? {
                region.frames.entry(key).or_default().push(frame);
                region.held += size_of::<FrameRef>();
            }
            self.service.env.yield_if_needed().await;
        }
        self.service.wal.pace().read(self.cursor);
        if region.held == 0 {
            self.reader.release();
            return Ok(None);
        }
        Ok(Some(region))
    }
}

/// All batches of a group, each with the stream it belongs to.
pub(super) fn frames_of(group: &Group) -> Result<Vec<(Key, FrameRef)>> {
    let start = group.bytes().as_ptr() as usize;
    let mut frames = Vec::new();
    for entry in group.entries() {
        let corrupt = |detail: String| Error::corrupt("log group", group.header.offset, detail);
        let entry = entry.map_err(|error| corrupt(error.to_string()))?;
        let Some(bytes) = entry.frame() else { continue };
        let view = FrameView::trusted(bytes).map_err(|error| corrupt(error.to_string()))?;
        let at = bytes.as_ptr() as usize - start;
        let frame = FrameRef {
            group: group.clone(),
            range: at..at + bytes.len(),
            base: view.base_sequence(),
            end: view.end_sequence(),
        };
        frames.push(((entry.feed, entry.stream), frame));
    }
    Ok(frames)
}
