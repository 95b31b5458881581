//! Golden frames: the bytes of version 1, pinned both ways. Spec: spec/frame.md.
//!
//! **Invariants**
//! - For every case decode(file) = value and encode(value) = file.
//! - Files are written once, by the ignored test, which never overwrites; no file is without a case.
//!
//! **Not here**: frames that must be refused (`refusals`).
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use common::{Owned, Tags, build};
use sealog_frame::{
    FrameKind, FrameLimits, FrameView, MatchSequence, Stamp, TimestampMode, peek_frame_bytes,
    seal_sparse, stamp,
};

/// One golden frame, as a value.
struct Case {
    name: &'static str,
    about: &'static str,
    tags: Tags,
    stamp: Option<Stamp>,
    records: Vec<Owned>,
    /// Indexes that compaction kept; none for a PLAIN frame.
    kept: Option<Vec<usize>>,
    /// Sequence and effective timestamp of each record in the file.
    effective: Vec<(u64, u64)>,
}

fn of(payload: &[u8]) -> Owned {
    Owned {
        payload: payload.to_vec(),
        ..Owned::default()
    }
}

fn every_field() -> Vec<Owned> {
    let header = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
    vec![
        Owned {
            key: Some(b"sensor/7".to_vec()),
            version: -2,
            headers: vec![
                header(b"unit", b"kelvin"),
                header(b"unit", b""),
                header(b"", b"\x00\xff"),
            ],
            timestamp_ms: Some(1_700_000_000_250),
            fingerprint: Some(std::array::from_fn(|index| u8::try_from(index).unwrap())),
            ..of(b"291.5")
        },
        Owned {
            key: Some(Vec::new()),
            version: i64::MAX,
            tombstone: true,
            ..of(b"")
        },
        Owned {
            timestamp_ms: Some(0),
            ..of(b"neither key nor header")
        },
        of(b""),
    ]
}

fn cases() -> Vec<Case> {
    let arrival_ms = 1_700_000_000_100;
    let stamped = Stamp {
        base_sequence: 1 << 40,
        arrival_ms,
        timestamp_floor_ms: arrival_ms - 50,
        epoch: 9,
        mode: TimestampMode::ClientPrefer,
        cap: false,
    };
    let base = stamped.base_sequence;
    let producer = Some((b"producer-\xf0\x9f\x8c\x8a".to_vec(), 3, 12_345));
    vec![
        Case {
            name: "plain-smallest",
            about: "one empty record, as a client sends it",
            tags: Tags::default(),
            stamp: None,
            records: vec![of(b"")],
            kept: None,
            effective: vec![(0, 0)],
        },
        Case {
            name: "plain-every-field",
            about: "token, match at, producer; key, version, headers, timestamps, fingerprint, tombstone; stamped",
            tags: Tags {
                token: Some(9),
                matching: Some(MatchSequence::At(base - 1)),
                producer,
            },
            stamp: Some(stamped),
            records: every_field(),
            kept: None,
            effective: vec![
                (base, arrival_ms + 150),
                (base + 1, arrival_ms + 150),
                (base + 2, arrival_ms + 150),
                (base + 3, arrival_ms + 150),
            ],
        },
        Case {
            name: "plain-match-empty-capped",
            about: "match empty; client-require with the cap: the first timestamp is capped, the second raised",
            tags: Tags {
                matching: Some(MatchSequence::Empty),
                ..Tags::default()
            },
            stamp: Some(Stamp {
                base_sequence: 0,
                timestamp_floor_ms: 0,
                mode: TimestampMode::ClientRequire,
                cap: true,
                ..stamped
            }),
            records: vec![
                Owned {
                    timestamp_ms: Some(u64::MAX),
                    ..of(b"from the future")
                },
                Owned {
                    timestamp_ms: Some(1),
                    ..of(b"from the past")
                },
            ],
            kept: None,
            effective: vec![(0, arrival_ms), (1, arrival_ms)],
        },
        Case {
            name: "plain-arrival-below-floor",
            about: "mode arrival under a floor that is later: the floor is what readers see",
            tags: Tags::default(),
            stamp: Some(Stamp {
                base_sequence: 5,
                timestamp_floor_ms: arrival_ms + 7,
                mode: TimestampMode::Arrival,
                ..stamped
            }),
            records: vec![of(b"one"), of(b"two")],
            kept: None,
            effective: vec![(5, arrival_ms + 7), (6, arrival_ms + 7)],
        },
        Case {
            name: "sparse",
            about: "records 1 and 3 of plain-every-field after compaction",
            tags: Tags::default(),
            stamp: Some(stamped),
            records: every_field(),
            kept: Some(vec![1, 3]),
            effective: vec![(base + 1, arrival_ms + 150), (base + 3, arrival_ms + 150)],
        },
    ]
}

impl Case {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = build(&self.records, &self.tags).into_bytes();
        if let Some(with) = &self.stamp {
            stamp(&mut bytes, with);
        }
        let Some(kept) = &self.kept else { return bytes };
        let view = FrameView::parse(&bytes, &FrameLimits::DEFAULT).unwrap();
        let records = kept.iter().map(|index| view.record(*index).unwrap());
        seal_sparse(&view.server_stamp(), records, &FrameLimits::DEFAULT).unwrap()
    }

    fn file(&self) -> String {
        format!("{}.bin", self.name)
    }
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/frame/v1"
    ))
}

/// Every header field with its bytes in hex, in file order.
fn header_fields(bytes: &[u8]) -> String {
    const FIELDS: [(&str, usize); 23] = [
        ("magic", 4),
        ("format_version", 2),
        ("kind", 1),
        ("timestamp_mode", 1),
        ("frame_bytes", 4),
        ("header_crc", 4),
        ("body_crc", 4),
        ("cap", 1),
        ("reserved_server", 3),
        ("base_sequence", 8),
        ("arrival_ms", 8),
        ("timestamp_floor_ms", 8),
        ("epoch", 8),
        ("sequence_span", 8),
        ("record_count", 4),
        ("flags", 2),
        ("producer_id_bytes", 2),
        ("fencing_token", 8),
        ("match_sequence", 8),
        ("producer_epoch", 8),
        ("producer_sequence", 8),
        ("metered_bytes", 8),
        ("reserved_client", 16),
    ];
    let mut at = 0;
    let mut lines = Vec::new();
    for (field, size) in FIELDS {
        let hex = bytes[at..at + size]
            .iter()
            .fold(String::new(), |mut hex, byte| {
                write!(hex, "{byte:02x}").unwrap();
                hex
            });
        lines.push(format!("        \"{at:03} {field}\": \"{hex}\""));
        at += size;
    }
    assert_eq!(at, 128, "the fields above are the header");
    lines.join(",\n")
}

fn manifest() -> String {
    let files: Vec<_> = cases()
        .iter()
        .map(|case| {
            let bytes = case.encode();
            format!(
                "    {{\n      \"file\": \"{}\",\n      \"about\": \"{}\",\n      \"bytes\": {},\n      \
                 \"crc32c\": \"{:08x}\",\n      \"header\": {{\n{}\n      }}\n    }}",
                case.file(),
                case.about,
                bytes.len(),
                crc32c::crc32c(&bytes),
                header_fields(&bytes)
            )
        })
        .collect();
    format!(
        "{{\n  \"format\": \"frame\",\n  \"format_version\": 1,\n  \"files\": [\n{}\n  ]\n}}\n",
        files.join(",\n")
    )
}

#[test]
fn frame_v1_encodes_to_golden() {
    for case in cases() {
        let golden = fs::read(folder().join(case.file())).unwrap();
        assert_eq!(case.encode(), golden, "{}", case.name);
    }
}

#[test]
fn frame_v1_golden_decodes() {
    for case in cases() {
        let golden = fs::read(folder().join(case.file())).unwrap();
        assert_eq!(peek_frame_bytes(&golden), Ok(golden.len()));
        let view = FrameView::parse(&golden, &FrameLimits::DEFAULT).unwrap();
        assert_eq!(view.kind() == FrameKind::Sparse, case.kept.is_some());
        let with = case.stamp.unwrap_or_default();
        let base_sequence = case.effective[0].0;
        let expected = Stamp {
            base_sequence,
            ..with
        };
        assert_eq!(view.server_stamp(), expected, "{}", case.name);
        assert_eq!(view.fencing_token(), case.tags.token);
        assert_eq!(view.match_sequence(), case.tags.matching);
        let producer = view
            .producer()
            .map(|tag| (tag.id.to_vec(), tag.epoch, tag.sequence));
        assert_eq!(producer, case.tags.producer);
        let all = (0..case.records.len()).collect();
        let kept = case.kept.unwrap_or(all);
        let sent: Vec<_> = kept
            .iter()
            .map(|index| case.records[*index].borrow())
            .collect();
        let read: Vec<_> = view.records().map(|record| record.to_record()).collect();
        assert_eq!(read, sent, "{}", case.name);
        let effective: Vec<_> = view
            .records()
            .map(|record| (record.sequence, record.timestamp_ms))
            .collect();
        assert_eq!(effective, case.effective, "{}", case.name);
    }
}

#[test]
fn frame_v1_manifest_describes_the_files() {
    let found = fs::read_to_string(folder().join("manifest.json")).unwrap();
    assert_eq!(found, manifest());
    let files: BTreeSet<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected: BTreeSet<_> = cases().iter().map(Case::file).collect();
    expected.insert("manifest.json".to_owned());
    assert_eq!(files, expected, "no file without a case");
}

#[test]
#[ignore = "writes the golden files, once: cargo test -p sealog-frame --test golden -- --ignored"]
fn write_golden_files_once() {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder().join(name);
        let file = fs::File::create_new(&path);
        let mut file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        std::io::Write::write_all(&mut file, bytes).unwrap();
    };
    fs::create_dir_all(folder()).unwrap();
    for case in cases() {
        write(&case.file(), &case.encode());
    }
    write("manifest.json", manifest().as_bytes());
}
