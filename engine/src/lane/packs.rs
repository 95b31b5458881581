//! Packs: the packs in the making, and which batches go into which. Spec: spec/wal.md §12.
//!
//! **Invariants**
//! - LANE-2, LANE-4; frames go into packs as they lie in the log.
//! - What is not staged is still in the log: forgetting every open pack loses work, never data.
//!
//! **Not here**: reading regions (`region`), making packs durable (`closer`).

use std::collections::BTreeMap;
use std::rc::Rc;

use super::closer::{Closer, Closing, is_discarded};
use super::pack_writer::{Assembly, PackWriter};
use super::region::{FrameRef, Frames, Intake, Key, Region, RegionSize, frames_of};
use super::stopping;
use crate::env::{Bucket, BufPool, Env};
use crate::error::{Error, Result};
use crate::ids::FeedId;
use crate::pack::{PackError, PackKind, PackOptions};
use crate::shard::LogService;
use crate::wal::reader::{LogReader, Missing};

/// A stream with at least this part of a region gets a pack of its own, the others share one.
const HOT_SHARE: usize = 8;
/// Parts whose memory is kept for parts to come.
const PARTS_KEPT: usize = 8;
/// Room besides that of packs: for footers, directories, manifests and commits.
pub(super) const BESIDE_BYTES: u64 = 256 << 10;

struct OpenPack<E: Env> {
    writer: PackWriter<E>,
    end: u64,
}

/// The packs in the making of one log.
pub(super) struct Packs<E: Env> {
    service: Rc<LogService<E>>,
    open: BTreeMap<Key, OpenPack<E>>,
    closer: Closer<E>,
    size: RegionSize,
    options: PackOptions,
    /// Memory of parts.
    pool: BufPool,
}

impl<E: Env> Packs<E> {
    /// None in the making yet.
    pub(super) fn new(service: &Rc<LogService<E>>, size: RegionSize) -> Self {
        let lane_bytes = service.lane.lane_bytes;
        let options = PackOptions {
            part_bytes: (lane_bytes / 128).clamp(64 << 10, 1 << 20),
            ..PackOptions::default()
        };
        Self {
            service: service.clone(),
            open: BTreeMap::new(),
            closer: Closer::start(service),
            size,
            pool: BufPool::new(options.part_room_bytes(), PARTS_KEPT),
            options,
        }
    }

    /// Drops all packs in the making.
    pub(super) async fn forget(&mut self) {
        self.open.clear();
        self.closer.clear().await;
        self.pool.clear();
    }

    /// Waits until every pack that was cut is staged.
    pub(super) async fn settle(&mut self) -> Result<()> {
        self.pool.clear();
        self.closer.settle().await
    }

    /// Whether `key` has a pack in the making.
    pub(super) fn is_open(&self, key: Key) -> bool {
        self.open.contains_key(&key)
    }

    /// Deals a region out: hot streams to packs of their own, all others to shared packs.
    pub(super) async fn deal(&mut self, region: Region) -> Result<()> {
        let Region { frames, held } = region;
        let mut sections = Vec::new();
        for (key, frames) in frames {
            let hot = frames.bytes() >= (held / HOT_SHARE).max(1);
            if hot || self.open.contains_key(&key) {
                self.take_frames(key, frames).await?;
                continue;
            }
            let Some(built) = self.built_end(key) else {
                continue;
            };
            let wanted = frames.since(built);
            match wanted.base() {
                // What a failed round left in the log comes first.
                Some(base) if base > built => self.take_frames(key, wanted).await?,
                Some(_) => sections.push((key, wanted)),
                None => {}
            }
        }
        self.share_sections(sections).await?;
        self.bound_memory().await
    }

    /// Frames of a region for a stream that gets a pack of its own.
    async fn take_frames(&mut self, key: Key, frames: Frames) -> Result<()> {
        let Some(built) = self.built_end(key) else {
            return Ok(());
        };
        let wanted = frames.since(built);
        let Some(base) = wanted.base() else {
            return Ok(());
        };
        if base > built {
            // What earlier regions left in the log comes first.
            self.drain(key, base).await?;
        }
        self.push(key, wanted).await
    }

    /// Packs `key`'s batches from where its packs end up to sequence `end`, straight from the log.
    pub(super) async fn drain(&mut self, key: Key, end: u64) -> Result<()> {
        let mut reader = Intake::reader(&self.service, self.size.region_bytes);
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
            if frames.base().is_none() && next == from {
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
    ) -> Result<(Frames, u64)> {
        let mut frames = Frames::default();
        let mut at = offset;
        let mut held = 0;
        while held < self.size.region_bytes {
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
            for (_, frame) in here.filter(|(_, f)| f.base >= from && f.base < end) {
                frames.push(frame, self.size.run_bytes);
            }
            if frames.end().is_some_and(|last| last >= end) {
                break;
            }
            self.service.env.yield_if_needed().await;
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
        if is_discarded(stream) {
            return None;
        }
        let open = self.open.get(&key).map(|pack| pack.end);
        let end = open.or_else(|| self.closer.end(key));
        Some(end.unwrap_or(stream.packed_end()))
    }

    async fn push(&mut self, key: Key, frames: Frames) -> Result<()> {
        for run in frames.into_runs() {
            self.push_job(key, run).await?;
        }
        Ok(())
    }

    async fn push_job(&mut self, key: Key, frames: Vec<FrameRef>) -> Result<()> {
        let Some(last) = frames.last() else {
            return Ok(());
        };
        let end = last.end;
        self.check_room(frames.iter().map(FrameRef::packed_bytes).sum())
            .await?;
        let mut pack = match self.open.remove(&key) {
            Some(pack) => pack,
            None => self.begin(key).await?,
        };
        let job = move |pack: &mut Assembly| {
            frames
                .iter()
                .try_for_each(|frame| pack.push_frame(frame.bytes()))
        };
        pack.writer.run(job).await?;
        // Keys of tiny records can outgrow the records: LANE-4.
        let full = pack.writer.position() >= self.service.config.pack_bytes
            || pack.writer.buffered_bytes() >= self.service.lane.lane_bytes / 4;
        pack.end = end;
        self.open.insert(key, pack);
        if full { self.cut(key).await } else { Ok(()) }
    }

    /// Whether the bucket has room for `bytes` more, and for what packs in the making hold back. If not, these
    /// are made durable as they are: what is written of them was not written for nothing.
    async fn check_room(&mut self, bytes: u64) -> Result<()> {
        let held = self.open.values().map(|pack| pack.writer.buffered_bytes());
        let needed = bytes + held.sum::<usize>() as u64 + BESIDE_BYTES;
        let Err(full) = self.service.env.bucket().check_room(needed).await else {
            return Ok(());
        };
        while let Some(key) = self.open.keys().next().copied() {
            self.cut(key).await?;
        }
        self.closer.settle().await?;
        Err(full.into())
    }

    async fn begin(&self, key: Key) -> Result<OpenPack<E>> {
        let keyed = self.keyed(key.0);
        let kind = PackKind::Stream {
            feed: key.0,
            stream: key.1,
        };
        let mut writer = self.writer(kind).await?;
        writer
            .run(move |pack| pack.begin_section(key, keyed))
            .await?;
        Ok(OpenPack { writer, end: 0 })
    }

    async fn writer(&self, kind: PackKind) -> Result<PackWriter<E>> {
        let pool = self.pool.clone();
        PackWriter::begin(&self.service.env, kind, self.options, pool).await
    }

    fn keyed(&self, feed: FeedId) -> bool {
        let feeds = self.service.feeds.borrow();
        feeds.get(feed).is_some_and(|feed| feed.options.keys)
    }

    /// Ends the pack of `key`, if one is open; it is staged once it is durable.
    pub(super) async fn cut(&mut self, key: Key) -> Result<()> {
        let Some(pack) = self.open.remove(&key) else {
            return Ok(());
        };
        let closing = Closing {
            writer: pack.writer,
            stream: Some(key),
            ends: vec![(key, pack.end)],
        };
        self.closer.hand(closing).await
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

    /// Packs everything of the `quiet` streams between two log offsets into shared packs.
    pub(super) async fn share(&mut self, quiet: &[Key], from: u64, bound: u64) -> Result<()> {
        let mut gathered: BTreeMap<Key, Frames> =
            quiet.iter().map(|key| (*key, Frames::default())).collect();
        let mut reader = Intake::reader(&self.service, self.size.region_bytes);
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
                    frames.push(frame, self.size.run_bytes);
                }
            }
            self.service.env.yield_if_needed().await;
        }
        let sections = gathered
            .into_iter()
            .filter(|(_, frames)| frames.bytes() > 0);
        self.share_sections(sections.collect()).await
    }

    async fn share_sections(&mut self, sections: Vec<(Key, Frames)>) -> Result<()> {
        let log = self.service.wal.params().log;
        let mut left: u64 = sections
            .iter()
            .map(|(_, frames)| frames.packed_bytes())
            .sum();
        let mut sections = sections.into_iter().peekable();
        while sections.peek().is_some() {
            self.check_room(left.min(self.service.config.pack_bytes))
                .await?;
            let kind = PackKind::Shared { log };
            let mut writer = self.writer(kind).await?;
            let mut ends = Vec::new();
            while writer.position() < self.service.config.pack_bytes && sections.peek().is_some() {
                let (mut job, mut bytes) = (Vec::new(), 0);
                while bytes < self.size.run_bytes
                    && let Some((key, frames)) = sections.next()
                {
                    bytes += frames.bytes();
                    left -= frames.packed_bytes();
                    ends.extend(frames.end().map(|end| (key, end)));
                    job.push((key, self.keyed(key.0), frames));
                }
                writer.run(move |pack| add_sections(pack, job)).await?;
            }
            let closing = Closing {
                writer,
                stream: None,
                ends,
            };
            self.closer.hand(closing).await?;
        }
        Ok(())
    }
}

fn add_sections(
    pack: &mut Assembly,
    sections: Vec<(Key, bool, Frames)>,
) -> std::result::Result<(), PackError> {
    for (key, keyed, frames) in sections {
        pack.begin_section(key, keyed)?;
        frames
            .into_runs()
            .flatten()
            .try_for_each(|frame| pack.push_frame(frame.bytes()))?;
    }
    Ok(())
}
