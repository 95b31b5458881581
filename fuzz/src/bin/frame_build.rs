//! Target frame_build: records and tags chosen by the fuzzer, built, stamped, compacted, read back.
//!
//! **Invariants**
//! - What was pushed is what is read, in order; a refused record changes nothing.
//! - Compaction keeps sequence, effective timestamp and bytes of every record it keeps (FRAME-12).
//!
//! **Not here**: bytes that nobody built (`frame`).
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_frame::{
    BatchBuilder, FrameLimits, FrameView, MatchSequence, Record, Stamp, TimestampMode, seal_sparse,
    stamp,
};
use sealog_fuzz::Choices;

/// Small, so that a fuzzer's few bytes reach every limit.
const LIMITS: FrameLimits = FrameLimits {
    record_bytes_max: 200,
    key_bytes_max: 20,
    batch_bytes_max: 600,
    records_max: 8,
    producer_id_bytes_max: 16,
    headers_max: 6,
};

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices(input);
    let mut builder = BatchBuilder::new(LIMITS);
    tags(&mut choices, &mut builder);
    let stamped = stamps(&mut choices);
    let keep = choices.byte();
    let mut pushed = Vec::new();
    while !choices.is_spent() {
        let record = record(&mut choices);
        let fits = builder.would_fit(&record);
        assert_eq!(builder.push(&record).is_ok(), fits);
        if fits {
            pushed.push(record);
        }
        assert_eq!(builder.len(), pushed.len());
    }
    let Ok(batch) = builder.build() else {
        assert!(pushed.is_empty());
        return;
    };
    let mut bytes = batch.into_bytes();
    stamp(&mut bytes, &stamped);
    let view = FrameView::parse_plain(&bytes, &LIMITS).expect("what was built parses");
    assert_eq!(view.server_stamp(), stamped);
    let read: Vec<_> = view.records().map(|record| record.to_record()).collect();
    assert_eq!(read, pushed);

    let kept: Vec<_> = view
        .records()
        .enumerate()
        .filter(|(index, _)| keep >> (index % 8) & 1 == 1)
        .map(|(_, record)| record)
        .collect();
    let Ok(sealed) = seal_sparse(&stamped, kept.iter().copied(), &LIMITS) else {
        assert!(kept.is_empty());
        return;
    };
    let sparse = FrameView::parse(&sealed, &LIMITS).expect("what was sealed parses");
    assert_eq!(sparse.records().count(), kept.len());
    for (found, was) in sparse.records().zip(&kept) {
        assert_eq!(found.sequence, was.sequence);
        assert_eq!(found.timestamp_ms, was.timestamp_ms);
        assert_eq!(found.to_record(), was.to_record());
    }
});

fn tags(choices: &mut Choices<'_>, builder: &mut BatchBuilder) {
    let which = choices.byte();
    if which & 1 != 0 {
        builder.fencing_token(choices.number());
    }
    if which & 2 != 0 {
        builder.match_sequence(MatchSequence::Empty);
    }
    if which & 4 != 0 {
        builder.match_sequence(MatchSequence::At(choices.number()));
    }
    if which & 8 != 0 {
        let id = choices.bytes();
        let taken = builder.producer(id, choices.number(), choices.number());
        assert_eq!(taken.is_ok(), (1..=16).contains(&id.len()));
    }
}

fn stamps(choices: &mut Choices<'_>) -> Stamp {
    let which = choices.byte();
    Stamp {
        base_sequence: choices.number() >> 1,
        arrival_ms: choices.number(),
        timestamp_floor_ms: choices.number(),
        epoch: 1,
        mode: match which % 3 {
            0 => TimestampMode::ClientPrefer,
            1 => TimestampMode::ClientRequire,
            _ => TimestampMode::Arrival,
        },
        cap: which & 128 != 0,
    }
}

fn record<'a>(choices: &mut Choices<'a>) -> Record<'a> {
    let which = choices.byte();
    let mut record = Record::of(choices.bytes());
    if which & 1 != 0 {
        record.key = Some(choices.bytes());
        record.version = i64::from_le_bytes(choices.number().to_le_bytes());
    }
    record.tombstone = which & 2 != 0;
    if which & 4 != 0 {
        record.timestamp_ms = Some(choices.number());
    }
    if which & 8 != 0 {
        record.fingerprint = Some([choices.byte(); 32]);
    }
    for _ in 0..which >> 6 {
        record.headers.push((choices.bytes(), choices.bytes()));
    }
    record
}
