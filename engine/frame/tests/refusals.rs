//! Refusals: every limit at its edge, and every field with a value the layout forbids.
//!
//! **Invariants**
//! - A limit's refusal names the value and the limit; at the limit itself there is none.
//! - Broken bytes are sealed again before they are parsed: the field is refused, not its checksum.
//!
//! **Not here**: bytes that only a checksum can tell (`roundtrip`).
#![allow(clippy::unwrap_used)]

mod common;

use common::{plain, reseal, reseal_sums};
use sealog_frame::{
    Batch, BatchBuilder, FrameError, FrameLimits, FrameView, MatchSequence, Record, Stamp,
    peek_frame_bytes, seal_sparse, stamp,
};

const SMALL: FrameLimits = FrameLimits {
    record_bytes_max: 10,
    key_bytes_max: 4,
    batch_bytes_max: 20,
    records_max: 3,
    producer_id_bytes_max: 5,
    headers_max: 2,
};

fn large(what: &'static str, bytes: u64, limit: u64) -> FrameError {
    FrameError::TooLarge { what, bytes, limit }
}

fn many(what: &'static str, count: u64, limit: u64) -> FrameError {
    FrameError::TooMany { what, count, limit }
}

fn invalid(field: &'static str, value: u64) -> FrameError {
    FrameError::Invalid { field, value }
}

/// Pushes `records` under `limits`, and parses a batch made without limits under them: both must say the same.
fn refusal(records: &[Record<'_>], limits: &FrameLimits) -> Option<FrameError> {
    let mut builder = BatchBuilder::new(*limits);
    let pushed = records
        .iter()
        .try_for_each(|record| builder.push(record))
        .err();
    let mut builder = BatchBuilder::default();
    for record in records {
        builder.push(record).unwrap();
    }
    let batch = builder.build().unwrap();
    let parsed = FrameView::parse(batch.as_bytes(), limits).err();
    assert_eq!(
        pushed.is_some(),
        parsed.is_some(),
        "{pushed:?} against {parsed:?}"
    );
    pushed
}

#[test]
fn record_over_its_limit_is_refused() {
    assert_eq!(refusal(&[Record::of(&[0; 10])], &SMALL), None);
    assert_eq!(
        refusal(&[Record::of(&[0; 11])], &SMALL),
        Some(large("record", 11, 10))
    );
    let mut record = Record::of(&[0; 5]);
    record.headers = vec![(b"abc", b"def")];
    assert_eq!(refusal(&[record], &SMALL), Some(large("record", 11, 10)));
}

#[test]
fn key_over_its_limit_is_refused() {
    assert_eq!(refusal(&[Record::keyed(b"1234", 0, b"")], &SMALL), None);
    let refused = refusal(&[Record::keyed(b"12345", 0, b"")], &SMALL);
    assert_eq!(refused, Some(large("key", 5, 4)));
}

#[test]
fn batch_over_its_limit_is_refused() {
    let ten = Record::of(&[0; 10]);
    assert_eq!(refusal(&[ten.clone(), ten.clone()], &SMALL), None);
    let refused = refusal(&[ten.clone(), ten, Record::of(b"x")], &SMALL);
    assert_eq!(refused, Some(large("batch", 21, 20)));
}

#[test]
fn records_over_their_limit_are_refused() {
    let empty = Record::of(b"");
    let three = vec![empty.clone(); 3];
    assert_eq!(refusal(&three, &SMALL), None);
    assert_eq!(
        refusal(&vec![empty; 4], &SMALL),
        Some(many("records", 4, 3))
    );
}

#[test]
fn headers_over_their_limit_are_refused() {
    let with = |count: usize| Record {
        headers: vec![(b"", b""); count],
        ..Record::default()
    };
    assert_eq!(refusal(&[with(1), with(1)], &SMALL), None);
    assert_eq!(
        refusal(&[with(2), with(1)], &SMALL),
        Some(many("headers", 3, 2))
    );
}

#[test]
fn producer_id_outside_its_limits_is_refused() {
    let mut builder = BatchBuilder::new(SMALL);
    assert!(builder.producer(b"12345", 0, 0).is_ok());
    assert_eq!(
        builder.producer(b"123456", 0, 0).err(),
        Some(large("producer_id", 6, 5))
    );
    assert_eq!(
        builder.producer(b"", 0, 0).err(),
        Some(invalid("producer_id_bytes", 0))
    );
    let mut builder = BatchBuilder::default();
    builder.producer(b"123456", 0, 0).unwrap();
    builder.push(&Record::of(b"")).unwrap();
    let batch = builder.build().unwrap();
    let refused = FrameView::parse(batch.as_bytes(), &SMALL).unwrap_err();
    assert_eq!(refused, large("producer_id", 6, 5));
}

#[test]
fn frame_over_its_limit_is_refused_before_its_body_is_there() {
    let mut bytes = plain(&[b"abc"]).into_bytes();
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    reseal_sums(&mut bytes);
    let limit = FrameLimits::DEFAULT.frame_bytes_max() as u64;
    let refused = FrameView::parse(&bytes, &FrameLimits::DEFAULT).unwrap_err();
    assert_eq!(refused, large("frame", u64::from(u32::MAX), limit));
}

#[test]
fn default_limits_are_the_documented_ones() {
    let limits = FrameLimits::default();
    let mut builder = BatchBuilder::default();
    let payload = vec![0; 16 << 20];
    builder.push(&Record::of(&payload)).unwrap();
    let refused = builder.push(&Record::of(b"x")).unwrap_err();
    assert_eq!(refused, large("batch", (16 << 20) + 1, 16 << 20));
    let batch = builder.build().unwrap();
    assert!(FrameView::parse(batch.as_bytes(), &limits).is_ok());
    for _ in 0..65_536 {
        builder.push(&Record::of(b"")).unwrap();
    }
    let refused = builder.push(&Record::of(b"")).unwrap_err();
    assert_eq!(refused, many("records", 65_537, 65_536));
    let batch = builder.build().unwrap();
    assert!(FrameView::parse(batch.as_bytes(), &limits).is_ok());
}

#[test]
fn limits_above_the_formats_own_do_not_count() {
    let raised = FrameLimits {
        key_bytes_max: usize::MAX,
        batch_bytes_max: usize::MAX,
        records_max: usize::MAX,
        ..FrameLimits::DEFAULT
    };
    assert_eq!(raised.frame_bytes_max(), u32::MAX as usize);
    assert_eq!(raised.lowered(), FrameLimits::DEFAULT);
    let key = vec![0; 65_537];
    let refused = BatchBuilder::new(raised).push(&Record::keyed(&key, 0, b""));
    assert_eq!(refused, Err(large("key", 65_537, 65_536)));
}

#[test]
fn tombstone_without_key_is_refused() {
    let tombstone = Record {
        tombstone: true,
        ..Record::of(b"x")
    };
    let mut builder = BatchBuilder::default();
    assert_eq!(builder.push(&tombstone), Err(invalid("record flags", 1)));
    assert!(!builder.would_fit(&tombstone));
    let keyed = Record {
        tombstone: true,
        ..Record::keyed(b"", 1, b"")
    };
    builder.push(&keyed).unwrap();
    let mut bytes = builder.build().unwrap().into_bytes();
    assert!(
        FrameView::parse(&bytes, &FrameLimits::DEFAULT)
            .unwrap()
            .record(0)
            .unwrap()
            .tombstone
    );
    bytes[132..136].fill(0xff);
    reseal(&mut bytes);
    let refused = FrameView::parse(&bytes, &FrameLimits::DEFAULT).unwrap_err();
    assert_eq!(refused, invalid("record flags", 1));
}

#[test]
fn empty_batch_is_refused() {
    assert_eq!(BatchBuilder::default().build(), Err(FrameError::Empty));
    // A frame with no record at all is shorter than the shortest one; with a producer id it is long enough.
    let mut builder = BatchBuilder::default();
    builder.producer(&[0; 40], 0, 0).unwrap();
    builder.push(&Record::of(b"")).unwrap();
    let mut bytes = builder.build().unwrap().into_bytes();
    bytes.truncate(168);
    put(&mut bytes, 64, &0_u32.to_le_bytes());
    put(&mut bytes, 56, &0_u64.to_le_bytes());
    reseal(&mut bytes);
    let refused = FrameView::parse(&bytes, &FrameLimits::DEFAULT).unwrap_err();
    assert_eq!(refused, invalid("record_count", 0));
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A frame with every field in use: two records, the first with key, header, timestamp and fingerprint.
fn full() -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    builder
        .fencing_token(3)
        .match_sequence(MatchSequence::At(9));
    builder.producer(b"id", 1, 2).unwrap();
    let first = Record {
        headers: vec![(b"n", b"v")],
        timestamp_ms: Some(50),
        fingerprint: Some([7; 32]),
        ..Record::keyed(b"key", 4, b"payload")
    };
    builder.push(&first).unwrap();
    builder.push(&Record::of(b"second")).unwrap();
    builder.build().unwrap().into_bytes()
}

#[test]
fn every_forbidden_value_is_refused_by_name() {
    // Body: producer id at 128, entries at 130 and 162, areas from 194: key 3, headers 10, fingerprint 32, payload 7.
    let table: &[(usize, &[u8], FrameError)] = &[
        (
            0,
            b"SLF2",
            FrameError::Magic {
                found: u32::from_le_bytes(*b"SLF2"),
            },
        ),
        (
            4,
            &[2, 0],
            FrameError::Version {
                found: 2,
                supported: 1,
            },
        ),
        (
            4,
            &[0, 0],
            FrameError::Version {
                found: 0,
                supported: 1,
            },
        ),
        (6, &[0], invalid("kind", 0)),
        (6, &[3], invalid("kind", 3)),
        (7, &[3], invalid("timestamp_mode", 3)),
        (20, &[2], invalid("cap", 2)),
        (22, &[5], invalid("reserved (server section)", 5)),
        (24, &[0xff; 8], invalid("base_sequence", u64::MAX)),
        (56, &[3], invalid("sequence_span", 3)),
        (64, &[200], invalid("sequence_span", 2)),
        (68, &[29 + 32], invalid("flags", 61)),
        (68, &[31], invalid("flags", 31)),
        (68, &[28], invalid("fencing_token", 3)),
        (68, &[25], invalid("match_sequence", 9)),
        (68, &[27], invalid("match_sequence", 9)),
        (68, &[21], invalid("producer_id_bytes", 2)),
        (68, &[13], invalid("flags", 13)),
        (70, &[0, 0], invalid("producer_id_bytes", 0)),
        (104, &[99], invalid("metered_bytes", 99)),
        (127, &[1], invalid("reserved (client section)", 1)),
        (130, &[0xff; 4], invalid("data_end", u64::from(u32::MAX))),
        (162, &[57], invalid("data_end", 57)),
        (
            138,
            &[0xff; 4],
            invalid("headers_bytes", u64::from(u32::MAX)),
        ),
        (138, &[11], invalid("headers", 11)),
        (142, &[14], invalid("record flags", 14)),
        (142, &[4], invalid("timestamp_ms", 50)),
        (178, &[1], invalid("timestamp_ms", 1)),
        (197, &[9], invalid("headers", 10)),
    ];
    assert!(FrameView::parse(&full(), &FrameLimits::DEFAULT).is_ok());
    for (at, value, expected) in table {
        let mut bytes = full();
        put(&mut bytes, *at, value);
        let at_178 = *at == 178;
        if at_178 {
            assert_eq!(bytes[174..178], [0; 4], "the second record has no flags");
        }
        reseal_sums(&mut bytes);
        let refused = FrameView::parse(&bytes, &FrameLimits::DEFAULT).unwrap_err();
        assert_eq!(&refused, expected, "offset {at} set to {value:?}");
    }
}

#[test]
fn producer_fields_without_a_producer_are_refused() {
    for (at, field) in [(88, "producer_epoch"), (96, "producer_sequence")] {
        let mut bytes = plain(&[b"abc"]).into_bytes();
        bytes[at] = 6;
        reseal(&mut bytes);
        let refused = FrameView::parse(&bytes, &FrameLimits::DEFAULT).unwrap_err();
        assert_eq!(refused, invalid(field, 6));
    }
}

#[test]
fn views_of_lengths_shorter_than_a_header_are_refused() {
    for length in [0_u32, 63, 64, 100, 127, 128, 159] {
        let mut bytes = plain(&[b"abc"]).into_bytes();
        put(&mut bytes, 8, &length.to_le_bytes());
        reseal_sums(&mut bytes);
        let short = invalid("frame_bytes", u64::from(length));
        assert_eq!(peek_frame_bytes(&bytes), Err(short));
        assert!(FrameView::split_trusted(&bytes).is_err());
        bytes.truncate((length as usize).max(64));
        reseal_sums(&mut bytes);
        assert!(FrameView::trusted(&bytes).is_err());
        assert!(FrameView::parse(&bytes, &FrameLimits::DEFAULT).is_err());
    }
}

#[test]
fn length_field_other_than_the_bytes_is_refused() {
    for (length, expected) in [
        (0_u32, invalid("frame_bytes", 0)),
        (159, invalid("frame_bytes", 159)),
        (160, invalid("frame_bytes", 160)),
        (
            164,
            FrameError::Truncated {
                needed: 164,
                have: 163,
            },
        ),
    ] {
        let mut bytes = plain(&[b"abc"]).into_bytes();
        put(&mut bytes, 8, &length.to_le_bytes());
        reseal_sums(&mut bytes);
        let refused = FrameView::parse(&bytes, &FrameLimits::DEFAULT).unwrap_err();
        assert_eq!(refused, expected);
        assert_eq!(FrameView::trusted(&bytes).unwrap_err(), expected);
    }
}

#[test]
fn checksums_are_refused_by_name() {
    for (at, what) in [(30, "header"), (12, "header"), (104, "body"), (162, "body")] {
        let mut bytes = plain(&[b"abc"]).into_bytes();
        bytes[at] ^= 0x10;
        let refused = FrameView::parse(&bytes, &FrameLimits::DEFAULT).unwrap_err();
        let named = matches!(refused, FrameError::Checksum { what: found, .. } if found == what);
        assert!(named, "{refused} at {at}");
        assert!(
            FrameView::trusted(&bytes).is_ok(),
            "a trusted view does not sum"
        );
    }
}

#[test]
fn sparse_frame_is_not_a_batch() {
    let batch = plain(&[b"a", b"b"]);
    let view = batch.view();
    let sparse = seal_sparse(&view.server_stamp(), view.records(), &FrameLimits::DEFAULT).unwrap();
    assert!(FrameView::parse(&sparse, &FrameLimits::DEFAULT).is_ok());
    let refused = Batch::from_bytes(sparse, &FrameLimits::DEFAULT).unwrap_err();
    assert_eq!(refused, invalid("kind", 2));
}

#[test]
#[should_panic(expected = "sequences end at u64::MAX")]
fn stamp_beyond_the_last_sequence_panics() {
    let mut bytes = plain(&[b"a", b"b"]).into_bytes();
    let stamped = Stamp {
        base_sequence: u64::MAX - 1,
        ..Stamp::default()
    };
    stamp(&mut bytes, &stamped);
}

#[test]
fn errors_name_value_and_limit() {
    assert_eq!(
        large("key", 5, 4).to_string(),
        "key of 5 bytes is over the limit of 4"
    );
    assert_eq!(
        many("records", 4, 3).to_string(),
        "4 records are over the limit of 3"
    );
    assert_eq!(invalid("kind", 3).to_string(), "field kind holds 3");
}
