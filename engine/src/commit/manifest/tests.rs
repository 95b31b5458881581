//! Tests of the manifest: round trips, damage, contradictions.
#![allow(clippy::unwrap_used)]

use super::*;

fn pack(place: PackPlace, first: u64, end: u64) -> PackRef {
    PackRef {
        place,
        digest: Digest([first as u8 + 1; 32]),
        pack_bytes: 4_096 + first,
        first: Sequence(first),
        end: Sequence(end),
        records: end - first,
        payload_bytes: (end - first) * 10,
        first_timestamp_ms: 1_000 + first,
        max_timestamp_ms: 1_000 + end,
        merkle_root: [end as u8; 32],
    }
}

fn sample() -> Manifest {
    Manifest {
        feed: FeedId(6),
        stream: StreamId(2),
        first: Sequence(10),
        end: Sequence(50),
        packs: vec![
            pack(PackPlace::Stream, 10, 30),
            pack(PackPlace::Shared(LogId(77)), 30, 50),
        ],
        key_index: Some(KeyIndexRef {
            digest: Digest([0xee; 32]),
            bytes: 999,
        }),
    }
}

#[test]
fn roundtrip_manifest_with_and_without_packs_and_keys() {
    let plain = Manifest {
        key_index: None,
        ..sample()
    };
    let empty = Manifest {
        packs: Vec::new(),
        end: Sequence(10),
        ..plain.clone()
    };
    for manifest in [sample(), plain, empty] {
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest.clone()));
        assert_eq!(Digest::of(&bytes), manifest.digest());
    }
}

#[test]
fn manifest_totals_follow_from_the_packs() {
    let totals = sample().totals();
    assert_eq!((totals.records, totals.payload_bytes), (40, 400));
    assert_eq!(
        (totals.first_timestamp_ms, totals.max_timestamp_ms),
        (1_010, 1_050)
    );
    let mut tree = Merkle::new();
    tree.push_leaf(leaf_hash(&[30; 32]));
    tree.push_leaf(leaf_hash(&[50; 32]));
    assert_eq!(totals.merkle_root, tree.root());
}

#[test]
fn packs_from_begins_with_the_pack_that_holds_the_sequence() {
    let manifest = sample();
    let firsts = |sequence| {
        let packs = manifest.packs_from(Sequence(sequence));
        packs.iter().map(|p| p.first.0).collect::<Vec<_>>()
    };
    assert_eq!(firsts(0), [10, 30]);
    assert_eq!(firsts(29), [10, 30]);
    assert_eq!(firsts(30), [30]);
    assert_eq!(firsts(50), [0; 0]);
    assert_eq!(manifest.packs_from_timestamp(1_031).len(), 1);
    assert_eq!(manifest.packs_from_timestamp(1_030).len(), 2);
    assert_eq!(manifest.packs_from_timestamp(1_051).len(), 0);
}

#[test]
fn exhaustive_manifest_any_flipped_bit_or_cut_is_detected() {
    let bytes = sample().encode();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(Manifest::decode(&damaged).is_err(), "byte {at} bit {bit}");
        }
        assert!(Manifest::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn manifest_contradicting_fields_are_refused_under_a_valid_checksum() {
    let patches: [(usize, &[u8], &str); 9] = [
        (10, &[2], "flags"),
        (10, &[0], "key_index_digest"),
        (40, &[45], "pack end_sequence"),
        (48, &[41], "totals"),
        (80, &[1], "totals"),
        (156, &[1], "reserved"),
        (152, &[3], "pack_count"),
        (160, &[3], "pack kind"),
        (161, &[3], "pack reserved"),
    ];
    for (at, patch, expected) in patches {
        let mut bytes = sample().encode();
        bytes[at..at + patch.len()].copy_from_slice(patch);
        layout::seal(&mut bytes, layout::PREAMBLE_CRC_AT);
        match Manifest::decode(&bytes) {
            Err(DecodeError::Invalid { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
#[should_panic(expected = "pack first_sequence")]
fn manifest_encode_overlapping_packs_panics() {
    let mut manifest = sample();
    manifest.packs.swap(0, 1);
    let _ = manifest.encode();
}
