//! Fold: applies one log entry to the state. The same function runs at admission and in recovery.
//!
//! **Invariants**
//! - WAL-5: no clock, no chance; the entry and where it lies are all there is.
//! - An entry that does not fit the state is an error, never a panic: in recovery it comes from disk.
//!
//! **Not here**: deciding which entries to write (`append`).

use sealog_frame::FrameView;

use super::codec::reserve_first;
use super::{Closing, Feed, Feeds, Head, IndexEntry, Stream, Totals};
use crate::commit::{CommitKind, PackRef};
use crate::ids::{CommitNumber, FeedId, StreamId};
use crate::limits::PRODUCER_RANGES_PER_LOG_MAX;
use crate::producer::ProducerState;
use crate::subscription::SUBSCRIPTIONS_ID;
use crate::wal::entry::{Change, Entry, EntryRef, Seal};
use crate::wal::log::Position;
use crate::wal::segment::Geometry;

/// A stream's index gets an entry no closer than this to the one before, in bytes of log.
const INDEX_STRIDE_BYTES: u64 = 256 << 10;

/// Why an entry does not fit: damage, or a bug.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry does not fit the state: {0}")]
pub struct Misfit(pub String);

type Fold = Result<(), Misfit>;

fn misfit<T>(text: impl Into<String>) -> Result<T, Misfit> {
    Err(Misfit(text.into()))
}

impl Feeds {
    /// Applies the entry at `at`.
    ///
    /// # Errors
    /// [`Misfit`]; the state may be half changed then, and must be thrown away.
    pub fn apply(&mut self, entry: &EntryRef<'_>, at: Position) -> Fold {
        let decoded = entry.decode().map_err(|error| Misfit(error.to_string()))?;
        match decoded {
            Entry::Batch(frame) => {
                let view = FrameView::trusted(frame).map_err(|e| Misfit(e.to_string()))?;
                self.apply_batch(entry.feed, entry.stream, &view, at)
            }
            Entry::Change(change) => self.apply_change(entry.feed, entry.stream, &change, at),
        }
    }

    /// Applies a stamped batch.
    ///
    /// # Errors
    /// As [`Feeds::apply`].
    pub fn apply_batch(
        &mut self,
        id: FeedId,
        stream: StreamId,
        frame: &FrameView<'_>,
        at: Position,
    ) -> Fold {
        let geometry = self.geometry;
        let remember = self.producer_ranges() < PRODUCER_RANGES_PER_LOG_MAX;
        let feed = self.fold_target(id, at)?;
        let ranges_before = feed.producers.as_ref().map_or(0, |p| p.ranges());
        feed.take_batch(stream, frame, remember)?;
        feed.index_batch(stream, frame.base_sequence(), at.offset, geometry);
        let ranges_after = feed.producers.as_ref().map_or(0, |p| p.ranges());
        let needed = feed.needed_cached.is_some();
        let begins = feed.options.rolling && feed.rolling_cached.is_none();
        self.count_ranges(ranges_before, ranges_after);
        // A batch lies behind all that the feed needs already, and seals nothing.
        if !needed || begins {
            self.refresh(id);
        }
        Ok(())
    }

    /// Applies a change.
    ///
    /// # Errors
    /// As [`Feeds::apply`].
    pub fn apply_change(
        &mut self,
        id: FeedId,
        stream: StreamId,
        change: &Change,
        at: Position,
    ) -> Fold {
        match change {
            Change::FeedCreated { .. } => self.create(id, change, at),
            Change::FeedForked(forked) => self.fork(id, forked, at),
            Change::Pinned { id: pin, pin: what } => self.pin(id, (*pin, what), at),
            Change::Unpinned { id: pin, time_ms } => self.unpin(id, *pin, *time_ms, at),
            Change::FeedDeleted { time_ms } => self.delete(id, *time_ms, at),
            Change::FeedCleaned => self.cleaned(id, at),
            Change::Subscription { name, change } => {
                self.mark(SUBSCRIPTIONS_ID);
                self.subscriptions.apply(name, change).map_err(Misfit)
            }
            Change::ProducerEvicted { id: producer } => {
                let feed = self.fold_target(id, at)?;
                let before = feed.producers.as_ref().map_or(0, |p| p.ranges());
                if let Some(producers) = &mut feed.producers {
                    producers.evict(producer);
                }
                let after = feed.producers.as_ref().map_or(0, |p| p.ranges());
                self.count_ranges(before, after);
                Ok(())
            }
            _ => {
                self.fold_target(id, at)?.change(stream, change)?;
                self.refresh(id);
                Ok(())
            }
        }
    }
}

impl Feed {
    fn change(&mut self, stream: StreamId, change: &Change) -> Fold {
        match change {
            Change::StreamOpened { epoch } => {
                if *epoch < self.epoch {
                    return misfit(format!("epoch {epoch} after {}", self.epoch));
                }
                self.epoch = *epoch;
                self.open(stream)
            }
            Change::EpochRaised { epoch } => {
                if *epoch <= self.epoch {
                    return misfit(format!("epoch {epoch} after {}", self.epoch));
                }
                self.epoch = *epoch;
                Ok(())
            }
            Change::StreamSealed(seal) => self.seal(stream, seal),
            Change::Rolled(seal) => {
                self.seal(stream, seal)?;
                self.open(self.next_stream)
            }
            Change::PackStaged(pack) => self.stage(stream, pack),
            Change::ManifestLogged { digest } => {
                let stream = self.find(stream)?;
                if !stream.is_sealed() {
                    return misfit(format!("manifest of unsealed stream {}", stream.id));
                }
                stream.manifest = Some(*digest);
                Ok(())
            }
            Change::Published { digest } => self.published(stream, *digest),
            Change::FeedClosed { note, time_ms } => self.close(note, *time_ms),
            Change::Ordered { key } => self.advance_order(key),
            Change::FeedCreated { .. }
            | Change::FeedForked(_)
            | Change::Pinned { .. }
            | Change::Unpinned { .. }
            | Change::FeedDeleted { .. }
            | Change::FeedCleaned
            | Change::Subscription { .. }
            | Change::ProducerEvicted { .. } => misfit("change of the feed itself"),
        }
    }

    fn find(&mut self, id: StreamId) -> Result<&mut Stream, Misfit> {
        let feed = self.id;
        self.stream_mut(id)
            .ok_or_else(|| Misfit(format!("no stream {id} in feed id {feed}")))
    }

    fn close(&mut self, note: &[u8], time_ms: u64) -> Fold {
        if self.closed.is_some() {
            return misfit("feed closed twice");
        }
        self.closed = Some(Box::new(Closing {
            time_ms,
            note: note.into(),
        }));
        Ok(())
    }

    fn advance_order(&mut self, key: &[u8]) -> Fold {
        if self.order.as_deref().is_some_and(|last| key <= last) {
            return misfit("order key that is not above the last");
        }
        self.order = Some(key.into());
        Ok(())
    }

    fn open(&mut self, id: StreamId) -> Fold {
        if self.closed.is_some() || self.is_gone() {
            return misfit(format!("stream {id} opened in a closed or deleted feed"));
        }
        if id != self.next_stream {
            return misfit(format!("stream {id} opened, {} is next", self.next_stream));
        }
        self.next_stream = StreamId(id.0 + 1);
        // Most feeds have one unpublished stream: 100,000 quiet feeds should not pay for four.
        reserve_first(&mut self.streams);
        self.streams.push(Stream {
            id,
            epoch: self.epoch,
            first: self.next_sequence,
            end: self.next_sequence,
            totals: Totals::default(),
            first_arrival_ms: 0,
            seal: None,
            manifest: None,
            packs: Vec::new(),
            index: Vec::new(),
        });
        Ok(())
    }

    fn take_batch(&mut self, id: StreamId, frame: &FrameView<'_>, remember: bool) -> Fold {
        if frame.base_sequence() != self.next_sequence {
            let (base, next) = (frame.base_sequence(), self.next_sequence);
            return misfit(format!("batch at sequence {base}, {next} is next"));
        }
        if self.closed.is_some() || self.is_gone() {
            return misfit("batch into a closed or deleted feed");
        }
        let end = frame.end_sequence();
        if end <= frame.base_sequence() {
            return misfit("batch without records");
        }
        let last_timestamp_ms = frame.last_timestamp_ms();
        let first_timestamp_ms = frame.record(0).map_or(0, |record| record.timestamp_ms);
        let rolling = self.options.rolling;
        let stream = self.find(id)?;
        if stream.is_sealed() || stream.end != frame.base_sequence() {
            return misfit(format!(
                "batch into stream {id} that ends at {}",
                stream.end
            ));
        }
        if stream.totals.records == 0 {
            stream.totals.first_timestamp_ms = first_timestamp_ms;
            stream.first_arrival_ms = u64::from(rolling) * frame.arrival_ms();
        }
        stream.end = end;
        stream.totals.records += frame.record_count() as u64;
        stream.totals.payload_bytes += frame.payload_bytes();
        stream.totals.max_timestamp_ms = last_timestamp_ms.max(stream.totals.max_timestamp_ms);
        self.next_sequence = end;
        self.last_arrival_ms = self.last_arrival_ms.max(frame.arrival_ms());
        self.last_timestamp_ms = self.last_timestamp_ms.max(last_timestamp_ms);
        if let Some(producer) = frame.producer() {
            let state = ProducerState {
                epoch: producer.epoch,
                last_sequence: producer.sequence,
                last_updated_ms: frame.arrival_ms(),
                last_range: (frame.base_sequence(), end - 1),
            };
            self.producers
                .get_or_insert_default()
                .accept(producer.id, state, remember);
        }
        Ok(())
    }

    /// Adds to the stream's sparse log index. The first batch in a segment always gets an entry, so
    /// that what is packed up to a segment's end never holds that segment back.
    pub(super) fn index_batch(
        &mut self,
        id: StreamId,
        sequence: u64,
        offset: u64,
        geometry: Geometry,
    ) {
        let Some(stream) = self.stream_mut(id) else {
            return;
        };
        let entry = IndexEntry { sequence, offset };
        match stream.index.last() {
            None => stream.index = vec![entry],
            Some(last) => {
                let near = offset < last.offset + INDEX_STRIDE_BYTES;
                let same = geometry.segment_of(offset) == geometry.segment_of(last.offset);
                if !(near && same) {
                    stream.index.push(entry);
                }
            }
        }
    }

    fn seal(&mut self, id: StreamId, seal: &Seal) -> Fold {
        let older = self
            .streams
            .iter()
            .find(|s| s.id < id && !s.is_sealed())
            .map(|s| s.id);
        if let Some(older) = older {
            return misfit(format!("stream {id} sealed before {older}"));
        }
        if seal.number != self.next_commit {
            return misfit(format!(
                "commit {} sealed, {} is next",
                seal.number, self.next_commit
            ));
        }
        let epoch = self.epoch;
        let stream = self.find(id)?;
        if stream.is_sealed() {
            return misfit(format!("stream {id} sealed twice"));
        }
        stream.epoch = epoch;
        stream.seal = Some(Box::new(seal.clone()));
        if seal.kind == CommitKind::Discarded {
            stream.packs.clear();
            stream.index = Vec::new();
        }
        self.next_commit = CommitNumber(seal.number.0 + 1);
        Ok(())
    }

    fn stage(&mut self, id: StreamId, pack: &PackRef) -> Fold {
        let stream = self.find(id)?;
        if pack.first.0 != stream.packed_end() || pack.end.0 > stream.end {
            let (first, end, at) = (pack.first, pack.end, stream.packed_end());
            return misfit(format!(
                "pack {first}..{end} staged, stream {id} is packed to {at}"
            ));
        }
        reserve_first(&mut stream.packs);
        stream.packs.push(pack.clone());
        let at = stream
            .index
            .partition_point(|entry| entry.sequence <= pack.end.0);
        stream.index.drain(..at.saturating_sub(1));
        if stream.packed_end() == stream.end {
            stream.index = Vec::new();
        }
        Ok(())
    }

    fn published(&mut self, id: StreamId, digest: crate::ids::Digest) -> Fold {
        let oldest = self.streams.first().map(|stream| stream.id);
        if oldest != Some(id) {
            return misfit(format!("stream {id} published, the oldest is {oldest:?}"));
        }
        let stream = self.streams.remove(0);
        let discarded = stream
            .seal
            .as_ref()
            .is_some_and(|s| s.kind == CommitKind::Discarded);
        if stream.manifest.is_none() && !discarded {
            return misfit(format!("stream {id} published without manifest"));
        }
        let commits = self.head.commits + 1;
        self.head = Head {
            commits,
            digest,
            end: stream.end,
            stream: id,
        };
        Ok(())
    }
}
