//! Tests of packs: builder, index, blocks and verifier together.
#![allow(clippy::unwrap_used)]

use super::keys::block::KeyBlock;
use super::keys::{KeyEntry, KeyState};
use super::*;
use crate::env::BLOCK_BYTES;
use crate::ids::{Digest, FeedId, LogId, Sequence, StreamId};
use sealog_frame::{
    BatchBuilder, FrameLimits, FrameView, Record, Stamp, TimestampMode, seal_sparse, stamp,
};
use std::ops::Range;

mod damage;

const FEED: FeedId = FeedId(7);
const STREAM: StreamId = StreamId(3);

/// A stamped frame of these records from sequence `base` on.
fn frame(base: u64, records: &[Record<'_>]) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    records.iter().for_each(|r| builder.push(r).unwrap());
    let mut bytes = builder.build().unwrap().into_bytes();
    stamp(
        &mut bytes,
        &Stamp {
            base_sequence: base,
            arrival_ms: 10_000 + base,
            timestamp_floor_ms: 9_000 + base,
            epoch: 1,
            mode: TimestampMode::ClientPrefer,
            cap: false,
        },
    );
    bytes
}

/// One record without a key, its payload told by its sequence.
fn plain(base: u64) -> Vec<u8> {
    let payload = vec![base as u8; 1 + base as usize % 23];
    frame(base, &[Record::of(&payload)])
}

struct Packed {
    object: Vec<u8>,
    summary: PackSummary,
}

impl Packed {
    fn index(&self) -> PackIndex {
        let footer = PackFooter::decode(&self.object, self.object.len() as u64).unwrap();
        PackIndex::decode(&footer, self.range(footer.index_range())).unwrap()
    }

    fn range(&self, range: Range<u64>) -> &[u8] {
        &self.object[range.start as usize..range.end as usize]
    }

    /// The frames of a stream from `from` on, read the way a reader does.
    fn read(&self, feed: FeedId, stream: StreamId, from: u64) -> Vec<Vec<u8>> {
        let index = self.index();
        let mut out = Vec::new();
        for row in index.blocks_for(feed, stream, Sequence(from)) {
            let (block, rest) = BlockView::parse(self.range(row.range())).unwrap();
            assert!(rest.is_empty());
            assert_eq!((block.header().feed, block.header().stream), (feed, stream));
            let frames = block.frames_from(Sequence(from));
            out.extend(frames.map(|frame| frame.unwrap().as_bytes().to_vec()));
        }
        out
    }
}

fn finish(mut builder: PackBuilder) -> Packed {
    let mut object = Vec::new();
    while let Some(part) = builder.drain() {
        object.extend_from_slice(&part);
    }
    let (parts, summary) = builder.finish().unwrap();
    parts.iter().for_each(|part| object.extend_from_slice(part));
    assert_eq!(summary.bytes, object.len() as u64);
    Packed { object, summary }
}

fn stream_builder(block_bytes: usize) -> PackBuilder {
    let kind = PackKind::Stream {
        feed: FEED,
        stream: STREAM,
    };
    let part_bytes = BLOCK_BYTES;
    PackBuilder::new(
        kind,
        PackOptions {
            block_bytes,
            part_bytes,
        },
    )
}

fn stream_pack(keyed: bool, frames: &[Vec<u8>], block_bytes: usize) -> Packed {
    let mut builder = stream_builder(block_bytes);
    builder.begin_section(FEED, STREAM, keyed).unwrap();
    frames.iter().for_each(|f| builder.push_frame(f).unwrap());
    finish(builder)
}

/// Three small sections: plain, keyed, and keyed without keys.
fn shared_pack() -> Packed {
    let mut builder = PackBuilder::new(PackKind::Shared { log: LogId(5) }, PackOptions::default());
    builder
        .begin_section(FeedId(1), StreamId(9), false)
        .unwrap();
    builder.push_frame(&plain(40)).unwrap();
    builder.begin_section(FeedId(2), StreamId(1), true).unwrap();
    let tombstone = Record {
        tombstone: true,
        ..Record::keyed(b"b", 2, b"")
    };
    let records = [
        Record::keyed(b"b", 1, b"x"),
        tombstone,
        Record::keyed(b"", -1, b"y"),
    ];
    builder.push_frame(&frame(7, &records)).unwrap();
    builder
        .begin_section(FeedId(2), StreamId(2), false)
        .unwrap();
    builder.begin_section(FeedId(2), StreamId(4), true).unwrap();
    builder.push_frame(&plain(10)).unwrap();
    builder.push_frame(&plain(11)).unwrap();
    finish(builder)
}

fn verify(object: &[u8], piece: usize) -> Result<PackSummary, PackDamage> {
    let mut verifier = PackVerifier::new();
    for piece in object.chunks(piece) {
        verifier.push(piece)?;
    }
    verifier.finish()
}

#[test]
fn stream_pack_gives_back_every_frame_from_any_sequence() {
    let frames: Vec<_> = (100..160).map(plain).collect();
    for block_bytes in [0, 300, 1_000, BLOCK_BYTES_TARGET] {
        let pack = stream_pack(false, &frames, block_bytes);
        for from in [0, 100, 101, 130, 159, 160, u64::MAX] {
            let skip = (from.clamp(100, 160) - 100) as usize;
            assert_eq!(
                pack.read(FEED, STREAM, from),
                &frames[skip..],
                "{block_bytes} {from}"
            );
        }
        let blocks = pack.index().sections()[0].index_rows.len();
        assert_eq!(
            blocks,
            [60, 60, 12, 1][[0, 300, 1_000, BLOCK_BYTES_TARGET]
                .iter()
                .position(|b| *b == block_bytes)
                .unwrap()]
        );
    }
}

#[test]
fn summary_names_range_counts_times_and_root() {
    let frames: Vec<_> = (100..160).map(plain).collect();
    let pack = stream_pack(false, &frames, 1_000);
    let [section] = pack.summary.sections.as_slice() else {
        panic!("one section")
    };
    assert_eq!((section.first, section.end), (Sequence(100), Sequence(160)));
    assert_eq!(section.records, 60);
    let payload: u64 = (100..160u64).map(|n| 1 + n % 23).sum();
    assert_eq!(section.payload_bytes, payload);
    assert_eq!(
        (section.first_timestamp_ms, section.max_timestamp_ms),
        (10_100, 10_159)
    );
    assert_eq!((section.key_count, section.keyed), (0, false));
    assert_eq!(pack.index().sections(), pack.summary.sections);
    assert_eq!(pack.index().footer().records, 60);
}

#[test]
fn verify_agrees_with_the_builder_in_pieces_of_any_size() {
    let frames: Vec<_> = (0..40).map(plain).collect();
    for pack in [shared_pack(), stream_pack(true, &frames, 700)] {
        for piece in [1, 7, 64, 1_000, usize::MAX] {
            assert_eq!(
                verify(&pack.object, piece).as_ref(),
                Ok(&pack.summary),
                "{piece}"
            );
        }
    }
}

#[test]
fn shared_pack_keeps_streams_apart() {
    let pack = shared_pack();
    let index = pack.index();
    assert_eq!(index.footer().kind, PackKind::Shared { log: LogId(5) });
    let ids: Vec<_> = index
        .sections()
        .iter()
        .map(|s| (s.feed.0, s.stream.0))
        .collect();
    assert_eq!(ids, [(1, 9), (2, 1), (2, 4)]);
    assert_eq!(pack.read(FeedId(1), StreamId(9), 0), [plain(40)]);
    assert_eq!(pack.read(FeedId(2), StreamId(4), 11), [plain(11)]);
    for (feed, stream) in [(1, 1), (2, 2), (2, 5), (3, 1)] {
        let (feed, stream) = (FeedId(feed), StreamId(stream));
        assert!(index.section(feed, stream).is_none());
        assert!(index.blocks_for(feed, stream, Sequence(0)).is_empty());
        assert!(index.blocks_for_timestamp(feed, stream, 0).is_empty());
    }
}

#[test]
fn key_run_holds_the_newest_record_per_key() {
    let pack = shared_pack();
    let index = pack.index();
    let section = index.section(FeedId(2), StreamId(1)).unwrap();
    assert_eq!((section.key_count, section.keyed), (2, true));
    let (block, rest) = KeyBlock::parse(pack.range(section.keys.clone())).unwrap();
    assert!(rest.is_empty());
    let entry = |key: &[u8], version, sequence, tombstone| KeyEntry {
        key: key.to_vec(),
        state: KeyState {
            version,
            sequence,
            tombstone,
        },
    };
    let found: Vec<_> = block
        .entries()
        .map(|(key, state)| KeyEntry {
            key: key.to_vec(),
            state,
        })
        .collect();
    assert_eq!(found, [entry(b"", -1, 9, false), entry(b"b", 2, 8, true)]);

    let keyless = index.section(FeedId(2), StreamId(4)).unwrap();
    assert!(keyless.keyed && keyless.keys.is_empty());
}

#[test]
fn sparse_section_tells_records_from_sequences() {
    let whole = frame(20, &[Record::of(b"a"), Record::of(b"b"), Record::of(b"c")]);
    let view = FrameView::trusted(&whole).unwrap();
    let kept = view.records().filter(|record| record.sequence != 21);
    let sparse = seal_sparse(&view.server_stamp(), kept, &FrameLimits::default()).unwrap();
    let pack = stream_pack(false, &[sparse, plain(30)], 0);
    assert_eq!(verify(&pack.object, 50).as_ref(), Ok(&pack.summary));
    let index = pack.index();
    let section = &index.sections()[0];
    assert_eq!((section.records, section.end), (3, Sequence(31)));
    let row = &index.blocks_for(FEED, STREAM, Sequence(22))[0];
    assert_eq!((row.first_record(), row.records()), (0, 2));
    assert_eq!(index.blocks_for(FEED, STREAM, Sequence(23)).len(), 1);
}

/// The digest as the specification words it, from the object's bytes.
fn digest_by_the_book(object: &[u8]) -> Digest {
    let footer = PackFooter::decode(object, object.len() as u64).unwrap();
    let range = footer.index_range();
    let (from, to) = (range.start as usize, range.end as usize);
    let index = PackIndex::decode(&footer, &object[from..to]).unwrap();
    let mut hashed = object[..PACK_HEADER_BYTES].to_vec();
    for section in index.sections() {
        for row in index.blocks(section) {
            let (block, _) = BlockView::parse(&object[row.range().start as usize..]).unwrap();
            for frame in block.frames() {
                let frame = frame.unwrap();
                let bytes = frame.as_bytes();
                let id_bytes = u16::from_le_bytes([bytes[70], bytes[71]]) as usize;
                let table = 128 + id_bytes;
                let columns = table + 32 * frame.record_count();
                let sparse = if bytes[6] == 2 { 12 } else { 0 };
                hashed.extend_from_slice(&bytes[..table]);
                let columns = columns..columns + sparse * frame.record_count();
                hashed.extend_from_slice(&bytes[columns]);
            }
        }
        let keys = section.keys.start as usize..section.keys.end as usize;
        hashed.extend_from_slice(&object[keys]);
    }
    hashed.extend_from_slice(&object[from..]);
    Digest::of(&hashed)
}

#[test]
fn digest_covers_whole_pack_but_records_by_their_roots() {
    let whole = frame(20, &[Record::of(b"a"), Record::of(b"b"), Record::of(b"c")]);
    let view = FrameView::trusted(&whole).unwrap();
    let kept = view.records().filter(|record| record.sequence != 21);
    let sparse = seal_sparse(&view.server_stamp(), kept, &FrameLimits::default()).unwrap();
    let stream = stream_pack(false, &[plain(3), sparse, plain(30)], 0);
    for pack in [stream, shared_pack()] {
        assert_eq!(pack.summary.digest, digest_by_the_book(&pack.object));
    }
    let one = |payload: &[u8]| stream_pack(false, &[frame(1, &[Record::of(payload)])], 0);
    assert_ne!(one(b"a").summary.digest, one(b"b").summary.digest);
    let supplied = Record {
        fingerprint: Some([1; 32]),
        ..Record::of(b"a")
    };
    let supplied = stream_pack(false, &[frame(1, &[supplied])], 0);
    assert_ne!(one(b"a").summary.digest, supplied.summary.digest);
    let frames: Vec<_> = (0..9).map(plain).collect();
    let blocks = [0, 500, 1_500].map(|block| stream_pack(false, &frames, block).summary.digest);
    assert!(blocks[0] != blocks[1] && blocks[1] != blocks[2]);
}

/// The digest of every payload of a pack, as its columns have them, and as its frames say.
fn columns(pack: &Packed) -> [Vec<[u8; 32]>; 2] {
    let (mut stored, mut computed) = (Vec::new(), Vec::new());
    let index = pack.index();
    let sections = index.sections().iter();
    for row in sections.flat_map(|section| index.blocks(section)) {
        let (block, _) = BlockView::parse(pack.range(row.range())).unwrap();
        let mut column = ColumnView::parse(pack.range(row.column_range()), row.records()).unwrap();
        for frame in block.frames() {
            let frame = frame.unwrap();
            stored.extend(column.take(frame.record_count()).unwrap());
            computed.extend(frame.records().map(|record| Digest::of(record.payload).0));
        }
        assert!(column.take(1).is_err(), "an entry that is nobody's");
    }
    [stored, computed]
}

#[test]
fn column_holds_the_digest_of_every_payload() {
    let whole = frame(20, &[Record::of(b"a"), Record::of(b""), Record::of(b"c")]);
    let view = FrameView::trusted(&whole).unwrap();
    let kept = view.records().filter(|record| record.sequence != 21);
    let sparse = seal_sparse(&view.server_stamp(), kept, &FrameLimits::default()).unwrap();
    let supplied = Record {
        fingerprint: Some([1; 32]),
        ..Record::of(b"d")
    };
    let mixed = frame(5, &[Record::of(b""), supplied, Record::of(&[7; 70_000])]);
    let frames = [plain(3), mixed, sparse, plain(30)];
    for block_bytes in [0, 600, BLOCK_BYTES_TARGET] {
        let pack = stream_pack(false, &frames, block_bytes);
        assert_eq!(verify(&pack.object, 999).as_ref(), Ok(&pack.summary));
        let [stored, computed] = columns(&pack);
        assert_eq!((stored.len(), &stored), (7, &computed), "{block_bytes}");
    }
    let [stored, computed] = columns(&shared_pack());
    assert_eq!((stored.len(), &stored), (6, &computed));
}

#[test]
fn column_of_tiny_records_counts_as_memory_and_stays_a_block_long() {
    let tiny = vec![Record::of(b"t"); 1_000];
    let mut builder = stream_builder(64 << 10);
    builder.begin_section(FEED, STREAM, false).unwrap();
    let (mut out, mut most) = (0, 0);
    for batch in 0..100 {
        builder.push_frame(&frame(batch * 1_000, &tiny)).unwrap();
        out += std::iter::from_fn(|| builder.drain())
            .map(|p| p.len())
            .sum::<usize>();
        most = most.max(builder.buffered_bytes());
    }
    assert!(out > 100_000 * (33 + 32) - (200 << 10), "{out}");
    assert!(most < 512 << 10, "{most}");
    let alone = stream_builder(0).buffered_bytes();
    let mut builder = stream_builder(1 << 20);
    builder.begin_section(FEED, STREAM, false).unwrap();
    builder.push_frame(&frame(0, &tiny)).unwrap();
    let held = builder.buffered_bytes() - alone;
    assert!(held >= 1_000 * (33 + 32), "{held}");
}

#[test]
fn merkle_root_does_not_depend_on_how_records_were_batched() {
    let payloads: Vec<_> = (0..9u8).map(|n| vec![n; n as usize]).collect();
    let records: Vec<_> = payloads.iter().map(|p| Record::keyed(b"k", 1, p)).collect();
    let whole = stream_pack(true, &[frame(0, &records)], 0);
    let single: Vec<_> = (0..9)
        .map(|n| frame(n, &records[n as usize..][..1]))
        .collect();
    let single = stream_pack(true, &single, 0);
    let root = |pack: &Packed| pack.summary.sections[0].merkle_root;
    assert_eq!(root(&whole), root(&single));
    let shifted = stream_pack(true, &[frame(1, &records)], 0);
    assert_ne!(root(&whole), root(&shifted));
}

#[test]
fn refused_frames_leave_the_pack_as_it_was() {
    let mut damaged = plain(12);
    *damaged.last_mut().unwrap() ^= 1;
    let keyed = frame(12, &[Record::keyed(b"k", 0, b"")]);
    let mut builder = stream_builder(BLOCK_BYTES_TARGET);
    assert!(builder.push_frame(&plain(11)).is_err(), "no section yet");
    assert!(builder.begin_section(FEED, StreamId(4), false).is_err());
    builder.begin_section(FEED, STREAM, false).unwrap();
    builder.push_frame(&plain(11)).unwrap();
    assert!(matches!(
        builder.push_frame(&damaged),
        Err(PackError::Frame(_))
    ));
    assert!(builder.push_frame(&keyed).is_err(), "keys are not allowed");
    assert!(
        builder.push_frame(&plain(11)).is_err(),
        "sequence does not rise"
    );
    assert!(builder.push_frame(&plain(12)[..100]).is_err());
    builder.push_frame(&plain(13)).unwrap();
    let clean = stream_pack(false, &[plain(11), plain(13)], BLOCK_BYTES_TARGET);
    assert_eq!(finish(builder).summary, clean.summary);
}

#[test]
fn empty_pack_and_disordered_sections_are_refused() {
    let mut builder = PackBuilder::new(PackKind::Shared { log: LogId(1) }, PackOptions::default());
    builder
        .begin_section(FeedId(2), StreamId(2), false)
        .unwrap();
    assert!(builder.finish().is_err(), "nothing in it");

    let mut builder = PackBuilder::new(PackKind::Shared { log: LogId(1) }, PackOptions::default());
    builder
        .begin_section(FeedId(2), StreamId(2), false)
        .unwrap();
    builder.push_frame(&plain(1)).unwrap();
    for (feed, stream) in [(2, 2), (2, 1), (1, 3)] {
        assert!(
            builder
                .begin_section(FeedId(feed), StreamId(stream), false)
                .is_err()
        );
    }
}

#[test]
fn drain_keeps_memory_within_a_part_and_a_block() {
    let payload = vec![3; 10_000];
    let mut builder = stream_builder(64 << 10);
    builder.begin_section(FEED, STREAM, false).unwrap();
    let (mut object, mut most) = (Vec::new(), 0);
    for base in 0..500 {
        builder
            .push_frame(&frame(base, &[Record::of(&payload)]))
            .unwrap();
        while let Some(part) = builder.drain() {
            assert_eq!(part.len() % BLOCK_BYTES, 0);
            assert_eq!(part.as_ptr() as usize % BLOCK_BYTES, 0);
            object.extend_from_slice(&part);
        }
        most = most.max(builder.buffered_bytes());
    }
    assert!(most < 256 << 10, "{most}");
    let (parts, summary) = builder.finish().unwrap();
    parts.iter().for_each(|part| object.extend_from_slice(part));
    assert_eq!(digest_by_the_book(&object), summary.digest);
    assert_eq!(verify(&object, 100_000), Ok(summary));
}

#[test]
fn blocks_for_timestamp_begins_with_the_block_that_reaches_it() {
    let frames: Vec<_> = (0..10).map(plain).collect();
    let index = stream_pack(false, &frames, 0).index();
    let first = |at| {
        let rows = index.blocks_for_timestamp(FEED, STREAM, at);
        rows.first().map(|row| row.first().0)
    };
    assert_eq!(first(0), Some(0));
    assert_eq!(first(10_004), Some(4));
    assert_eq!(first(10_009), Some(9));
    assert_eq!(first(10_010), None);
}
