//! Round trips: what is encoded is what is decoded, and no bytes make a decoder panic.
//!
//! **Invariants**
//! - NATIVE-1: what decodes encodes again to the same bytes, for every kind of message.
//! - NATIVE-2: a length over the limit is refused before the rest of the header is there.
//!
//! **Not here**: pinned bytes (`golden`).

mod common;

use common::Maker;
use proptest::prelude::*;
use sealog_protocol::{
    Answer, HEADER_BYTES, MORE, MessageHeader, Request, WireError, log_of, shard_of,
};

const LIMIT: usize = 1 << 20;

fn kinds(all: &'static [(u8, &'static str)]) -> impl Strategy<Value = u8> {
    proptest::sample::select(all).prop_map(|(kind, _)| kind)
}

fn choices() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..400)
}

/// Decodes whatever `bytes` are as a body, and encodes it again.
fn decoded_again(kind: u8, body: &[u8]) {
    let mut again = Vec::new();
    if let Ok(request) = Request::decode(kind, body) {
        assert_eq!(request.kind(), kind);
        request.encode(7, 0, &mut again);
        assert_eq!(&again[HEADER_BYTES..], body);
    }
    again.clear();
    if let Ok(answer) = Answer::decode(kind, body) {
        assert_eq!(answer.kind(), kind);
        answer.encode(7, MORE, &mut again);
        assert_eq!(&again[HEADER_BYTES..], body);
    }
}

proptest! {
    #[test]
    fn roundtrip_requests(kind in kinds(Request::KINDS), id in any::<u64>(), choices in choices()) {
        let request = Maker(&choices).request(kind).expect("every kind is made");
        let mut bytes = vec![9; 3];
        request.encode(id, 0, &mut bytes);
        let message = &bytes[3..];
        let header = MessageHeader::peek(message, LIMIT).unwrap().unwrap();
        prop_assert_eq!((header.message_bytes, header.kind), (message.len(), kind));
        prop_assert_eq!((header.flags, header.request), (0, id));
        prop_assert_eq!(Request::decode(kind, &message[HEADER_BYTES..]), Ok(request));
        prop_assert_eq!(&bytes[..3], &[9; 3]);
    }

    #[test]
    fn roundtrip_answers(
        kind in kinds(Answer::KINDS),
        id in any::<u64>(),
        more in any::<bool>(),
        choices in choices(),
    ) {
        let answer = Maker(&choices).answer(kind).expect("every kind is made");
        let mut bytes = Vec::new();
        answer.encode(id, u8::from(more), &mut bytes);
        let header = MessageHeader::peek(&bytes, LIMIT).unwrap().unwrap();
        prop_assert_eq!((header.message_bytes, header.kind), (bytes.len(), kind));
        prop_assert_eq!((header.flags, header.request), (u8::from(more), id));
        prop_assert_eq!(Answer::decode(kind, &bytes[HEADER_BYTES..]), Ok(answer));
    }

    #[test]
    fn cut_and_stretched_bodies_are_refused(
        kind in kinds(Request::KINDS),
        choices in choices(),
        cut in any::<proptest::sample::Index>(),
    ) {
        let request = Maker(&choices).request(kind).expect("every kind is made");
        let mut bytes = Vec::new();
        request.encode(1, 0, &mut bytes);
        let body = &bytes[HEADER_BYTES..];
        // What ends with `rest` takes any length of it.
        let open = matches!(request, Request::Append { .. } | Request::Foresee { .. });
        if !open {
            if !body.is_empty() {
                let cut = &body[..cut.index(body.len())];
                prop_assert!(Request::decode(kind, cut).is_err());
            }
            let mut longer = body.to_vec();
            longer.push(0);
            prop_assert_eq!(Request::decode(kind, &longer), Err(WireError::Trailing { bytes: 1 }));
        }
    }

    #[test]
    fn never_panics_on_any_body(kind in any::<u8>(), body in choices()) {
        decoded_again(kind, &body);
    }

    #[test]
    fn never_panics_on_a_changed_message(
        kind in kinds(Answer::KINDS),
        choices in choices(),
        at in any::<proptest::sample::Index>(),
        to in any::<u8>(),
    ) {
        let answer = Maker(&choices).answer(kind).expect("every kind is made");
        let mut bytes = Vec::new();
        answer.encode(1, 0, &mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = to;
        let _ = MessageHeader::peek(&bytes, LIMIT);
        decoded_again(bytes[4], &bytes[HEADER_BYTES..]);
    }

    #[test]
    fn headers_are_what_they_say_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
        if let Ok(Some(header)) = MessageHeader::peek(&bytes, LIMIT) {
            prop_assert!((HEADER_BYTES..=LIMIT).contains(&header.message_bytes));
            prop_assert_eq!(&header.encode()[..], &bytes[..HEADER_BYTES]);
        }
    }

    #[test]
    fn places_are_below_their_counts(feed in ".{0,40}", logs in any::<u32>(), shards in any::<u32>()) {
        prop_assert!(log_of(&feed, logs) < logs.max(1));
        prop_assert!(shard_of(&feed, logs, shards) < shards.max(1));
    }
}

#[test]
fn length_over_the_limit_is_refused_with_four_bytes_there() {
    let bytes = 1_000_u32.to_le_bytes();
    let size = |limit| WireError::Size {
        bytes: 1_000,
        limit,
    };
    assert_eq!(MessageHeader::peek(&bytes, 999), Err(size(999)));
    assert_eq!(MessageHeader::peek(&bytes, 1_000), Ok(None));
    assert_eq!(MessageHeader::peek(&bytes[..3], 0), Ok(None));
    let short = MessageHeader::peek(&15_u32.to_le_bytes(), LIMIT);
    assert_eq!(
        short,
        Err(WireError::Size {
            bytes: 15,
            limit: 16
        })
    );
}

#[test]
fn announced_counts_allocate_nothing() {
    // A list of four billion streams, of which none is there.
    let body = u32::MAX.to_le_bytes();
    let decoded = Answer::decode(0xb0, &body);
    assert!(
        matches!(decoded, Err(WireError::Short { .. })),
        "{decoded:?}"
    );
}

#[test]
fn empty_entries_cannot_be_announced_for_free() {
    // Every entry of a list takes bytes: a count cannot make a decoder loop longer than its input.
    for (kind, name) in [
        (0x93, "Feeds"),
        (0xb0, "Streams"),
        (0xb1, "Commits"),
        (0xb2, "Producers"),
        (0xd0, "Stats"),
        (0xd1, "Usage"),
    ] {
        let body = u32::MAX.to_le_bytes();
        assert!(Answer::decode(kind, &body).is_err(), "{name}");
    }
}
