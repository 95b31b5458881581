//! Round trips: what is built is what is read, and no bytes make a view panic.
//!
//! **Invariants**
//! - Every property runs over PLAIN frames of every combination of tags and record fields.
//!
//! **Not here**: single refusals (`refusals`), timestamps (`timestamps`), SPARSE frames (`sparse`).
#![allow(clippy::unwrap_used)]

mod common;

use common::{Owned, Tags, build, builder, plain, record, records, reseal, tags};
use proptest::prelude::*;
use sealog_frame::{
    Batch, BatchBuilder, FrameError, FrameKind, FrameLimits, FrameView, MatchSequence, ProducerTag,
    Record, Stamp, TimestampMode, peek_frame_bytes, stamp,
};

const LIMITS: FrameLimits = FrameLimits::DEFAULT;

/// Calls everything a view offers; answers how many records it yielded.
fn exercise(view: &FrameView<'_>) -> usize {
    let _ = (view.producer(), view.fencing_token(), view.match_sequence());
    let _ = (
        view.payload_bytes(),
        view.last_timestamp_ms(),
        view.last_sequence(),
    );
    let _ = (view.all_timestamped(), view.server_stamp());
    let mut seen = 0;
    for record in view.records() {
        seen += 1;
        let _ = (record.headers().count(), record.encoded());
    }
    for index in [0, 1, view.record_count() - 1, view.record_count()] {
        let _ = view.record(index);
    }
    seen
}

/// The frame's records, tags and stamp, encoded anew.
fn encode_again(view: &FrameView<'_>) -> Vec<u8> {
    let tags = Tags {
        token: view.fencing_token(),
        matching: view.match_sequence(),
        producer: view
            .producer()
            .map(|tag| (tag.id.to_vec(), tag.epoch, tag.sequence)),
    };
    let mut builder = builder(&tags);
    for record in view.records() {
        builder.push(&record.to_record()).unwrap();
    }
    let mut bytes = builder.build().unwrap().into_bytes();
    stamp(&mut bytes, &view.server_stamp());
    bytes
}

proptest! {
    #[test]
    fn roundtrip_records_and_tags(records in records(), tags in tags()) {
        let batch = build(&records, &tags);
        let view = FrameView::parse(batch.as_bytes(), &LIMITS).unwrap();
        prop_assert_eq!(view.record_count(), records.len());
        prop_assert_eq!(view.fencing_token(), tags.token);
        prop_assert_eq!(view.match_sequence(), tags.matching);
        let producer = tags.producer.as_ref().map(|(id, epoch, sequence)| ProducerTag {
            id,
            epoch: *epoch,
            sequence: *sequence,
        });
        prop_assert_eq!(view.producer(), producer);
        prop_assert_eq!(view.is_keyed(), records.iter().any(|record| record.key.is_some()));
        let payload_bytes: usize = records.iter().map(|record| record.payload.len()).sum();
        prop_assert_eq!(view.payload_bytes(), payload_bytes as u64);
        let read: Vec<_> = view.records().map(|record| record.to_record()).collect();
        let sent: Vec<_> = records.iter().map(Owned::borrow).collect();
        prop_assert_eq!(read, sent);
    }

    #[test]
    fn roundtrip_through_record_views_is_byte_identical(records in records(), tags in tags()) {
        let batch = build(&records, &tags);
        prop_assert_eq!(encode_again(&batch.view()), batch.as_bytes());
    }

    #[test]
    fn record_by_index_equals_record_in_order(records in records(), mode in 0..3_u8) {
        let mut bytes = build(&records, &Tags::default()).into_bytes();
        let mode = [TimestampMode::ClientPrefer, TimestampMode::ClientRequire, TimestampMode::Arrival]
            [usize::from(mode)];
        stamp(&mut bytes, &Stamp { base_sequence: 7, arrival_ms: 1_000, mode, ..Stamp::default() });
        let view = FrameView::parse(&bytes, &LIMITS).unwrap();
        for (index, record) in view.records().enumerate() {
            prop_assert_eq!(view.record(index), Some(record));
        }
        prop_assert_eq!(view.record(records.len()), None);
        let last = view.records().last().unwrap();
        prop_assert_eq!(view.last_timestamp_ms(), last.timestamp_ms);
        prop_assert_eq!(view.last_sequence(), last.sequence);
    }

    #[test]
    fn never_panics_on_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(FrameView::parse(&bytes, &LIMITS).is_err());
        let mut bytes = bytes;
        if bytes.len() > 7 {
            bytes[..8].copy_from_slice(b"SLF1\x01\x00\x01\x00");
        }
        let _ = peek_frame_bytes(&bytes);
        reseal(&mut bytes);
        if let Ok(view) = FrameView::parse(&bytes, &LIMITS) {
            prop_assert_eq!(exercise(&view), view.record_count());
        }
    }

    #[test]
    fn never_panics_on_mutated_frames(
        records in records(),
        tags in tags(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = build(&records, &tags).into_bytes();
        let before = bytes.clone();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if bytes != before {
            prop_assert!(FrameView::parse(&bytes, &LIMITS).is_err(), "a changed byte went unseen");
        }
        if let Ok(view) = FrameView::trusted(&bytes) {
            prop_assert!(exercise(&view) <= view.record_count());
        }
        reseal(&mut bytes);
        if let Ok(view) = FrameView::parse(&bytes, &LIMITS) {
            prop_assert_eq!(exercise(&view), view.record_count());
            if view.kind() == FrameKind::Plain {
                prop_assert_eq!(encode_again(&view), bytes, "FRAME-14");
            }
        }
    }

    #[test]
    fn never_panics_on_cut_frames(records in records(), at in any::<prop::sample::Index>()) {
        let bytes = build(&records, &Tags::default()).into_bytes();
        let cut = &bytes[..at.index(bytes.len())];
        let refused = FrameView::parse(cut, &LIMITS).unwrap_err();
        prop_assert!(matches!(refused, FrameError::Truncated { .. }), "{refused}");
        prop_assert!(FrameView::trusted(cut).is_err());
    }

    #[test]
    fn would_fit_agrees_with_push(records in proptest::collection::vec(record(), 1..30)) {
        let limits = FrameLimits { batch_bytes_max: 300, records_max: 5, headers_max: 6, ..LIMITS };
        let mut builder = BatchBuilder::new(limits);
        for record in &records {
            let record = record.borrow();
            let (fits, before) = (builder.would_fit(&record), builder.len());
            prop_assert_eq!(builder.push(&record).is_ok(), fits);
            prop_assert_eq!(builder.len(), before + usize::from(fits));
        }
        if !builder.is_empty() {
            let metered_bytes = builder.metered_bytes();
            let batch = builder.build().unwrap();
            prop_assert_eq!(batch.view().metered_bytes(), metered_bytes);
            prop_assert!(FrameView::parse(batch.as_bytes(), &limits).is_ok());
            prop_assert!(batch.as_bytes().len() <= limits.frame_bytes_max());
        }
    }
}

#[test]
fn key_of_length_zero_is_not_no_key() {
    let mut builder = BatchBuilder::default();
    builder.push(&Record::keyed(b"", 1, b"a")).unwrap();
    builder.push(&Record::of(b"b")).unwrap();
    let batch = builder.build().unwrap();
    let keys: Vec<_> = batch.view().records().map(|record| record.key).collect();
    assert_eq!(keys, [Some(&b""[..]), None]);
    assert!(batch.view().is_keyed());
}

#[test]
fn payload_of_length_zero_is_a_record() {
    let batch = plain(&[b"", b"x", b""]);
    let view = FrameView::parse(batch.as_bytes(), &LIMITS).unwrap();
    let payloads: Vec<_> = view.records().map(|record| record.payload).collect();
    assert_eq!(payloads, [&b""[..], b"x", b""]);
    assert_eq!(plain(&[b""]).as_bytes().len(), 128 + 32);
}

#[test]
fn build_leaves_an_empty_builder() {
    let mut builder = BatchBuilder::default();
    builder
        .fencing_token(3)
        .match_sequence(MatchSequence::At(9));
    builder.producer(b"p", 1, 2).unwrap();
    builder.push(&Record::keyed(b"k", 1, b"v")).unwrap();
    builder.build().unwrap();
    assert!(builder.is_empty());
    assert_eq!(builder.build(), Err(FrameError::Empty));
    builder.push(&Record::of(b"next")).unwrap();
    assert_eq!(builder.build().unwrap(), plain(&[b"next"]));
}

#[test]
fn stamp_leaves_the_body_alone() {
    let batch = plain(&[b"a", b"b"]);
    let mut bytes = batch.as_bytes().to_vec();
    let stamped = Stamp {
        base_sequence: 100,
        arrival_ms: 5_000,
        timestamp_floor_ms: 4_000,
        epoch: 12,
        mode: TimestampMode::ClientRequire,
        cap: true,
    };
    stamp(&mut bytes, &stamped);
    assert_eq!(bytes[64..], batch.as_bytes()[64..]);
    let view = FrameView::parse(&bytes, &LIMITS).unwrap();
    assert_eq!(view.server_stamp(), stamped);
    assert_eq!(view.end_sequence(), 102);
    let sequences: Vec<_> = view.records().map(|record| record.sequence).collect();
    assert_eq!(sequences, [100, 101]);
}

#[test]
fn fencing_token_seals_anew() {
    let batch = plain(&[b"a"]).with_fencing_token(77);
    let view = FrameView::parse(batch.as_bytes(), &LIMITS).unwrap();
    assert_eq!(view.fencing_token(), Some(77));
    assert_eq!(
        Batch::from_bytes(batch.clone().into_bytes(), &LIMITS),
        Ok(batch)
    );
}

#[test]
fn peek_needs_64_bytes_and_a_whole_header_sum() {
    let batch = plain(&[b"abc"]);
    let bytes = batch.as_bytes();
    assert_eq!(peek_frame_bytes(&bytes[..64]), Ok(bytes.len()));
    let truncated = FrameError::Truncated {
        needed: 64,
        have: 63,
    };
    assert_eq!(peek_frame_bytes(&bytes[..63]), Err(truncated));
    let mut broken = bytes.to_vec();
    broken[8] ^= 1;
    let refused = peek_frame_bytes(&broken).unwrap_err();
    assert!(
        matches!(refused, FrameError::Checksum { what: "header", .. }),
        "{refused}"
    );
}

#[test]
fn split_trusted_walks_frames_end_to_end() {
    let (one, two) = (plain(&[b"1"]), plain(&[b"2", b"3"]));
    let bytes = [one.as_bytes(), two.as_bytes()].concat();
    let (first, rest) = FrameView::split_trusted(&bytes).unwrap();
    let (second, rest) = FrameView::split_trusted(rest).unwrap();
    assert_eq!(
        (first.as_bytes(), second.as_bytes()),
        (one.as_bytes(), two.as_bytes())
    );
    assert!(rest.is_empty());
    assert!(FrameView::trusted(&bytes).is_err(), "a view is one frame");
}
