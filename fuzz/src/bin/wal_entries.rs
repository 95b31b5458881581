//! Target wal_entries: the body of a group, decoded, encoded again, and folded into a state. Spec: spec/wal.md §3.
//!
//! **Invariants**
//! - No bytes panic, neither decoding nor folding; what decodes is canonical.
//! - A state that entries folded to survives its checkpoint chunk (CKPT-4).
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_engine::env::AlignedBuf;
use sealog_engine::formats::{Feeds, Geometry};
use sealog_engine::ids::LogId;
use sealog_engine::wal::entry::{Entries, Entry, put_batch, put_change};
use sealog_engine::wal::group::{GROUP_HEADER_BYTES, GroupHeader};
use sealog_engine::wal::log::Position;

const LOG: LogId = LogId(3);
const GEOMETRY: Geometry = Geometry {
    segment_bytes: 1 << 20,
};

fuzz_target!(|input: &[u8]| {
    // A golden group is a seed: its body is tried, and so are bare entries.
    let body = match GroupHeader::decode(input) {
        Ok(header) => {
            let end = GROUP_HEADER_BYTES + header.body_bytes as usize;
            input.get(GROUP_HEADER_BYTES..end).unwrap_or(&[])
        }
        Err(_) => input,
    };
    let mut feeds = Feeds::new(LOG, GEOMETRY);
    let mut again = AlignedBuf::with_capacity(body.len() + 64);
    for (index, entry) in (0..).zip(Entries::new(body)) {
        let Ok(entry) = entry else { break };
        let Ok(decoded) = entry.decode() else { break };
        let before = again.len();
        match decoded {
            Entry::Batch(frame) => put_batch(&mut again, entry.feed, entry.stream, frame),
            Entry::Change(change) => put_change(&mut again, entry.feed, entry.stream, &change),
        }
        assert_eq!(again[before..], body[before..again.len()]);
        let at = Position {
            offset: 4096 * u64::from(index),
            index,
            group: 1,
        };
        if feeds.apply(&entry, at).is_err() {
            return;
        }
    }
    let chunk = LOG.0 << 40;
    let bytes = feeds.encode_chunk(chunk);
    let mut back = Feeds::new(LOG, GEOMETRY);
    if back.decode_chunk(chunk, &bytes).is_ok() {
        assert_eq!(back.encode_chunk(chunk), bytes);
    }
});
