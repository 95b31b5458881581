//! Entry: what a group holds: batches and every other change of state. Spec: spec/wal.md §3.
//!
//! **Invariants**
//! - WAL-5: folding all entries in order gives the state; entries carry all times, the fold reads no clock.
//! - WAL-6: every entry starts on an 8-byte boundary of its group; padding is zero.

use crate::codec::{DecodeError, Reader, Writer};
use crate::commit::{CommitKind, PackPlace, PackRef};
use crate::env::AlignedBuf;
use crate::feed::{Base, FeedFlags, FeedOptions, Pin};
use crate::ids::{CommitNumber, Digest, Epoch, FeedId, LogId, PinId, Sequence, StreamId};
use crate::subscription::{KIND_FIRST, KIND_LAST, SubscriptionChange};

/// Bytes before an entry's payload.
pub const ENTRY_HEADER_BYTES: usize = 24;

const KIND_BATCH: u16 = 1;
const KIND_FEED_CREATED: u16 = 2;
const KIND_FEED_DELETED: u16 = 3;
const KIND_FEED_CLEANED: u16 = 4;
const KIND_STREAM_OPENED: u16 = 5;
const KIND_EPOCH_RAISED: u16 = 6;
const KIND_STREAM_SEALED: u16 = 7;
const KIND_PACK_STAGED: u16 = 8;
const KIND_MANIFEST_LOGGED: u16 = 9;
const KIND_PUBLISHED: u16 = 10;
const KIND_PRODUCER_EVICTED: u16 = 11;
const KIND_ROLLED: u16 = 12;
const KIND_FEED_CLOSED: u16 = 13;
const KIND_FEED_FORKED: u16 = 14;
const KIND_PINNED: u16 = 15;
const KIND_UNPINNED: u16 = 16;
const KIND_ORDERED: u16 = 17;

/// What a seal fixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// Number of the commit it becomes.
    pub number: CommitNumber,
    /// Sealed or discarded.
    pub kind: CommitKind,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The commit message.
    pub message: String,
}

/// What a fork's time goes on from: the source's, when it was pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ground {
    /// Highest arrival time stamped.
    pub last_arrival_ms: u64,
    /// Highest effective timestamp.
    pub last_timestamp_ms: u64,
}

/// How a fork is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forked {
    /// Its name.
    pub name: String,
    /// How it is made.
    pub options: FeedOptions,
    /// When.
    pub time_ms: u64,
    /// Where it goes on from.
    pub base: Base,
    /// What its time goes on from.
    pub ground: Ground,
}

/// Every change of state but a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The feed exists from here on.
    FeedCreated {
        /// Its name.
        name: String,
        /// How it is made.
        options: FeedOptions,
        /// When.
        time_ms: u64,
    },
    /// The feed exists from here on, and goes on from another.
    FeedForked(Box<Forked>),
    /// The feed's range is kept for a fork.
    Pinned {
        /// Which pin.
        id: PinId,
        /// What it keeps, and for whom.
        pin: Pin,
    },
    /// The fork is gone, or never came about.
    Unpinned {
        /// Which pin.
        id: PinId,
        /// When: a deleted feed goes with its last pin.
        time_ms: u64,
    },
    /// The feed takes no more batches, and no stream opens in it any more.
    FeedClosed {
        /// What whoever closed it keeps with that.
        note: Box<[u8]>,
        /// When.
        time_ms: u64,
    },
    /// The batch before it came with this order key: the next that comes with one has a greater.
    Ordered {
        /// The key.
        key: Box<[u8]>,
    },
    /// The feed is gone; its objects are garbage from `time_ms` on.
    FeedDeleted {
        /// When.
        time_ms: u64,
    },
    /// The objects of a deleted feed are gone.
    FeedCleaned,
    /// A stream opened under a new epoch.
    StreamOpened {
        /// The writer's epoch.
        epoch: Epoch,
    },
    /// A writer took over the stream without opening another.
    EpochRaised {
        /// The writer's epoch.
        epoch: Epoch,
    },
    /// The stream takes no more batches and becomes a commit.
    StreamSealed(Seal),
    /// Sealed, and the next stream opened under the same epoch.
    Rolled(Seal),
    /// A pack is durable in the bucket.
    PackStaged(PackRef),
    /// Manifest and key index of a sealed stream are durable in the bucket.
    ManifestLogged {
        /// Digest of the manifest.
        digest: Digest,
    },
    /// The commit object exists.
    Published {
        /// Digest of the commit object.
        digest: Digest,
    },
    /// A producer is forgotten.
    ProducerEvicted {
        /// Its id.
        id: Vec<u8>,
    },
    /// Something of a subscription. The entry's feed is none: all ones.
    Subscription {
        /// Its name.
        name: String,
        /// What.
        change: SubscriptionChange,
    },
}

/// An entry as it lies in a group.
#[derive(Debug, Clone, Copy)]
pub struct EntryRef<'a> {
    kind: u16,
    /// Feed it belongs to.
    pub feed: FeedId,
    /// Stream it belongs to; 0 for entries about the feed.
    pub stream: StreamId,
    payload: &'a [u8],
}

/// An entry, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A batch frame, as stamped.
    Batch(&'a [u8]),
    /// A change of state.
    Change(Change),
}

impl<'a> EntryRef<'a> {
    /// The frame, if the entry is a batch.
    #[must_use]
    pub fn frame(&self) -> Option<&'a [u8]> {
        (self.kind == KIND_BATCH).then_some(self.payload)
    }

    /// Decodes the payload.
    ///
    /// # Errors
    /// [`DecodeError`] naming what is wrong.
    pub fn decode(&self) -> Result<Entry<'a>, DecodeError> {
        if self.kind == KIND_BATCH {
            return Ok(Entry::Batch(self.payload));
        }
        decode_change(self.kind, self.payload).map(Entry::Change)
    }
}

/// Appends a batch entry to a group buffer.
pub fn put_batch(buf: &mut AlignedBuf, feed: FeedId, stream: StreamId, frame: &[u8]) {
    put_header(buf, KIND_BATCH, feed, stream, frame.len());
    buf.extend_from_slice(frame);
    pad8(buf);
}

/// Appends a change to a group buffer.
pub fn put_change(buf: &mut AlignedBuf, feed: FeedId, stream: StreamId, change: &Change) {
    let (kind, payload) = encode_change(change);
    put_header(buf, kind, feed, stream, payload.len());
    buf.extend_from_slice(&payload);
    pad8(buf);
}

/// Bytes that an entry with a payload of `len` takes.
#[must_use]
pub fn entry_bytes(len: usize) -> usize {
    ENTRY_HEADER_BYTES + len.next_multiple_of(8)
}

/// Bytes that `change` takes as an entry.
#[must_use]
pub fn change_bytes(change: &Change) -> usize {
    entry_bytes(encode_change(change).1.len())
}

fn put_header(buf: &mut AlignedBuf, kind: u16, feed: FeedId, stream: StreamId, len: usize) {
    let len = u32::try_from(len).expect("entry below 4 GiB");
    let mut header = [0; ENTRY_HEADER_BYTES];
    header[..4].copy_from_slice(&len.to_le_bytes());
    header[4..6].copy_from_slice(&kind.to_le_bytes());
    header[8..16].copy_from_slice(&feed.0.to_le_bytes());
    header[16..].copy_from_slice(&stream.0.to_le_bytes());
    buf.extend_from_slice(&header);
}

fn pad8(buf: &mut AlignedBuf) {
    buf.resize(buf.len().next_multiple_of(8));
}

/// Iterates the entries of a group's body. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> Entries<'a> {
    /// Entries of `body`, which begins right after the group header.
    #[must_use]
    pub fn new(body: &'a [u8]) -> Self {
        Self {
            reader: Reader(body),
            failed: false,
        }
    }

    fn take(&mut self) -> Result<EntryRef<'a>, DecodeError> {
        let r = &mut self.reader;
        let len = r.u32()? as usize;
        let kind = r.u16()?;
        let reserved = r.u16()?;
        if reserved != 0 {
            return Err(DecodeError::Invalid {
                field: "entry reserved",
                value: u64::from(reserved),
            });
        }
        let (feed, stream) = (FeedId(r.u64()?), StreamId(r.u64()?));
        let payload = r.raw(len)?;
        let padding = r.raw(len.next_multiple_of(8) - len)?;
        if padding.iter().any(|&byte| byte != 0) {
            return Err(DecodeError::Invalid {
                field: "entry padding",
                value: 1,
            });
        }
        Ok(EntryRef {
            kind,
            feed,
            stream,
            payload,
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<EntryRef<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.0.is_empty() {
            return None;
        }
        let entry = self.take();
        self.failed = entry.is_err();
        Some(entry)
    }
}

fn encode_change(change: &Change) -> (u16, Vec<u8>) {
    let mut w = Writer::new();
    let kind = match change {
        Change::FeedCreated {
            name,
            options,
            time_ms,
        } => {
            w.u8(u8::from(options.keys))
                .u8(options.flags())
                .u64(*time_ms)
                .bytes(name.as_bytes());
            put_attributes(&mut w, options);
            KIND_FEED_CREATED
        }
        Change::FeedForked(forked) => forked.encode(&mut w),
        Change::Pinned { id, pin } => put_pinned(&mut w, *id, pin),
        Change::Unpinned { id, time_ms } => put_unpinned(&mut w, *id, *time_ms),
        Change::FeedClosed { note, time_ms } => put_closed(&mut w, note, *time_ms),
        Change::Ordered { key } => {
            w.bytes(key);
            KIND_ORDERED
        }
        Change::FeedDeleted { time_ms } => {
            w.u64(*time_ms);
            KIND_FEED_DELETED
        }
        Change::FeedCleaned => KIND_FEED_CLEANED,
        Change::StreamOpened { epoch } => {
            w.u64(epoch.0);
            KIND_STREAM_OPENED
        }
        Change::EpochRaised { epoch } => {
            w.u64(epoch.0);
            KIND_EPOCH_RAISED
        }
        Change::StreamSealed(seal) => {
            seal.encode(&mut w);
            KIND_STREAM_SEALED
        }
        Change::Rolled(seal) => {
            seal.encode(&mut w);
            KIND_ROLLED
        }
        Change::PackStaged(pack) => {
            put_pack(&mut w, pack);
            KIND_PACK_STAGED
        }
        Change::ManifestLogged { digest } => {
            w.raw(&digest.0);
            KIND_MANIFEST_LOGGED
        }
        Change::Published { digest } => {
            w.raw(&digest.0);
            KIND_PUBLISHED
        }
        Change::ProducerEvicted { id } => {
            w.bytes(id);
            KIND_PRODUCER_EVICTED
        }
        Change::Subscription { name, change } => change.encode(name, &mut w),
    };
    (kind, w.0)
}

fn put_closed(w: &mut Writer, note: &[u8], time_ms: u64) -> u16 {
    w.u64(time_ms).bytes(note);
    KIND_FEED_CLOSED
}

fn decode_change(kind: u16, payload: &[u8]) -> Result<Change, DecodeError> {
    let mut r = Reader(payload);
    let change = match kind {
        KIND_FEED_CREATED => {
            let keys = flag(&mut r)?;
            let flags = FeedFlags::take(&mut r)?;
            let time_ms = r.u64()?;
            Change::FeedCreated {
                name: text(&mut r)?,
                options: flags.options(keys, &mut r)?,
                time_ms,
            }
        }
        KIND_FEED_FORKED => Change::FeedForked(Box::new(Forked::decode(&mut r)?)),
        KIND_PINNED => Change::Pinned {
            id: PinId(r.u64()?),
            pin: Pin::decode(&mut r)?,
        },
        KIND_UNPINNED => Change::Unpinned {
            id: PinId(r.u64()?),
            time_ms: r.u64()?,
        },
        KIND_FEED_CLOSED => Change::FeedClosed {
            time_ms: r.u64()?,
            note: r.bytes()?.into(),
        },
        KIND_ORDERED => Change::Ordered {
            key: r.bytes()?.into(),
        },
        KIND_FEED_DELETED => Change::FeedDeleted { time_ms: r.u64()? },
        KIND_FEED_CLEANED => Change::FeedCleaned,
        KIND_STREAM_OPENED => Change::StreamOpened {
            epoch: Epoch(r.u64()?),
        },
        KIND_EPOCH_RAISED => Change::EpochRaised {
            epoch: Epoch(r.u64()?),
        },
        KIND_STREAM_SEALED => Change::StreamSealed(Seal::decode(&mut r)?),
        KIND_ROLLED => Change::Rolled(Seal::decode(&mut r)?),
        KIND_PACK_STAGED => Change::PackStaged(take_pack(&mut r)?),
        KIND_MANIFEST_LOGGED => Change::ManifestLogged {
            digest: Digest(r.array()?),
        },
        KIND_PUBLISHED => Change::Published {
            digest: Digest(r.array()?),
        },
        KIND_PRODUCER_EVICTED => Change::ProducerEvicted {
            id: r.bytes()?.to_vec(),
        },
        KIND_FIRST..=KIND_LAST => {
            let (name, change) = SubscriptionChange::decode(kind, &mut r)?;
            Change::Subscription { name, change }
        }
        other => {
            return Err(DecodeError::Invalid {
                field: "entry kind",
                value: u64::from(other),
            });
        }
    };
    r.finish()?;
    Ok(change)
}

/// A byte that is 0 or 1.
pub(crate) fn flag(r: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(DecodeError::Invalid {
            field: "flag",
            value: u64::from(value),
        }),
    }
}

/// Length-prefixed UTF-8.
pub(crate) fn text(r: &mut Reader<'_>) -> Result<String, DecodeError> {
    let bytes = r.bytes()?;
    String::from_utf8(bytes.to_vec()).map_err(|e| DecodeError::Invalid {
        field: "text",
        value: e.utf8_error().valid_up_to() as u64,
    })
}

/// A feed's attributes, if there are any.
pub(crate) fn put_attributes(w: &mut Writer, options: &FeedOptions) {
    if !options.attributes.is_empty() {
        w.bytes(&options.attributes);
    }
}

fn put_pinned(w: &mut Writer, id: PinId, pin: &Pin) -> u16 {
    w.u64(id.0);
    pin.encode(w);
    KIND_PINNED
}

fn put_unpinned(w: &mut Writer, id: PinId, time_ms: u64) -> u16 {
    w.u64(id.0).u64(time_ms);
    KIND_UNPINNED
}

impl Forked {
    fn encode(&self, w: &mut Writer) -> u16 {
        w.u8(u8::from(self.options.keys))
            .u8(self.options.flags())
            .u64(self.time_ms)
            .u64(self.ground.last_arrival_ms)
            .u64(self.ground.last_timestamp_ms)
            .bytes(self.name.as_bytes());
        self.base.encode(w);
        put_attributes(w, &self.options);
        KIND_FEED_FORKED
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let keys = flag(r)?;
        let flags = FeedFlags::take(r)?;
        let time_ms = r.u64()?;
        let ground = Ground {
            last_arrival_ms: r.u64()?,
            last_timestamp_ms: r.u64()?,
        };
        let name = text(r)?;
        let base = Base::decode(r)?;
        Ok(Self {
            name,
            options: flags.options(keys, r)?,
            time_ms,
            base,
            ground,
        })
    }
}

impl Seal {
    pub(crate) fn encode(&self, w: &mut Writer) {
        let kind = match self.kind {
            CommitKind::Sealed => 0,
            CommitKind::Discarded => 1,
        };
        w.u64(self.number.0)
            .u8(kind)
            .u64(self.time_ms)
            .bytes(self.message.as_bytes());
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let number = CommitNumber(r.u64()?);
        let kind = if flag(r)? {
            CommitKind::Discarded
        } else {
            CommitKind::Sealed
        };
        Ok(Self {
            number,
            kind,
            time_ms: r.u64()?,
            message: text(r)?,
        })
    }
}

pub(crate) fn put_pack(w: &mut Writer, pack: &PackRef) {
    match pack.place {
        PackPlace::Stream => w.u8(0).u64(0),
        PackPlace::Shared(log) => w.u8(1).u64(log.0),
    };
    w.raw(&pack.digest.0)
        .u64(pack.pack_bytes)
        .u64(pack.first.0)
        .u64(pack.end.0);
    w.u64(pack.records).u64(pack.payload_bytes);
    w.u64(pack.first_timestamp_ms)
        .u64(pack.max_timestamp_ms)
        .raw(&pack.merkle_root);
}

pub(crate) fn take_pack(r: &mut Reader<'_>) -> Result<PackRef, DecodeError> {
    let shared = flag(r)?;
    let log = LogId(r.u64()?);
    let place = match (shared, log) {
        (true, log) => PackPlace::Shared(log),
        (false, LogId(0)) => PackPlace::Stream,
        (false, LogId(value)) => {
            let field = "pack log";
            return Err(DecodeError::Invalid { field, value });
        }
    };
    Ok(PackRef {
        place,
        digest: Digest(r.array()?),
        pack_bytes: r.u64()?,
        first: Sequence(r.u64()?),
        end: Sequence(r.u64()?),
        records: r.u64()?,
        payload_bytes: r.u64()?,
        first_timestamp_ms: r.u64()?,
        max_timestamp_ms: r.u64()?,
        merkle_root: r.array()?,
    })
}
