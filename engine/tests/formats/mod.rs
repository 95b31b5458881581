//! Formats: one small value of every kind, which golden files pin and properties mutate.
//!
//! **Invariants**
//! - Fixed: a value here never changes once its golden file is written.
//!
//! **Not here**: the tests (`golden_formats`, `formats_properties`).
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use sealog_engine::commit::{Commit, CommitKind, KeyIndexRef, Manifest, PackPlace, PackRef};
use sealog_engine::ids::{CommitNumber, Digest, Epoch, FeedId, LogId, Sequence, StreamId};
use sealog_engine::pack::keys::index::{KeyIndexBuilder, KeyIndexOptions};
use sealog_engine::pack::keys::{KeyEntry, KeyState};
use sealog_engine::pack::{PackBuilder, PackKind, PackOptions, PackSummary};
use sealog_frame::{
    BatchBuilder, FrameLimits, FrameView, Record, Stamp, TimestampMode, seal_sparse, stamp,
};

pub const FEED: FeedId = FeedId(3 << 48 | 21);
pub const STREAM: StreamId = StreamId(4);
const TIME_MS: u64 = 1_700_000_000_000;

/// A stamped frame of these records from sequence `base` on.
pub fn frame(base: u64, records: &[Record<'_>]) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    records.iter().for_each(|r| builder.push(r).unwrap());
    let mut bytes = builder.build().unwrap().into_bytes();
    let stamped = Stamp {
        base_sequence: base,
        arrival_ms: TIME_MS + base,
        timestamp_floor_ms: TIME_MS,
        epoch: 2,
        mode: TimestampMode::ClientPrefer,
        cap: false,
    };
    stamp(&mut bytes, &stamped);
    bytes
}

/// A SPARSE frame: sequences `base` and `base + 2`.
fn sparse(base: u64) -> Vec<u8> {
    let whole = frame(
        base,
        &[
            Record::of(b"kept"),
            Record::of(b"gone"),
            Record::of(b"kept too"),
        ],
    );
    let view = FrameView::trusted(&whole).unwrap();
    let kept = view.records().filter(|record| record.sequence != base + 1);
    seal_sparse(&view.server_stamp(), kept, &FrameLimits::DEFAULT).unwrap()
}

pub fn finish(builder: PackBuilder) -> (Vec<u8>, PackSummary) {
    let (parts, summary) = builder.finish().unwrap();
    (
        parts.iter().flat_map(|part| part.to_vec()).collect(),
        summary,
    )
}

/// Two blocks: three frames and, beyond the block size, one more.
pub fn stream_pack() -> (Vec<u8>, PackSummary) {
    let kind = PackKind::Stream {
        feed: FEED,
        stream: STREAM,
    };
    let block_bytes = 700;
    let options = PackOptions {
        block_bytes,
        ..PackOptions::default()
    };
    let mut builder = PackBuilder::new(kind, options);
    builder.begin_section(FEED, STREAM, false).unwrap();
    let fingerprinted = Record {
        fingerprint: Some([0x5a; 32]),
        ..Record::of(b"supplied")
    };
    builder
        .push_frame(&frame(100, &[Record::of(b""), fingerprinted]))
        .unwrap();
    builder
        .push_frame(&frame(102, &[Record::of(b"one more")]))
        .unwrap();
    builder.push_frame(&sparse(110)).unwrap();
    finish(builder)
}

/// Sections of a plain feed, a keyed one, and a keyed one without keys.
pub fn shared_pack() -> (Vec<u8>, PackSummary) {
    let kind = PackKind::Shared { log: LogId(8) };
    let mut builder = PackBuilder::new(kind, PackOptions::default());
    builder
        .begin_section(FeedId(1), StreamId(1), false)
        .unwrap();
    builder
        .push_frame(&frame(0, &[Record::of(b"plain")]))
        .unwrap();
    builder.begin_section(FEED, STREAM, true).unwrap();
    let tombstone = Record {
        tombstone: true,
        headers: vec![(b"why", b"left")],
        ..Record::keyed(b"b", 2, b"")
    };
    let records = [
        Record::keyed(b"b", 1, b"x"),
        tombstone,
        Record::keyed(b"", -1, b"y"),
    ];
    builder.push_frame(&frame(7, &records)).unwrap();
    builder.begin_section(FEED, StreamId(5), true).unwrap();
    builder
        .push_frame(&frame(10, &[Record::of(b"no key")]))
        .unwrap();
    finish(builder)
}

pub fn key_entries() -> Vec<KeyEntry> {
    let entry = |key: &[u8], version, sequence, tombstone| KeyEntry {
        key: key.to_vec(),
        state: KeyState {
            version,
            sequence,
            tombstone,
        },
    };
    vec![
        entry(b"", i64::MIN, 12, false),
        entry(b"\0", 0, 11, true),
        entry(b"customer/17", 3, 9, false),
        entry(b"customer/18", 4, 10, false),
        entry("\u{fc}ber".as_bytes(), i64::MAX, u64::MAX, false),
        entry(&[0xff; 40], 1, 2, true),
    ]
}

/// An index of these entries, in blocks of about 128 bytes.
pub fn key_index(entries: &[KeyEntry]) -> Vec<u8> {
    let options = KeyIndexOptions {
        block_bytes: 128,
        ..KeyIndexOptions::new(FEED, STREAM, entries.len() as u64)
    };
    let mut builder = KeyIndexBuilder::new(options);
    entries
        .iter()
        .for_each(|entry| builder.push(entry).unwrap());
    builder
        .finish()
        .parts
        .iter()
        .flat_map(|part| part.to_vec())
        .collect()
}

pub fn manifests() -> [Manifest; 2] {
    let (_, summary) = stream_pack();
    let (_, shared) = shared_pack();
    let place = PackPlace::Shared(LogId(8));
    let full = Manifest {
        feed: FEED,
        stream: STREAM,
        first: Sequence(7),
        end: Sequence(120),
        packs: vec![
            PackRef::of(place, &shared, &shared.sections[1]),
            PackRef::of(PackPlace::Stream, &summary, &summary.sections[0]),
        ],
        key_index: Some(KeyIndexRef {
            digest: Digest([0xd1; 32]),
            bytes: 1_234,
        }),
    };
    let empty = Manifest {
        feed: FeedId(1),
        stream: StreamId(1),
        first: Sequence(55),
        end: Sequence(55),
        packs: Vec::new(),
        key_index: None,
    };
    [full, empty]
}

pub fn commits() -> [Commit; 2] {
    let sealed = Commit {
        number: CommitNumber(0),
        kind: CommitKind::Sealed,
        feed: FEED,
        stream: STREAM,
        epoch: Epoch(2),
        parent: Digest::default(),
        first: Sequence(7),
        end: Sequence(120),
        records: 8,
        payload_bytes: 30,
        message: "first load \u{2713}".to_owned(),
        time_ms: TIME_MS + 999,
        manifest: manifests()[0].digest(),
    };
    let discarded = Commit {
        number: CommitNumber(1),
        kind: CommitKind::Discarded,
        stream: StreamId(5),
        epoch: Epoch(3),
        parent: sealed.digest(),
        first: Sequence(120),
        end: Sequence(300),
        records: 180,
        payload_bytes: 18_000,
        message: String::new(),
        manifest: Digest::default(),
        ..sealed.clone()
    };
    [sealed, discarded]
}
