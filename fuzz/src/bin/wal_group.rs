//! Target wal_group: segment and group headers. Spec: spec/wal.md.
//!
//! **Invariants**
//! - No bytes panic; what decodes is canonical: encoded again, it is the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_engine::wal::group::{GROUP_HEADER_BYTES, GroupHeader};
use sealog_engine::wal::segment::SegmentHeader;
use sealog_fuzz::resealed;

fuzz_target!(|input: &[u8]| {
    try_bytes(input);
    if let Some((header, rest)) = input.split_at_checked(GROUP_HEADER_BYTES) {
        try_bytes(&[&resealed(header, 12), rest].concat());
    }
    let block = input.get(..4096).unwrap_or(input);
    try_bytes(&resealed(block, 12));
});

fn try_bytes(bytes: &[u8]) {
    if let Ok(header) = SegmentHeader::decode(bytes) {
        assert_eq!(header.encode()[..], bytes[..4096]);
    }
    let Ok(header) = GroupHeader::decode(bytes) else {
        return;
    };
    assert_eq!(header.encode(), bytes[..GROUP_HEADER_BYTES]);
    assert!(header.durable_end <= header.offset);
    let _ = header.check_body(&bytes[GROUP_HEADER_BYTES..]);
}
