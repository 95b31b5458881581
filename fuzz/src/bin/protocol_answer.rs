//! Target protocol_answer: whole messages as a client gets them. Spec: server/spec/native-protocol.md.
//!
//! **Invariants**
//! - No bytes panic; what decodes is canonical: encoded again, it is the same bytes (NATIVE-1).
//! - The head of records with the frames behind it is the whole message.
//!
//! **Not here**: what an answer means (the client).
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_protocol::{Answer, HEADER_BYTES, MESSAGE_BYTES_MAX, MessageHeader, Records, Rest};

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    while let Ok(Some(header)) = MessageHeader::peek(rest, MESSAGE_BYTES_MAX) {
        let end = header.message_bytes.min(rest.len());
        let (message, behind) = rest.split_at(end);
        let asks = (header.request, header.flags);
        if let Ok(answer) = Answer::decode(header.kind, &message[HEADER_BYTES..]) {
            let mut again = Vec::new();
            answer.encode(asks.0, asks.1, &mut again);
            assert_eq!(again[HEADER_BYTES..], message[HEADER_BYTES..]);
            if let Answer::Records { records } = answer {
                head_and_frames(&records, asks, &again);
            }
        }
        rest = behind;
    }
});

fn head_and_frames(records: &Records<'_>, asks: (u64, u8), whole: &[u8]) {
    let head = Records {
        frames: Rest(&[]),
        ..records.clone()
    };
    let frames = records.frames.0;
    let mut parts = Vec::new();
    Answer::encode_records_head(&head, frames.len(), asks, &mut parts);
    parts.extend_from_slice(frames);
    assert_eq!(parts, whole);
}
