//! Tests of the key index, writer and reader together.
#![allow(clippy::unwrap_used)]

use super::super::index::{KeyIndexBuilder, KeyIndexOptions};
use super::super::{KEY_BYTES_MAX, KeyEntry, KeyState};
use super::*;

fn entry(key: &[u8], n: u64) -> KeyEntry {
    KeyEntry {
        key: key.to_vec(),
        state: KeyState {
            version: n as i64 - 3,
            sequence: n,
            tombstone: n.is_multiple_of(4),
        },
    }
}

fn build(entries: &[KeyEntry], block_bytes: usize) -> Vec<u8> {
    let mut builder = KeyIndexBuilder::new(KeyIndexOptions {
        block_bytes,
        ..KeyIndexOptions::new(FeedId(5), StreamId(2), entries.len() as u64)
    });
    let mut object = Vec::new();
    for entry in entries {
        builder.push(entry).unwrap();
        while let Some(part) = builder.drain() {
            object.extend_from_slice(&part);
        }
    }
    let done = builder.finish();
    done.parts
        .iter()
        .for_each(|part| object.extend_from_slice(part));
    assert_eq!(done.bytes, object.len() as u64);
    assert_eq!(done.digest, crate::ids::Digest::of(&object));
    object
}

fn get(object: &[u8], index: &KeyIndex, key: &[u8]) -> Option<KeyState> {
    let range = index.lookup(key)?;
    let bytes = &object[range.start as usize..range.end as usize];
    KeyBlock::parse(bytes).unwrap().0.get(key)
}

fn numbered(count: u64) -> Vec<KeyEntry> {
    (0..count)
        .map(|n| entry(&(n * 2).to_be_bytes(), n))
        .collect()
}

#[test]
fn lookup_finds_every_key_and_no_other() {
    for count in [0, 1, 3, 1_000] {
        let entries = numbered(count);
        let object = build(&entries, 200);
        let index = check_key_index(&object).unwrap();
        assert_eq!(index.footer().key_count, count);
        assert_eq!(index.footer().tombstone_count, count.div_ceil(4));
        for n in 0..count {
            let found = get(&object, &index, &(n * 2).to_be_bytes());
            assert_eq!(found, Some(entries[n as usize].state));
            assert_eq!(get(&object, &index, &(n * 2 + 1).to_be_bytes()), None);
        }
        assert_eq!(get(&object, &index, b""), None);
        assert_eq!(get(&object, &index, &[0xff; 9]), None);
    }
}

#[test]
fn lookup_empty_and_longest_keys_are_keys() {
    let entries = [
        entry(b"", 1),
        entry(b"\0", 2),
        entry(&vec![7; KEY_BYTES_MAX], 3),
    ];
    let object = build(&entries, usize::MAX);
    let index = check_key_index(&object).unwrap();
    for entry in &entries {
        assert_eq!(get(&object, &index, &entry.key), Some(entry.state));
    }
    assert_eq!(index.blocks().len(), 2);
}

#[test]
fn blocks_from_begins_with_the_block_that_may_hold_the_key() {
    let object = build(&numbered(1_000), 500);
    let index = check_key_index(&object).unwrap();
    let all: Vec<_> = index.blocks().collect();
    assert!(all.len() > 10);
    assert_eq!(index.blocks_from(b"").len(), all.len());
    let key = 1_000u64.to_be_bytes();
    assert_eq!(index.blocks_from(&key).next(), index.lookup(&key));
    assert_eq!(index.blocks_from(&[0xff; 8]).next().as_ref(), all.last());
}

#[test]
fn drain_large_index_comes_in_parts() {
    let entries: Vec<_> = (0..40_000u64)
        .map(|n| entry(&[n.to_be_bytes(), [1; 8]].concat(), n))
        .collect();
    let mut builder = KeyIndexBuilder::new(KeyIndexOptions::new(FeedId(5), StreamId(2), 40_000));
    let (mut parts, mut bound) = (0, 0);
    for entry in &entries {
        builder.push(entry).unwrap();
        bound = bound.max(builder.buffered_bytes());
        while let Some(part) = builder.drain() {
            assert_eq!(part.len() % crate::env::BLOCK_BYTES, 0);
            parts += 1;
        }
    }
    assert!(parts >= 1, "{parts}");
    assert!(bound < 4 << 20, "{bound}");
}

#[test]
fn exhaustive_key_index_any_flipped_bit_or_cut_is_detected() {
    let object = build(&numbered(7), 100);
    assert!(check_key_index(&object).unwrap().blocks().len() > 2);
    for at in 0..object.len() {
        for bit in 0..8 {
            let mut damaged = object.clone();
            damaged[at] ^= 1 << bit;
            assert!(check_key_index(&damaged).is_err(), "byte {at} bit {bit}");
        }
        assert!(check_key_index(&object[..at]).is_err(), "cut at {at}");
        assert!(
            check_key_index(&object[at + 1..]).is_err(),
            "begun at {}",
            at + 1
        );
    }
}

#[test]
fn filter_that_denies_a_key_is_detected_under_valid_checksums() {
    let mut object = build(&numbered(7), 100);
    let footer_at = object.len() - FOOTER_BYTES;
    let footer = KeyIndexFooter::decode(&object, object.len() as u64).unwrap();
    let filter = footer.filter_offset as usize..footer.top_offset as usize;
    object[filter.clone()].fill(0);
    let crc = crc32c::crc32c(&object[filter]).to_le_bytes();
    object[footer_at + 68..footer_at + 72].copy_from_slice(&crc);
    layout::seal(&mut object[footer_at..], FOOTER_BYTES - 12);
    assert_eq!(check_key_index(&object).err(), Some(invalid("filter", 0)));
}

#[test]
fn push_disorder_and_oversize_are_refused() {
    let mut builder = KeyIndexBuilder::new(KeyIndexOptions::new(FeedId(1), StreamId(1), 1));
    builder.push(&entry(b"b", 1)).unwrap();
    assert_eq!(builder.push(&entry(b"b", 2)), Err(invalid("key order", 1)));
    assert_eq!(builder.push(&entry(b"a", 2)), Err(invalid("key order", 1)));
    let long = entry(&vec![b'c'; KEY_BYTES_MAX + 1], 3);
    assert!(builder.push(&long).is_err());
}

#[test]
fn footer_newer_version_is_named_before_the_checksum() {
    let mut object = build(&numbered(1), 100);
    let at = object.len() - FOOTER_BYTES;
    object[at] = 9;
    let error = check_key_index(&object).err();
    assert!(matches!(error, Some(DecodeError::Version { found: 9, .. })));
}
