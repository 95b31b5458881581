//! Target frame: bytes as they come, and the same bytes sealed again, through every view. Spec: spec/frame.md.
//!
//! **Invariants**
//! - No bytes make a view panic; a parsed frame yields all its records (FRAME-8, FRAME-10).
//! - A parsed PLAIN frame, encoded again, is the same bytes (FRAME-14); a SPARSE one too.
//!
//! **Not here**: batches put together from records (`frame_build`).
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_frame::{
    BatchBuilder, FrameKind, FrameLimits, FrameView, peek_frame_bytes, seal_sparse, stamp,
};
use sealog_fuzz::reseal_frame;

const LIMITS: FrameLimits = FrameLimits::DEFAULT;

fuzz_target!(|input: &[u8]| {
    try_bytes(input);
    // A fuzzer does not find two checksums by itself; behind them lies most of the decoder.
    let mut sealed = input.to_vec();
    reseal_frame(&mut sealed);
    try_bytes(&sealed);
});

fn try_bytes(bytes: &[u8]) {
    let _ = peek_frame_bytes(bytes);
    if let Ok((first, rest)) = FrameView::split_trusted(bytes) {
        assert_eq!(first.frame_bytes() + rest.len(), bytes.len());
    }
    if let Ok(view) = FrameView::trusted(bytes) {
        assert!(walk(&view) <= view.record_count());
        let _ = seal_sparse(&view.server_stamp(), view.records(), &LIMITS);
    }
    let Ok(view) = FrameView::parse(bytes, &LIMITS) else {
        return;
    };
    assert_eq!(peek_frame_bytes(bytes), Ok(bytes.len()));
    assert_eq!(walk(&view), view.record_count());
    let again = match view.kind() {
        FrameKind::Plain => encode_again(&view),
        FrameKind::Sparse => {
            seal_sparse(&view.server_stamp(), view.records(), &LIMITS).expect("parsed")
        }
    };
    assert_eq!(again, bytes);
}

/// Reads all that a view offers; answers how many records it yielded.
fn walk(view: &FrameView<'_>) -> usize {
    let _ = (view.producer(), view.fencing_token(), view.match_sequence());
    let _ = (view.payload_bytes(), view.all_timestamped(), view.epoch());
    let (mut seen, mut before_ms) = (0, 0);
    let mut next_sequence = view.base_sequence();
    for record in view.records() {
        let _ = (record.headers().count(), record.encoded());
        if view.kind() == FrameKind::Plain {
            assert!(record.timestamp_ms >= before_ms.max(view.timestamp_floor_ms()));
            assert_eq!(record.sequence, next_sequence);
            before_ms = record.timestamp_ms;
            next_sequence += 1;
        }
        seen += 1;
    }
    for index in [0, view.record_count() / 2, view.record_count() - 1] {
        let _ = view.record(index);
    }
    assert!(view.record(view.record_count()).is_none());
    let _ = (view.last_timestamp_ms(), view.last_sequence());
    seen
}

fn encode_again(view: &FrameView<'_>) -> Vec<u8> {
    let mut builder = BatchBuilder::new(LIMITS);
    if let Some(token) = view.fencing_token() {
        builder.fencing_token(token);
    }
    if let Some(expected) = view.match_sequence() {
        builder.match_sequence(expected);
    }
    if let Some(tag) = view.producer() {
        builder
            .producer(tag.id, tag.epoch, tag.sequence)
            .expect("parsed");
    }
    for record in view.records() {
        builder.push(&record.to_record()).expect("parsed");
    }
    let mut bytes = builder.build().expect("parsed").into_bytes();
    stamp(&mut bytes, &view.server_stamp());
    bytes
}
