//! Target checkpoint: roots, chunks and the data directory's marker. Spec: spec/checkpoint.md.
//!
//! **Invariants**
//! - No bytes panic; what decodes is canonical: encoded again, it is the same bytes (CKPT-4).
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_engine::formats::{Feeds, Geometry, Marker, Root, decode_chunk, encode_chunk};
use sealog_engine::ids::LogId;
use sealog_fuzz::resealed;

const GEOMETRY: Geometry = Geometry {
    segment_bytes: 1 << 20,
};

fuzz_target!(|input: &[u8]| {
    try_bytes(input);
    try_bytes(&resealed(input, 12));
    try_body(3 << 40, input);
    try_body(0, input);
});

fn try_bytes(bytes: &[u8]) {
    if let Ok(root) = Root::decode(bytes) {
        assert_eq!(root.encode(), bytes);
    }
    if let Ok(marker) = Marker::decode(bytes) {
        assert_eq!(marker.encode(), bytes);
        assert!(Marker::log_of("feed", marker.logs.len()) < marker.logs.len());
    }
    let number = |at: usize| {
        let field = bytes.get(at..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*field))
    };
    let (Some(chunk), Some(generation)) = (number(16), number(24)) else {
        return;
    };
    if let Ok(body) = decode_chunk(bytes, chunk, generation) {
        assert_eq!(encode_chunk(chunk, generation, body), bytes);
        try_body(chunk, body);
    }
}

fn try_body(chunk: u64, body: &[u8]) {
    let mut feeds = Feeds::new(LogId(3), GEOMETRY);
    if feeds.decode_chunk(chunk, body).is_ok() {
        assert_eq!(feeds.encode_chunk(chunk), body);
        let _ = (feeds.needed_from(), feeds.next_sealed().map(|feed| feed.id));
    }
}
