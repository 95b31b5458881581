//! Chunk codec: the feeds of one checkpoint chunk as bytes. Spec: spec/checkpoint.md §3.
//!
//! **Invariants**
//! - CKPT-4: decode(encode(chunk)) gives the same state, volatile fields aside.

use super::options::FeedFlags;
use super::store::Doomed;
use super::{Closing, Feed, Feeds, Head, IndexEntry, Lineage, Stream, Totals};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{CommitNumber, Digest, Epoch, FeedId, StreamId};
use crate::producer::Producers;
use crate::subscription::{SUBSCRIPTIONS_ID, Subscriptions};
use crate::wal::entry::{Seal, flag, put_attributes, put_pack, take_pack, text};

/// Bit of a feed's first flag byte, whose bit 0 says that records may carry keys.
const FLAG_CLOSED: u8 = 2;
const FLAG_LINEAGE: u8 = 16;
const FLAG_ORDER: u8 = 32;

impl Feeds {
    /// The feeds of `chunk`, living and doomed.
    #[must_use]
    pub fn encode_chunk(&self, chunk: u64) -> Vec<u8> {
        let mut w = Writer::new();
        if chunk == Self::chunk_of(SUBSCRIPTIONS_ID) {
            self.subscriptions.encode(&mut w);
            return w.0;
        }
        let (first, last) = Self::ids_of(chunk);
        let feeds: Vec<_> = self
            .by_id
            .range(first..=last)
            .map(|(_, feed)| feed)
            .collect();
        w.u64(feeds.len() as u64);
        for feed in feeds {
            feed.encode(&mut w);
        }
        let doomed: Vec<_> = self.doomed.range(first..=last).collect();
        w.u64(doomed.len() as u64);
        for (id, doomed) in doomed {
            w.u64(id.0)
                .u64(doomed.time_ms)
                .bytes(doomed.name.as_bytes());
        }
        w.0
    }

    /// Adds what [`Feeds::encode_chunk`] wrote of `chunk`.
    ///
    /// # Errors
    /// [`DecodeError`] naming what is wrong; the state may be half changed then.
    pub fn decode_chunk(&mut self, chunk: u64, bytes: &[u8]) -> Result<(), DecodeError> {
        let mut r = Reader(bytes);
        if chunk == Self::chunk_of(SUBSCRIPTIONS_ID) {
            self.subscriptions = Subscriptions::decode(&mut r)?;
            return r.finish();
        }
        let (first, last) = Self::ids_of(chunk);
        let mut next = first.0;
        for _ in 0..r.u64()? {
            let feed = Feed::decode(&mut r)?;
            next = in_order(feed.id, next, last)?;
            if self.named(&feed.name).is_some() || self.get(feed.id).is_some() {
                return Err(invalid("feed name twice", feed.id.0));
            }
            self.insert(feed);
        }
        let mut next = first.0;
        for _ in 0..r.u64()? {
            let id = FeedId(r.u64()?);
            next = in_order(id, next, last)?;
            let time_ms = r.u64()?;
            let name = text(&mut r)?.into();
            self.doomed.insert(id, Doomed { time_ms, name });
        }
        r.finish()
    }

    fn ids_of(chunk: u64) -> (FeedId, FeedId) {
        use crate::limits::CHUNK_FEEDS;
        let (log, index) = (chunk >> 40, chunk & ((1 << 40) - 1));
        let first = (log << 48) | (index * CHUNK_FEEDS);
        (FeedId(first), FeedId(first | (CHUNK_FEEDS - 1)))
    }

    /// Counter of the next feed id, kept in the checkpoint's root.
    #[must_use]
    pub fn next_counter(&self) -> u64 {
        self.next_counter
    }

    pub(crate) fn set_next_counter(&mut self, counter: u64) {
        self.next_counter = self.next_counter.max(counter);
    }
}

/// Most lists of a feed have one item: memory per idle feed counts.
pub(super) fn reserve_first<T>(list: &mut Vec<T>) {
    if list.is_empty() {
        list.reserve_exact(1);
    }
}

fn invalid(field: &'static str, value: u64) -> DecodeError {
    DecodeError::Invalid { field, value }
}

/// Checks that a feed id is not below `next` and belongs to the chunk; the least id after it.
fn in_order(id: FeedId, next: u64, last: FeedId) -> Result<u64, DecodeError> {
    if id.0 < next || id > last {
        return Err(invalid("feed id", id.0));
    }
    id.0.checked_add(1).ok_or(invalid("feed id", id.0))
}

/// The first flag byte: whether records may carry keys, whether the feed is closed, whether a lineage
/// follows, and an order key.
fn take_first_flags(r: &mut Reader<'_>) -> Result<[bool; 4], DecodeError> {
    let flags = r.u8()?;
    if flags & !(1 | FLAG_CLOSED | FLAG_LINEAGE | FLAG_ORDER) != 0 {
        return Err(invalid("flag", flags.into()));
    }
    Ok([1, FLAG_CLOSED, FLAG_LINEAGE, FLAG_ORDER].map(|flag| flags & flag != 0))
}

impl Feed {
    fn encode(&self, w: &mut Writer) {
        w.u64(self.id.0).bytes(self.name.as_bytes());
        let options = &self.options;
        let closed = u8::from(self.closed.is_some()) * FLAG_CLOSED;
        let lineage = u8::from(self.lineage.is_some()) * FLAG_LINEAGE;
        let order = u8::from(self.order.is_some()) * FLAG_ORDER;
        w.u8(u8::from(options.keys) | closed | lineage | order)
            .u8(options.flags());
        put_attributes(w, options);
        if let Some(closing) = &self.closed {
            w.u64(closing.time_ms).bytes(&closing.note);
        }
        if let Some(lineage) = &self.lineage {
            lineage.encode(w);
        }
        if let Some(order) = &self.order {
            w.bytes(order);
        }
        w.u64(self.created_ms)
            .u64(self.epoch.0)
            .u64(self.next_sequence)
            .u64(self.next_stream.0);
        w.u64(self.last_arrival_ms)
            .u64(self.last_timestamp_ms)
            .u64(self.next_commit.0);
        w.u64(self.head.commits)
            .raw(&self.head.digest.0)
            .u64(self.head.end);
        w.u64(self.head.stream.0).u64(self.streams.len() as u64);
        for stream in &self.streams {
            stream.encode(w, options.rolling);
        }
        match &self.producers {
            Some(producers) => producers.encode(w),
            None => Producers::default().encode(w),
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = FeedId(r.u64()?);
        let name = text(r)?.into();
        let [keys, is_closed, has_lineage, has_order] = take_first_flags(r)?;
        let options = FeedFlags::take(r)?.options(keys, r)?;
        let closed = match is_closed {
            true => Some(Box::new(Closing {
                time_ms: r.u64()?,
                note: r.bytes()?.into(),
            })),
            false => None,
        };
        let lineage = match has_lineage {
            true => Some(Box::new(Lineage::decode(r)?)),
            false => None,
        };
        let order = match has_order {
            true => Some(r.bytes()?.into()),
            false => None,
        };
        let mut feed = Self {
            id,
            name,
            options,
            closed,
            lineage,
            order,
            created_ms: r.u64()?,
            epoch: Epoch(r.u64()?),
            next_sequence: r.u64()?,
            next_stream: StreamId(r.u64()?),
            last_arrival_ms: r.u64()?,
            last_timestamp_ms: r.u64()?,
            next_commit: CommitNumber(r.u64()?),
            head: Head {
                commits: r.u64()?,
                digest: Digest(r.array()?),
                end: r.u64()?,
                stream: StreamId(r.u64()?),
            },
            streams: Vec::new(),
            producers: None,
            last_group: 0,
            needed_cached: None,
            rolling_cached: None,
        };
        for _ in 0..r.u64()? {
            let stream = Stream::decode(r, feed.options.rolling)?;
            let before = feed.streams.last();
            let fits = before.is_none_or(|b| b.id < stream.id && b.end <= stream.first);
            if !fits || stream.end < stream.first {
                return Err(invalid("stream order", stream.id.0));
            }
            reserve_first(&mut feed.streams);
            feed.streams.push(stream);
        }
        let producers = Producers::decode(r)?;
        feed.producers = (!producers.is_empty()).then(|| Box::new(producers));
        Ok(feed)
    }
}

impl Stream {
    /// `rolling`: of a feed whose streams roll.
    fn encode(&self, w: &mut Writer, rolling: bool) {
        w.u64(self.id.0)
            .u64(self.epoch.0)
            .u64(self.first)
            .u64(self.end);
        w.u64(self.totals.records).u64(self.totals.payload_bytes);
        w.u64(self.totals.first_timestamp_ms)
            .u64(self.totals.max_timestamp_ms);
        if rolling {
            w.u64(self.first_arrival_ms);
        }
        w.u8(u8::from(self.seal.is_some()));
        if let Some(seal) = &self.seal {
            seal.encode(w);
        }
        w.u8(u8::from(self.manifest.is_some()));
        if let Some(manifest) = &self.manifest {
            w.raw(&manifest.0);
        }
        w.u64(self.packs.len() as u64);
        for pack in &self.packs {
            put_pack(w, pack);
        }
        w.u64(self.index.len() as u64);
        for entry in &self.index {
            w.u64(entry.sequence).u64(entry.offset);
        }
    }

    fn decode(r: &mut Reader<'_>, rolling: bool) -> Result<Self, DecodeError> {
        let mut stream = Self {
            id: StreamId(r.u64()?),
            epoch: Epoch(r.u64()?),
            first: r.u64()?,
            end: r.u64()?,
            totals: Totals {
                records: r.u64()?,
                payload_bytes: r.u64()?,
                first_timestamp_ms: r.u64()?,
                max_timestamp_ms: r.u64()?,
            },
            first_arrival_ms: match rolling {
                true => r.u64()?,
                false => 0,
            },
            seal: None,
            manifest: None,
            packs: Vec::new(),
            index: Vec::new(),
        };
        if flag(r)? {
            stream.seal = Some(Box::new(Seal::decode(r)?));
        }
        if flag(r)? {
            stream.manifest = Some(Digest(r.array()?));
        }
        for _ in 0..r.u64()? {
            reserve_first(&mut stream.packs);
            stream.packs.push(take_pack(r)?);
        }
        for _ in 0..r.u64()? {
            reserve_first(&mut stream.index);
            stream.index.push(IndexEntry {
                sequence: r.u64()?,
                offset: r.u64()?,
            });
        }
        Ok(stream)
    }
}
