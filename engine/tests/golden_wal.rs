//! Golden log and checkpoint files: the bytes of version 1, pinned both ways. Spec: spec/wal.md, spec/checkpoint.md.
//!
//! **Invariants**
//! - For every case decode(file) = value and encode(value) = file.
//! - Files are written once, by the ignored test, which never overwrites; no file is without a case.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use sealog_engine::commit::{CommitKind, PackPlace, PackRef};
use sealog_engine::env::AlignedBuf;
use sealog_engine::formats::{ChunkRef, Feeds, Geometry, Marker, Root, decode_chunk, encode_chunk};
use sealog_engine::ids::{CommitNumber, Digest, Epoch, FeedId, LogId, PinId, Sequence, StreamId};
use sealog_engine::wal::entry::{
    Change, Entries, Entry, Forked, Ground, Seal, put_batch, put_change,
};
use sealog_engine::wal::group::{
    FLAG_CLEAN, FLAG_MARKER, GROUP_HEADER_BYTES, GroupHeader, GroupSeal, seal_group,
};
use sealog_engine::wal::log::Position;
use sealog_engine::wal::segment::SegmentHeader;
use sealog_engine::{Base, FeedOptions, Pin};
use sealog_frame::{BatchBuilder, Record, Stamp, TimestampMode, stamp};

const LOG: LogId = LogId(3);
const FEED: FeedId = FeedId(3 << 48 | 7);
const GONE: FeedId = FeedId(3 << 48 | 8);
const TIME_MS: u64 = 1_700_000_000_000;

fn folder(format: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden");
    PathBuf::from(root).join(format).join("v1")
}

/// A stamped batch of one producer: two records from `base` on.
fn frame(base: u64, sequence: u64) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    builder.push(&Record::keyed(b"k", 5, b"first")).unwrap();
    builder.push(&Record::of(b"second")).unwrap();
    builder.producer(b"pump-1", 2, sequence).unwrap();
    let mut bytes = builder.build().unwrap().into_bytes();
    let with = Stamp {
        base_sequence: base,
        arrival_ms: TIME_MS + 1,
        timestamp_floor_ms: TIME_MS,
        epoch: 1,
        mode: TimestampMode::ClientPrefer,
        cap: false,
    };
    stamp(&mut bytes, &with);
    bytes
}

fn pack(place: PackPlace, first: u64, end: u64) -> PackRef {
    PackRef {
        place,
        digest: Digest([0xd1; 32]),
        pack_bytes: 4096 + first,
        first: Sequence(first),
        end: Sequence(end),
        records: end - first,
        payload_bytes: 11,
        first_timestamp_ms: TIME_MS + 1,
        max_timestamp_ms: TIME_MS + 1,
        merkle_root: [0x3e; 32],
    }
}

fn seal(number: u64, kind: CommitKind, message: &str) -> Seal {
    Seal {
        number: CommitNumber(number),
        kind,
        time_ms: TIME_MS + 9,
        message: message.to_owned(),
    }
}

#[derive(Debug, PartialEq)]
enum Content {
    Batch(Vec<u8>),
    Change(Change),
}

type Row = (FeedId, StreamId, Content);

fn change(feed: FeedId, stream: u64, change: Change) -> Row {
    (feed, StreamId(stream), Content::Change(change))
}

fn created(feed: FeedId, name: &str) -> Row {
    let keyed = FeedOptions {
        keys: true,
        ..FeedOptions::default()
    };
    created_with(feed, name, keyed)
}

fn created_with(feed: FeedId, name: &str, options: FeedOptions) -> Row {
    let made = Change::FeedCreated {
        name: name.to_owned(),
        options,
        time_ms: TIME_MS,
    };
    change(feed, 0, made)
}

/// Every kind of entry, in an order that folds.
fn entries() -> Vec<Row> {
    let opened = |epoch| Change::StreamOpened {
        epoch: Epoch(epoch),
    };
    let batch = |stream, base, sequence| {
        let content = Content::Batch(frame(base, sequence));
        (FEED, StreamId(stream), content)
    };
    let digest = Digest([0xab; 32]);
    vec![
        created(FEED, "plant/pump-1"),
        created(GONE, "gone"),
        change(
            GONE,
            0,
            Change::FeedDeleted {
                time_ms: TIME_MS + 2,
            },
        ),
        change(FEED, 1, opened(1)),
        batch(1, 0, 0),
        batch(1, 2, 1),
        change(FEED, 1, Change::EpochRaised { epoch: Epoch(2) }),
        change(FEED, 1, Change::PackStaged(pack(PackPlace::Stream, 0, 2))),
        change(
            FEED,
            1,
            Change::Rolled(seal(0, CommitKind::Sealed, "hourly \u{2713}")),
        ),
        change(
            FEED,
            1,
            Change::PackStaged(pack(PackPlace::Shared(LOG), 2, 4)),
        ),
        change(FEED, 1, Change::ManifestLogged { digest }),
        change(FEED, 1, Change::Published { digest }),
        batch(2, 4, 2),
        change(
            FEED,
            2,
            Change::StreamSealed(seal(1, CommitKind::Discarded, "")),
        ),
        change(
            FEED,
            0,
            Change::ProducerEvicted {
                id: b"pump-0".to_vec(),
            },
        ),
        change(FEED, 3, opened(3)),
        batch(3, 6, 3),
    ]
}

/// What only a deleted feed has.
fn cleaned() -> Vec<Row> {
    vec![change(GONE, 0, Change::FeedCleaned)]
}

/// What only forks and their sources have, in an order that folds.
fn forks() -> Vec<Row> {
    let name = |text: &str| text.to_owned();
    let options = FeedOptions {
        keys: true,
        attributes: (*b"{}").into(),
        ..FeedOptions::default()
    };
    let base = Base {
        feed: FEED,
        name: "plant/pump-1".into(),
        sequence: 0,
        pin: PinId(0x0123_4567_89ab_cdef),
    };
    let pinned = |pin: PinId, fork: &str| Change::Pinned {
        id: pin,
        pin: Pin {
            sequence: 0,
            fork: fork.into(),
        },
    };
    let forked = Forked {
        name: name("plant/pump-1 \u{2442}"),
        options,
        time_ms: TIME_MS + 3,
        base: base.clone(),
        ground: Ground {
            last_arrival_ms: TIME_MS + 1,
            last_timestamp_ms: TIME_MS + 2,
        },
    };
    let time_ms = TIME_MS + 4;
    vec![
        created(FEED, "plant/pump-1"),
        change(FEED, 0, pinned(base.pin, &forked.name)),
        change(FEED, 0, pinned(PinId(7), "never made")),
        change(GONE, 0, Change::FeedForked(Box::new(forked))),
        change(FEED, 0, Change::FeedDeleted { time_ms }),
        change(
            FEED,
            0,
            Change::Unpinned {
                id: PinId(7),
                time_ms,
            },
        ),
        change(
            GONE,
            0,
            Change::FeedClosed {
                note: (*b"done").into(),
                time_ms,
            },
        ),
    ]
}

/// A batch that came with an order key.
fn ordered() -> Vec<Row> {
    let key: Box<[u8]> = (*b"2026-11-30/\xff").into();
    vec![
        created(FEED, "plant/pump-1"),
        change(FEED, 1, Change::StreamOpened { epoch: Epoch(0) }),
        (FEED, StreamId(1), Content::Batch(frame(0, 0))),
        change(FEED, 0, Change::Ordered { key }),
    ]
}

/// A feed that rolls: without a lease it is sealed until the next batch, with one it goes on at once.
fn rolling() -> Vec<Row> {
    let options = FeedOptions {
        exclusive: true,
        rolling: true,
        attributes: (*b"{}").into(),
        ..FeedOptions::default()
    };
    let plain = FeedOptions {
        keys: true,
        rolling: true,
        ..FeedOptions::default()
    };
    let opened = |epoch| Change::StreamOpened {
        epoch: Epoch(epoch),
    };
    let batch = |stream, base, sequence| {
        let content = Content::Batch(frame(base, sequence));
        (FEED, StreamId(stream), content)
    };
    let sealed = |number| seal(number, CommitKind::Sealed, "");
    vec![
        created_with(GONE, "plant/pump-2", options),
        created_with(FEED, "plant/pump-1", plain),
        change(FEED, 1, opened(0)),
        batch(1, 0, 0),
        change(FEED, 1, Change::StreamSealed(sealed(0))),
        change(FEED, 2, opened(1)),
        batch(2, 2, 1),
        change(FEED, 2, Change::Rolled(sealed(1))),
        batch(3, 4, 2),
    ]
}

fn group(flags: u16, offset: u64, predecessor: u32, rows: &[Row]) -> Vec<u8> {
    let mut buf = AlignedBuf::zeroed(GROUP_HEADER_BYTES);
    for (feed, stream, content) in rows {
        match content {
            Content::Batch(frame) => put_batch(&mut buf, *feed, *stream, frame),
            Content::Change(change) => put_change(&mut buf, *feed, *stream, change),
        }
    }
    let seal = GroupSeal {
        flags,
        log: LOG,
        incarnation: 5,
        offset,
        entries: u32::try_from(rows.len()).unwrap(),
        predecessor,
        durable_end: offset - 4096,
    };
    seal_group(&mut buf, &seal);
    buf.to_vec()
}

/// The groups: file, flags, log offset, predecessor, entries.
fn groups() -> Vec<(&'static str, u16, u64, u32, Vec<Row>)> {
    let first = 1 << 20 | 4096;
    vec![
        ("group-entries", 0, first, 0x0102_0304, entries()),
        ("group-cleaned", 0, first + 8192, 7, cleaned()),
        (
            "group-marker",
            FLAG_MARKER,
            first + 12_288,
            u32::MAX,
            Vec::new(),
        ),
        (
            "group-clean",
            FLAG_MARKER | FLAG_CLEAN,
            first + 16_384,
            9,
            Vec::new(),
        ),
        ("group-forks", 0, first + 20_480, 11, forks()),
        ("group-ordered", 0, first + 24_576, 13, ordered()),
        ("group-rolling", 0, first + 28_672, 17, rolling()),
    ]
}

fn segment() -> SegmentHeader {
    SegmentHeader {
        log: LOG,
        number: 1,
        segment_bytes: 1 << 20,
        incarnation: 5,
    }
}

fn root() -> Root {
    let row = |chunk, generation, as_of_index| ChunkRef {
        chunk,
        generation,
        as_of_offset: 1 << 20 | 4096,
        as_of_index,
    };
    Root {
        log: LOG,
        number: 12,
        incarnation: 5,
        durable_end: 1 << 20 | 8192,
        predecessor: 0x0102_0304,
        replay_from: 1 << 20 | 4096,
        retain_from: 4096,
        next_counter: 513,
        chunks: vec![row(3 << 40, 11, 2), row(3 << 40 | 1, 12, 0)],
    }
}

fn first_root() -> Root {
    Root {
        number: 1,
        incarnation: 0,
        durable_end: 4096,
        predecessor: 0,
        replay_from: 4096,
        next_counter: 0,
        chunks: Vec::new(),
        ..root()
    }
}

fn marker() -> Marker {
    Marker {
        segment_bytes: 64 << 20,
        group_bytes_max: 24 << 20,
        next_log: 5,
        logs: vec![LogId(3), LogId(4)],
    }
}

const CHUNK: u64 = 3 << 40;
const GEOMETRY: Geometry = Geometry {
    segment_bytes: 1 << 20,
};

/// The state that folding these entries gives.
fn feeds(rows: &[Row]) -> Feeds {
    let bytes = group(0, 1 << 20 | 4096, 0, rows);
    let header = GroupHeader::decode(&bytes).unwrap();
    let body = &bytes[GROUP_HEADER_BYTES..GROUP_HEADER_BYTES + header.body_bytes as usize];
    let mut feeds = Feeds::new(LOG, GEOMETRY);
    for (index, entry) in (0..).zip(Entries::new(body)) {
        let at = Position {
            offset: header.offset,
            index,
            group: 1,
        };
        feeds.apply(&entry.unwrap(), at).unwrap();
    }
    feeds
}

fn chunk(rows: &[Row]) -> Vec<u8> {
    encode_chunk(CHUNK, 11, &feeds(rows).encode_chunk(CHUNK))
}

/// Every file: format, name, what it is, bytes.
fn files() -> Vec<(&'static str, &'static str, &'static str, Vec<u8>)> {
    let mut all = vec![
        (
            "wal",
            "segment-header",
            "first block of segment 1",
            segment().encode().to_vec(),
        ),
        ("checkpoint", "root", "two chunks", root().encode()),
        (
            "checkpoint",
            "root-first",
            "of a new log",
            first_root().encode(),
        ),
        (
            "checkpoint",
            "chunk",
            "the state after group-entries",
            chunk(&entries()),
        ),
        (
            "checkpoint",
            "chunk-forks",
            "the state after group-forks",
            chunk(&forks()),
        ),
        (
            "checkpoint",
            "chunk-ordered",
            "the state after group-ordered",
            chunk(&ordered()),
        ),
        (
            "checkpoint",
            "chunk-rolling",
            "the state after group-rolling",
            chunk(&rolling()),
        ),
        (
            "checkpoint",
            "marker",
            "the data directory's file format",
            marker().encode(),
        ),
    ];
    for (name, flags, offset, predecessor, rows) in groups() {
        let about = match rows.len() {
            0 => "no entries",
            1 => "feed cleaned",
            4 => "an order key",
            7 => "forks, and a closed feed",
            9 => "feeds that roll",
            _ => "every other kind of entry",
        };
        all.push(("wal", name, about, group(flags, offset, predecessor, &rows)));
    }
    all
}

fn golden(format: &str, name: &str) -> Vec<u8> {
    let path = folder(format).join(format!("{name}.bin"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn manifest(format: &str) -> String {
    let rows = files().into_iter().filter(|file| file.0 == format);
    let rows: Vec<String> = rows
        .map(|(_, name, about, bytes)| {
            let crc = crc32c_of(&bytes);
            let len = bytes.len();
            format!(
                "    {{ \"file\": \"{name}.bin\", \"about\": \"{about}\", \"bytes\": {len}, \"crc32c\": \"{crc:08x}\" }}"
            )
        })
        .collect();
    let rows = rows.join(",\n");
    format!(
        "{{\n  \"format\": \"{format}\",\n  \"format_version\": 1,\n  \"files\": [\n{rows}\n  ]\n}}\n"
    )
}

/// CRC32C, bit by bit: the test's own word.
fn crc32c_of(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

#[test]
fn wal_and_checkpoint_v1_encode_to_golden() {
    for (format, name, _, bytes) in files() {
        assert!(bytes == golden(format, name), "{format}/{name}");
    }
}

#[test]
fn wal_v1_segment_header_decodes() {
    let bytes = golden("wal", "segment-header");
    assert_eq!(SegmentHeader::decode(&bytes), Ok(segment()));
    // By hand, as spec/wal.md §4 has it.
    assert_eq!(&bytes[..12], b"SLSEGMT1\x01\0\0\0");
    assert_eq!(bytes[16], 3, "log");
    assert_eq!(bytes[24], 1, "number");
    assert_eq!(&bytes[32..40], (1u64 << 20).to_le_bytes(), "segment_bytes");
    assert_eq!(bytes[40], 5, "incarnation");
}

#[test]
fn wal_v1_groups_decode_to_their_entries() {
    for (name, flags, offset, predecessor, rows) in groups() {
        let bytes = golden("wal", name);
        let header = GroupHeader::decode(&bytes).unwrap();
        assert_eq!(header.flags, flags, "{name}");
        assert_eq!((header.log, header.incarnation), (LOG, 5));
        assert_eq!((header.offset, header.durable_end), (offset, offset - 4096));
        assert_eq!(header.predecessor, predecessor);
        assert_eq!(header.group_bytes as usize, bytes.len());
        header.check_body(&bytes[GROUP_HEADER_BYTES..]).unwrap();
        let end = GROUP_HEADER_BYTES + header.body_bytes as usize;
        let decoded: Vec<Row> = Entries::new(&bytes[GROUP_HEADER_BYTES..end])
            .map(|entry| {
                let entry = entry.unwrap();
                let content = match entry.decode().unwrap() {
                    Entry::Batch(frame) => Content::Batch(frame.to_vec()),
                    Entry::Change(change) => Content::Change(change),
                };
                (entry.feed, entry.stream, content)
            })
            .collect();
        assert_eq!(decoded, rows, "{name}");
        assert_eq!(header.entries as usize, rows.len());
    }
}

#[test]
fn checkpoint_v1_files_decode() {
    assert_eq!(Root::decode(&golden("checkpoint", "root")), Ok(root()));
    let first = golden("checkpoint", "root-first");
    assert_eq!(Root::decode(&first), Ok(first_root()));
    let found = Marker::decode(&golden("checkpoint", "marker"));
    assert_eq!(found, Ok(marker()));
    let bytes = golden("checkpoint", "chunk");
    let body = decode_chunk(&bytes, CHUNK, 11).unwrap();
    let mut decoded = Feeds::new(LOG, GEOMETRY);
    decoded.decode_chunk(CHUNK, body).unwrap();
    let (found, expected) = (decoded.get(FEED).unwrap(), feeds(&entries()));
    let expected = expected.get(FEED).unwrap();
    assert_eq!(found.streams, expected.streams);
    assert_eq!(found.head, expected.head);
    assert_eq!(
        (&*found.name, &found.options),
        ("plant/pump-1", &expected.options)
    );
    assert_eq!((found.next_sequence, found.epoch), (8, Epoch(3)));
    assert_eq!(
        (found.next_stream, found.next_commit),
        (StreamId(4), CommitNumber(2))
    );
    let producers = found.producers.as_ref().unwrap();
    assert_eq!(producers.get(b"pump-1").unwrap().last_range, (6, 7));
    let doomed: Vec<_> = decoded
        .doomed()
        .map(|(id, gone)| (id, &*gone.name))
        .collect();
    assert_eq!(doomed, [(GONE, "gone")]);
    assert_eq!(decoded.encode_chunk(CHUNK), body);
}

#[test]
fn checkpoint_v1_chunk_of_forks_decodes() {
    let bytes = golden("checkpoint", "chunk-forks");
    let body = decode_chunk(&bytes, CHUNK, 11).unwrap();
    let mut decoded = Feeds::new(LOG, GEOMETRY);
    decoded.decode_chunk(CHUNK, body).unwrap();
    let source = decoded.get(FEED).unwrap();
    assert!(source.is_gone());
    let pins: Vec<_> = source.pins().collect();
    let pin = PinId(0x0123_4567_89ab_cdef);
    assert_eq!((pins.len(), pins[0].0, pins[0].1.sequence), (1, pin, 0));
    assert_eq!(&*pins[0].1.fork, "plant/pump-1 \u{2442}");
    let fork = decoded.get(GONE).unwrap();
    let base = fork.base().unwrap();
    assert_eq!((base.feed, base.pin, base.sequence), (FEED, pin, 0));
    assert_eq!((&*base.name, fork.is_gone()), ("plant/pump-1", false));
    assert_eq!(fork.last_timestamp_ms, TIME_MS + 2);
    assert_eq!(&*fork.closed.as_ref().unwrap().note, b"done");
    assert_eq!(decoded.encode_chunk(CHUNK), body);
}

#[test]
fn checkpoint_v1_chunk_of_an_order_key_decodes() {
    let bytes = golden("checkpoint", "chunk-ordered");
    let body = decode_chunk(&bytes, CHUNK, 11).unwrap();
    let mut decoded = Feeds::new(LOG, GEOMETRY);
    decoded.decode_chunk(CHUNK, body).unwrap();
    let feed = decoded.get(FEED).unwrap();
    assert_eq!(feed.order.as_deref(), Some(b"2026-11-30/\xff".as_slice()));
    assert_eq!(decoded.encode_chunk(CHUNK), body);
}

#[test]
fn checkpoint_v1_chunk_of_feeds_that_roll_decodes() {
    let bytes = golden("checkpoint", "chunk-rolling");
    let body = decode_chunk(&bytes, CHUNK, 11).unwrap();
    let mut decoded = Feeds::new(LOG, GEOMETRY);
    decoded.decode_chunk(CHUNK, body).unwrap();
    let feed = decoded.get(FEED).unwrap();
    assert!(feed.options.rolling && decoded.get(GONE).unwrap().options.rolling);
    assert_eq!(feed.streams, feeds(&rolling()).get(FEED).unwrap().streams);
    let open = feed.rolling_stream().unwrap();
    assert_eq!(open.id, StreamId(3));
    assert_eq!(open.first_arrival_ms, TIME_MS + 1);
    assert_eq!(decoded.encode_chunk(CHUNK), body);
}

#[test]
fn exhaustive_wal_and_checkpoint_v1_any_flipped_bit_is_detected() {
    for (format, name, _, bytes) in files() {
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let refused = match name {
                "segment-header" => SegmentHeader::decode(&damaged).is_err(),
                "marker" => Marker::decode(&damaged).is_err(),
                "chunk" | "chunk-forks" | "chunk-ordered" | "chunk-rolling" => {
                    decode_chunk(&damaged, CHUNK, 11).is_err()
                }
                "root" | "root-first" => Root::decode(&damaged).is_err(),
                _ => GroupHeader::decode(&damaged)
                    .and_then(|header| header.check_body(&damaged[GROUP_HEADER_BYTES..]))
                    .is_err(),
            };
            assert!(refused, "{format}/{name} at {at}");
        }
    }
}

#[test]
fn wal_and_checkpoint_v1_manifests_describe_the_files() {
    for format in ["wal", "checkpoint"] {
        let found = fs::read_to_string(folder(format).join("manifest.json")).unwrap();
        assert_eq!(found, manifest(format));
        let there: BTreeSet<_> = fs::read_dir(folder(format))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let named = files().into_iter().filter(|file| file.0 == format);
        let mut expected: BTreeSet<_> = named.map(|file| format!("{}.bin", file.1)).collect();
        expected.insert("manifest.json".to_owned());
        assert_eq!(there, expected, "no file without a case");
    }
}

#[test]
#[ignore = "writes the golden files, once: cargo test -p sealog-engine --test golden_wal -- --ignored"]
fn write_golden_files_once() {
    let write = |path: PathBuf, bytes: &[u8]| {
        let file = fs::File::create_new(&path);
        let mut file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        std::io::Write::write_all(&mut file, bytes).unwrap();
    };
    for format in ["wal", "checkpoint"] {
        fs::create_dir_all(folder(format)).unwrap();
        write(
            folder(format).join("manifest.json"),
            manifest(format).as_bytes(),
        );
    }
    for (format, name, _, bytes) in files() {
        write(folder(format).join(format!("{name}.bin")), &bytes);
    }
}
