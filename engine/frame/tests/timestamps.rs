//! Effective timestamps: the rule's cases, its properties, and its survival of compaction.
//!
//! **Invariants**
//! - The reference here is written the long way round, and shares no code with the crate.
//!
//! **Not here**: byte round trips (`roundtrip`), refused values (`refusals`).
#![allow(clippy::unwrap_used)]

mod common;

use common::{Owned, build, records};
use proptest::prelude::*;
use sealog_frame::{
    BatchBuilder, FrameError, FrameKind, FrameLimits, FrameView, MatchSequence, Record, Stamp,
    TimestampMode, seal_sparse, stamp,
};

const LIMITS: FrameLimits = FrameLimits::DEFAULT;
const MODES: [TimestampMode; 3] = [
    TimestampMode::ClientPrefer,
    TimestampMode::ClientRequire,
    TimestampMode::Arrival,
];

fn stamped(sent: &[Option<u64>], stamped: &Stamp) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    for timestamp_ms in sent {
        let record = Record {
            timestamp_ms: *timestamp_ms,
            ..Record::of(b"x")
        };
        builder.push(&record).unwrap();
    }
    let mut bytes = builder.build().unwrap().into_bytes();
    stamp(&mut bytes, stamped);
    bytes
}

fn effective(sent: &[Option<u64>], with: &Stamp) -> Vec<u64> {
    let bytes = stamped(sent, with);
    let view = FrameView::parse(&bytes, &LIMITS).unwrap();
    let effective: Vec<_> = view.records().map(|record| record.timestamp_ms).collect();
    assert_eq!(view.last_timestamp_ms(), *effective.last().unwrap());
    effective
}

fn at_arrival(arrival_ms: u64) -> Stamp {
    Stamp {
        arrival_ms,
        ..Stamp::default()
    }
}

#[test]
fn absent_timestamp_counts_as_arrival() {
    assert_eq!(
        effective(&[None, Some(150), None], &at_arrival(100)),
        [100, 150, 150]
    );
}

#[test]
fn falling_timestamps_are_raised() {
    assert_eq!(
        effective(&[Some(30), Some(10), Some(40)], &at_arrival(5)),
        [30, 30, 40]
    );
}

#[test]
fn future_timestamp_stays_without_the_cap() {
    assert_eq!(effective(&[Some(900)], &at_arrival(100)), [900]);
}

#[test]
fn future_timestamp_is_capped_with_the_cap() {
    let capped = Stamp {
        cap: true,
        ..at_arrival(100)
    };
    assert_eq!(effective(&[Some(900), Some(20)], &capped), [100, 100]);
}

#[test]
fn floor_above_arrival_wins_over_the_cap() {
    let floored = Stamp {
        cap: true,
        timestamp_floor_ms: 500,
        ..at_arrival(100)
    };
    assert_eq!(
        effective(&[Some(900), None, Some(2)], &floored),
        [500, 500, 500]
    );
}

#[test]
fn arrival_mode_ignores_what_was_sent() {
    let arrival = Stamp {
        mode: TimestampMode::Arrival,
        timestamp_floor_ms: 40,
        ..at_arrival(100)
    };
    let bytes = stamped(&[Some(900), None], &arrival);
    let view = FrameView::parse(&bytes, &LIMITS).unwrap();
    let both: Vec<_> = view
        .records()
        .map(|record| (record.timestamp_ms, record.sent_timestamp_ms))
        .collect();
    assert_eq!(both, [(100, Some(900)), (100, None)]);
}

#[test]
fn all_timestamped_needs_every_record() {
    let mut bytes = stamped(&[Some(1), Some(0)], &Stamp::default());
    assert!(FrameView::parse(&bytes, &LIMITS).unwrap().all_timestamped());
    bytes = stamped(&[Some(1), None], &Stamp::default());
    assert!(!FrameView::parse(&bytes, &LIMITS).unwrap().all_timestamped());
}

fn stamps() -> impl Strategy<Value = Stamp> {
    // Small values, so that floor, arrival and sent times cross each other.
    (
        0..50_u64,
        0..50_u64,
        0..3_usize,
        any::<bool>(),
        0..1_000_u64,
    )
        .prop_map(
            |(arrival_ms, timestamp_floor_ms, mode, cap, base_sequence)| Stamp {
                base_sequence,
                arrival_ms,
                timestamp_floor_ms,
                epoch: 3,
                mode: MODES[mode],
                cap,
            },
        )
}

/// max(floor, t_0..=t_i), each t as chosen by mode and cap.
fn reference(sent: &[Option<u64>], with: &Stamp, index: usize) -> u64 {
    let mut result = with.timestamp_floor_ms;
    for sent in &sent[..=index] {
        let mut chosen = with.arrival_ms;
        if with.mode != TimestampMode::Arrival && sent.is_some() {
            chosen = sent.unwrap();
        }
        if with.cap && chosen > with.arrival_ms {
            chosen = with.arrival_ms;
        }
        if chosen > result {
            result = chosen;
        }
    }
    result
}

/// Records with small timestamps.
fn timed() -> impl Strategy<Value = Vec<Owned>> {
    records().prop_map(|mut records| {
        for record in &mut records {
            record.timestamp_ms = record.timestamp_ms.map(|at| at % 60);
        }
        records
    })
}

proptest! {
    #[test]
    fn effective_timestamps_equal_the_reference_and_never_fall(
        sent in proptest::collection::vec(proptest::option::of(0..60_u64), 1..20),
        with in stamps(),
    ) {
        let effective = effective(&sent, &with);
        for (index, at) in effective.iter().enumerate() {
            prop_assert_eq!(*at, reference(&sent, &with, index));
        }
        prop_assert!(effective.is_sorted());
        prop_assert!(effective[0] >= with.timestamp_floor_ms);
    }

    #[test]
    fn roundtrip_sparse_keeps_what_is_kept(
        records in timed(),
        with in stamps(),
        keep in proptest::collection::vec(any::<bool>(), 20),
    ) {
        let mut bytes = build(&records, &common::Tags {
            token: Some(3),
            matching: Some(MatchSequence::Empty),
            producer: Some((b"p".to_vec(), 1, 1)),
        }).into_bytes();
        stamp(&mut bytes, &with);
        let source = FrameView::parse(&bytes, &LIMITS).unwrap();
        let kept: Vec<_> = source.records().zip(&keep).filter(|(_, keep)| **keep).map(|(record, _)| record).collect();
        let sealed = seal_sparse(&source.server_stamp(), kept.iter().copied(), &LIMITS);
        if kept.is_empty() {
            prop_assert_eq!(sealed, Err(FrameError::Empty));
            return Ok(());
        }
        let sealed = sealed.unwrap();
        let sparse = FrameView::parse(&sealed, &LIMITS).unwrap();
        prop_assert_eq!(sparse.kind(), FrameKind::Sparse);
        prop_assert_eq!(sparse.base_sequence(), kept[0].sequence);
        prop_assert_eq!(sparse.last_sequence(), kept[kept.len() - 1].sequence);
        prop_assert_eq!(sparse.last_timestamp_ms(), kept[kept.len() - 1].timestamp_ms);
        prop_assert_eq!((sparse.arrival_ms(), sparse.epoch()), (with.arrival_ms, 3));
        prop_assert_eq!((sparse.fencing_token(), sparse.match_sequence(), sparse.producer()), (None, None, None));
        for (index, (found, expected)) in sparse.records().zip(&kept).enumerate() {
            prop_assert_eq!((found.sequence, found.timestamp_ms), (expected.sequence, expected.timestamp_ms));
            prop_assert_eq!(found.to_record(), expected.to_record());
            let ((entry, area), (was_entry, was_area)) = (found.encoded(), expected.encoded());
            prop_assert_eq!((&entry[4..], area), (&was_entry[4..], was_area));
            prop_assert_eq!(sparse.record(index), Some(found));
        }
        prop_assert_eq!(sparse.records().count(), kept.len());
        let again = seal_sparse(&sparse.server_stamp(), sparse.records(), &LIMITS).unwrap();
        prop_assert_eq!(again, sealed);
    }
}

/// Three records at sequences 10, 11, 14 with effective timestamps 5, 7, 9.
fn sparse() -> Vec<u8> {
    let sent: Vec<_> = [5, 7, 9, 9, 2].map(Some).into();
    let with = Stamp {
        base_sequence: 10,
        ..Stamp::default()
    };
    let bytes = stamped(&sent, &with);
    let view = FrameView::parse(&bytes, &LIMITS).unwrap();
    let kept = view
        .records()
        .filter(|record| ![12, 13].contains(&record.sequence));
    seal_sparse(&with, kept, &LIMITS).unwrap()
}

#[test]
fn sparse_record_keeps_a_timestamp_raised_by_records_taken_out() {
    let bytes = sparse();
    let view = FrameView::parse(&bytes, &LIMITS).unwrap();
    let kept: Vec<_> = view
        .records()
        .map(|record| {
            (
                record.sequence,
                record.timestamp_ms,
                record.sent_timestamp_ms,
            )
        })
        .collect();
    assert_eq!(kept, [(10, 5, Some(5)), (11, 7, Some(7)), (14, 9, Some(2))]);
    assert_eq!(view.sequence_span(), 5);
    assert_eq!(view.end_sequence(), 15);
}

#[test]
fn sparse_columns_that_do_not_rise_are_refused() {
    // Entries at 128..224, deltas at 224, timestamps at 236, data at 260.
    let table: &[(usize, &[u8], &str, u64)] = &[
        (224, &[1], "sequence_delta", 1),
        (228, &[0], "sequence_delta", 0),
        (232, &[1], "sequence_delta", 1),
        (232, &[3], "sequence_span", 5),
        (232, &[5], "sequence_span", 5),
        (244, &[4], "effective_timestamp_ms", 4),
        (252, &[6], "effective_timestamp_ms", 6),
        (56, &[2], "sequence_span", 2),
        (61, &[1], "sequence_span", (1 << 40) + 5),
        (68, &[1], "flags", 1),
    ];
    for (at, value, field, found) in table {
        let mut bytes = sparse();
        bytes[*at..*at + value.len()].copy_from_slice(value);
        common::reseal(&mut bytes);
        let refused = FrameView::parse(&bytes, &LIMITS).unwrap_err();
        let expected = FrameError::Invalid {
            field,
            value: *found,
        };
        assert_eq!(refused, expected, "offset {at} set to {value:?}");
    }
}

#[test]
fn sparse_records_out_of_order_are_refused() {
    let bytes = stamped(&[None, None], &Stamp::default());
    let view = FrameView::parse(&bytes, &LIMITS).unwrap();
    let mut records: Vec<_> = view.records().collect();
    records.reverse();
    assert!(seal_sparse(&Stamp::default(), records.clone(), &LIMITS).is_err());
    records[1] = records[0];
    assert!(seal_sparse(&Stamp::default(), records.clone(), &LIMITS).is_err());
    records[1].sequence = records[0].sequence + (1 << 32);
    let expected = FrameError::Invalid {
        field: "sequence_delta",
        value: 1 << 32,
    };
    assert_eq!(
        seal_sparse(&Stamp::default(), records, &LIMITS),
        Err(expected)
    );
}

#[test]
fn sparse_span_outside_its_bounds_is_refused_without_the_columns_too() {
    for span in [2_u64, (1 << 32) + 1] {
        let mut bytes = sparse();
        bytes[56..64].copy_from_slice(&span.to_le_bytes());
        let expected = FrameError::Invalid {
            field: "sequence_span",
            value: span,
        };
        assert_eq!(FrameView::trusted(&bytes).unwrap_err(), expected);
    }
}
