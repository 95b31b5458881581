//! Target protocol_request: whole messages as a server gets them. Spec: server/spec/native-protocol.md.
//!
//! **Invariants**
//! - No bytes panic; what decodes is canonical: encoded again, it is the same bytes (NATIVE-1).
//! - A header is believed only within its limit (NATIVE-2).
//!
//! **Not here**: what a request does (the server).
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_protocol::{HEADER_BYTES, MESSAGE_BYTES_MAX, MessageHeader, Request};

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    while let Ok(Some(header)) = MessageHeader::peek(rest, MESSAGE_BYTES_MAX) {
        assert!(header.message_bytes >= HEADER_BYTES && header.message_bytes <= MESSAGE_BYTES_MAX);
        assert_eq!(header.encode()[..], rest[..HEADER_BYTES]);
        // What was cut short, or stretched, by the fuzzer is tried with the length it has.
        let end = header.message_bytes.min(rest.len());
        let (message, behind) = rest.split_at(end);
        if let Ok(request) = Request::decode(header.kind, &message[HEADER_BYTES..]) {
            assert_eq!(request.kind(), header.kind);
            let mut again = Vec::new();
            request.encode(header.request, header.flags, &mut again);
            assert_eq!(again[HEADER_BYTES..], message[HEADER_BYTES..]);
        }
        rest = behind;
    }
});
