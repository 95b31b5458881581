//! Packer: reads durable groups once and deals their batches out to packs in the making.
//! Spec: spec/wal.md §12.
//!
//! **Invariants**
//! - LANE-2, LANE-4; frames go into packs as they lie in the log.
//! - What is not staged is still in the log: forgetting every open pack loses work, never data.
//!
//! **Not here**: sealed streams' manifests and commits (`publish`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use sealog_frame::FrameView;

use super::pack_writer::PackWriter;
use super::{needed_from, stopping};
use crate::commit::{CommitKind, PackPlace, PackRef, paths};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::ids::{FeedId, Sequence, StreamId};
use crate::pack::{PackBuilder, PackError, PackKind, PackOptions, PackSummary};
use crate::reserve::Reserve;
use crate::shard::LogService;
use crate::wal::entry::Change;
use crate::wal::reader::{Group, LogReader, Missing};

/// A stream with at least this part of a region gets a pack of its own, the others share one.
const HOT_SHARE: usize = 8;
/// Sections of a shared pack that are hashed in one go.
const JOB_BYTES: usize = 4 << 20;

/// Name of the file that claims space for one pack, in the data directory.
const RESERVE_FILE: &str = "reserve.pack";

type Key = (FeedId, StreamId);
/// A batch in a group that is held in memory.
#[derive(Clone)]
struct FrameRef {
    group: Group,
    range: Range<usize>,
    base: u64,
    end: u64,
}

impl FrameRef {
    fn bytes(&self) -> &[u8] {
        self.group.bytes().get(self.range.clone()).unwrap_or(&[])
    }
}

struct OpenPack<E: Env> {
    writer: PackWriter<E>,
    end: u64,
}

/// Builds the packs of one log.
pub(super) struct Packer<E: Env> {
    service: Rc<LogService<E>>,
    open: BTreeMap<Key, OpenPack<E>>,
    reader: LogReader<E>,
    /// Everything before this log offset was dealt out.
    cursor: u64,
    region_bytes: usize,
    options: PackOptions,
    reserve: Reserve<E>,
}

impl<E: Env> Packer<E> {
    pub(super) fn new(service: &Rc<LogService<E>>) -> Self {
        let lane_bytes = service.lane.lane_bytes;
        Self {
            service: service.clone(),
            open: BTreeMap::new(),
            reader: LogReader::new(service.wal.clone()),
            cursor: needed_from(service),
            reserve: Reserve::new(
                service.env.clone(),
                service.config.data_dir.join(RESERVE_FILE),
            ),
            region_bytes: (lane_bytes / 2)
                .min(usize::try_from(service.config.pack_bytes).unwrap_or(lane_bytes)),
            options: PackOptions {
                part_bytes: (lane_bytes / 128).clamp(64 << 10, 1 << 20),
                ..PackOptions::default()
            },
        }
    }

    /// Drops all packs in the making: after a failure they start over from the log.
    pub(super) fn forget(&mut self) {
        self.open.clear();
        self.reader = LogReader::new(self.service.wal.clone());
        self.cursor = needed_from(&self.service);
    }

    /// Claims space for one pack where bucket and log share the disk.
    pub(super) async fn claim_space(&mut self) {
        if self.service.config.bucket_dir.is_none() {
            self.reserve.claim(self.service.config.pack_bytes).await;
        }
    }

    /// Gives the claimed space back, so that the next try may write what frees the log.
    pub(super) async fn release_space(&mut self) {
        self.reserve.release().await;
    }

    /// Deals out everything durable that was not dealt out; `false` when there was nothing.
    pub(super) async fn demultiplex(&mut self) -> Result<bool> {
        let target = self.service.wal.durable_end();
        let mut worked = false;
        while self.cursor < target && !self.service.is_stopping() {
            let mut region: BTreeMap<Key, Vec<FrameRef>> = BTreeMap::new();
            let mut held = 0;
            while held < self.region_bytes && self.cursor < target {
                let group = match self.reader.group(self.cursor).await? {
                    Ok(group) => group,
                    Err(Missing::AtEnd) => break,
                    Err(Missing::Retired) => {
                        self.cursor = needed_from(&self.service).max(self.cursor + 1);
                        continue;
                    }
                };
                self.cursor = group.header.end();
                held += group.bytes().len();
                for (key, frame) in frames_of(&group)? {
                    region.entry(key).or_default().push(frame);
                }
            }
            if held == 0 {
                break;
            }
            worked = true;
            self.deal(region, held).await?;
            self.bound_memory().await?;
            self.service.env.yield_if_needed().await;
        }
        Ok(worked)
    }

    /// Deals a region out: hot streams to packs of their own, all others to shared packs.
    async fn deal(&mut self, region: BTreeMap<Key, Vec<FrameRef>>, held: usize) -> Result<()> {
        let mut sections = Vec::new();
        for (key, frames) in region {
            let bytes: usize = frames.iter().map(|frame| frame.range.len()).sum();
            let hot = bytes >= (held / HOT_SHARE).max(1);
            if hot || self.open.contains_key(&key) {
                self.take_frames(key, frames).await?;
                continue;
            }
            let Some(built) = self.built_end(key) else {
                continue;
            };
            let wanted: Vec<_> = frames.into_iter().filter(|f| f.base >= built).collect();
            if wanted.first().is_some_and(|first| first.base > built) {
                // What a failed round left in the log comes first.
                self.take_frames(key, wanted).await?;
            } else if !wanted.is_empty() {
                sections.push((key, wanted));
            }
        }
        self.share_sections(sections).await
    }

    /// Frames of a region for a stream that gets a pack of its own.
    async fn take_frames(&mut self, key: Key, frames: Vec<FrameRef>) -> Result<()> {
        let Some(built) = self.built_end(key) else {
            return Ok(());
        };
        let wanted: Vec<_> = frames
            .into_iter()
            .filter(|frame| frame.base >= built)
            .collect();
        let Some(first) = wanted.first() else {
            return Ok(());
        };
        if first.base > built {
            // What earlier regions left in the log comes first.
            self.drain(key, first.base).await?;
        }
        self.push(key, wanted).await
    }

    /// Packs `key`'s batches from where its packs end up to sequence `end`, straight from the log.
    async fn drain(&mut self, key: Key, end: u64) -> Result<()> {
        let mut reader = LogReader::new(self.service.wal.clone());
        let mut at = None;
        while let Some(built) = self.built_end(key)
            && built < end
        {
            if self.service.is_stopping() {
                return Err(stopping(&self.service));
            }
            let from = match at {
                Some(at) => at,
                None => self.log_offset(key, built)?,
            };
            let (frames, next) = self.collect(&mut reader, key, (built, end), from).await?;
            at = Some(next);
            if frames.is_empty() && next == from {
                // Accepted, not durable yet.
                self.service.settle().await?;
                continue;
            }
            self.push(key, frames).await?;
        }
        Ok(())
    }

    /// Up to a region's worth of `key`'s frames in `from..end`, and the log offset to go on from.
    async fn collect(
        &self,
        reader: &mut LogReader<E>,
        key: Key,
        (from, end): (u64, u64),
        offset: u64,
    ) -> Result<(Vec<FrameRef>, u64)> {
        let mut frames = Vec::new();
        let mut at = offset;
        let mut held = 0;
        while held < self.region_bytes {
            let group = match reader.group(at).await? {
                Ok(group) => group,
                Err(Missing::AtEnd) => break,
                Err(Missing::Retired) => {
                    let detail = format!("stream {} of feed id {} needs it", key.1, key.0);
                    return Err(Error::corrupt(
                        format!("log offset {at} is gone"),
                        0,
                        detail,
                    ));
                }
            };
            at = group.header.end();
            held += group.bytes().len();
            let here = frames_of(&group)?.into_iter().filter(|(k, _)| *k == key);
            let wanted = here
                .map(|(_, frame)| frame)
                .filter(|f| f.base >= from && f.base < end);
            frames.extend(wanted);
            if frames.last().is_some_and(|frame| frame.end >= end) {
                break;
            }
        }
        Ok((frames, at))
    }

    fn log_offset(&self, key: Key, sequence: u64) -> Result<u64> {
        let feeds = self.service.feeds.borrow();
        let stream = feeds.get(key.0).and_then(|feed| feed.stream(key.1));
        stream
            .and_then(|stream| stream.log_offset(sequence))
            .ok_or_else(|| {
                let detail = format!("no index entry for sequence {sequence}");
                Error::corrupt(format!("stream {} of feed id {}", key.1, key.0), 0, detail)
            })
    }

    /// One past the last sequence of `key` that is in a pack or on its way; `None` when the stream
    /// needs no packs any more.
    fn built_end(&self, key: Key) -> Option<u64> {
        let feeds = self.service.feeds.borrow();
        let stream = feeds.get(key.0)?.stream(key.1)?;
        let discarded = stream
            .seal
            .as_ref()
            .is_some_and(|s| s.kind == CommitKind::Discarded);
        if discarded {
            return None;
        }
        Some(
            self.open
                .get(&key)
                .map_or(stream.packed_end(), |pack| pack.end),
        )
    }

    async fn push(&mut self, key: Key, frames: Vec<FrameRef>) -> Result<()> {
        let Some(last) = frames.last() else {
            return Ok(());
        };
        let end = last.end;
        let mut pack = match self.open.remove(&key) {
            Some(pack) => pack,
            None => self.begin(key).await?,
        };
        let job = move |builder: &mut PackBuilder| {
            frames
                .iter()
                .try_for_each(|frame| builder.push_frame(frame.bytes()))
        };
        pack.writer.run(job).await?;
        // Columns of tiny records can outgrow the records: LANE-4.
        let full = pack.writer.position() >= self.service.config.pack_bytes
            || pack.writer.buffered_bytes() >= self.service.lane.lane_bytes / 4;
        pack.end = end;
        self.open.insert(key, pack);
        if full { self.cut(key).await } else { Ok(()) }
    }

    async fn begin(&self, key: Key) -> Result<OpenPack<E>> {
        let keyed = self.keyed(key.0);
        let kind = PackKind::Stream {
            feed: key.0,
            stream: key.1,
        };
        let mut writer = PackWriter::begin(&self.service.env, kind, self.options).await?;
        writer
            .run(move |builder| builder.begin_section(key.0, key.1, keyed))
            .await?;
        Ok(OpenPack { writer, end: 0 })
    }

    fn keyed(&self, feed: FeedId) -> bool {
        let feeds = self.service.feeds.borrow();
        feeds.get(feed).is_some_and(|feed| feed.options.keys)
    }

    /// Finishes the pack of `key`, if one is open, and stages it.
    async fn cut(&mut self, key: Key) -> Result<()> {
        let Some(pack) = self.open.remove(&key) else {
            return Ok(());
        };
        let name = self
            .service
            .feeds
            .borrow()
            .get(key.0)
            .map(|feed| feed.name.clone());
        let Some(name) = name else { return Ok(()) };
        let path = |summary: &PackSummary| paths::stream_pack(&name, key.0, key.1, &summary.digest);
        let summary = pack.writer.finish(path).await?;
        self.stage(PackPlace::Stream, &summary);
        Ok(())
    }

    /// Logs every section of a durable pack whose stream still wants it. LANE-2.
    fn stage(&self, place: PackPlace, summary: &PackSummary) {
        for section in &summary.sections {
            let pack = PackRef::of(place, summary, section);
            let wanted = {
                let feeds = self.service.feeds.borrow();
                let stream = feeds
                    .get(section.feed)
                    .and_then(|feed| feed.stream(section.stream));
                stream.is_some_and(|stream| {
                    let discarded = stream
                        .seal
                        .as_ref()
                        .is_some_and(|s| s.kind == CommitKind::Discarded);
                    !discarded && stream.packed_end() == pack.first.0 && pack.end.0 <= stream.end
                })
            };
            if wanted {
                self.service
                    .change(section.feed, section.stream, &Change::PackStaged(pack));
            }
        }
    }

    /// Packs all of a sealed stream that is not packed yet.
    pub(super) async fn complete(&mut self, key: Key, end: u64) -> Result<()> {
        self.drain(key, end).await?;
        self.cut(key).await
    }

    /// LANE-4.
    async fn bound_memory(&mut self) -> Result<()> {
        loop {
            let held: usize = self
                .open
                .values()
                .map(|pack| pack.writer.buffered_bytes())
                .sum();
            if held <= self.service.lane.lane_bytes {
                return Ok(());
            }
            let biggest = self
                .open
                .iter()
                .max_by_key(|(_, pack)| pack.writer.buffered_bytes());
            let Some(key) = biggest.map(|(key, _)| *key) else {
                return Ok(());
            };
            self.cut(key).await?;
        }
    }

    /// Packs what the oldest segment in use still holds, so that it can be retired; `false` when
    /// there is nothing to free.
    pub(super) async fn relieve(&mut self) -> Result<bool> {
        let geometry = self.service.wal.geometry();
        let needed = needed_from(&self.service);
        let oldest = geometry.segment_of(needed);
        let bound = geometry.first_offset(oldest + 1);
        if bound > self.service.wal.durable_end() {
            return Ok(false);
        }
        let holders: Vec<Key> = {
            let feeds = self.service.feeds.borrow();
            let holds = |offset: Option<u64>| offset.is_some_and(|offset| offset < bound);
            feeds
                .needing_below(bound)
                .flat_map(|feed| feed.streams.iter().map(|stream| (feed.id, stream)))
                .filter(|(_, stream)| holds(stream.needed_from()))
                .map(|(feed, stream)| (feed, stream.id))
                .collect()
        };
        let mut quiet = Vec::new();
        for key in holders {
            if self.open.contains_key(&key) {
                self.cut(key).await?;
            } else {
                quiet.push(key);
            }
        }
        if !quiet.is_empty() {
            self.share(&quiet, needed, bound).await?;
        }
        Ok(needed_from(&self.service) > needed)
    }

    /// Packs everything of the `quiet` streams between two log offsets into shared packs.
    async fn share(&mut self, quiet: &[Key], from: u64, bound: u64) -> Result<()> {
        let mut gathered: BTreeMap<Key, Vec<FrameRef>> =
            quiet.iter().map(|key| (*key, Vec::new())).collect();
        let mut reader = LogReader::new(self.service.wal.clone());
        let mut at = from;
        while at < bound {
            let Ok(group) = reader.group(at).await? else {
                break;
            };
            if group.header.offset >= bound {
                break;
            }
            at = group.header.end();
            for (key, frame) in frames_of(&group)? {
                let built = self.built_end(key);
                if let Some(frames) = gathered.get_mut(&key)
                    && built.is_some_and(|built| frame.base >= built)
                {
                    frames.push(frame);
                }
            }
            self.service.env.yield_if_needed().await;
        }
        let sections = gathered
            .into_iter()
            .filter(|(_, frames)| !frames.is_empty());
        self.share_sections(sections.collect()).await
    }

    async fn share_sections(&mut self, sections: Vec<(Key, Vec<FrameRef>)>) -> Result<()> {
        let log = self.service.wal.params().log;
        let mut sections = sections.into_iter().peekable();
        while sections.peek().is_some() {
            let kind = PackKind::Shared { log };
            let mut writer = PackWriter::begin(&self.service.env, kind, self.options).await?;
            while writer.position() < self.service.config.pack_bytes && sections.peek().is_some() {
                let (mut job, mut bytes) = (Vec::new(), 0);
                while bytes < JOB_BYTES
                    && let Some((key, frames)) = sections.next()
                {
                    bytes += frames.iter().map(|frame| frame.range.len()).sum::<usize>();
                    job.push((key, self.keyed(key.0), frames));
                }
                writer
                    .run(move |builder| add_sections(builder, &job))
                    .await?;
            }
            let path = |summary: &PackSummary| paths::shared_pack(log, &summary.digest);
            let summary = writer.finish(path).await?;
            self.stage(PackPlace::Shared(log), &summary);
        }
        Ok(())
    }
}

fn add_sections(
    builder: &mut PackBuilder,
    sections: &[(Key, bool, Vec<FrameRef>)],
) -> std::result::Result<(), PackError> {
    for ((feed, stream), keyed, frames) in sections {
        builder.begin_section(*feed, *stream, *keyed)?;
        frames
            .iter()
            .try_for_each(|frame| builder.push_frame(frame.bytes()))?;
    }
    Ok(())
}

/// All batches of a group, each with the stream it belongs to.
fn frames_of(group: &Group) -> Result<Vec<(Key, FrameRef)>> {
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

/// Where a sequence lies in a list of packs.
pub(crate) fn pack_holding(packs: &[PackRef], sequence: u64) -> Option<&PackRef> {
    let at = packs.partition_point(|pack| pack.end <= Sequence(sequence));
    packs.get(at)
}
