//! Target key_index: key blocks and whole key indexes. Spec: spec/key-index.md.
//!
//! **Invariants**
//! - No bytes panic; an index that checks finds every key that is in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_engine::pack::keys::block::KeyBlock;
use sealog_engine::pack::keys::reader::{KeyIndex, KeyIndexFooter, check_key_index};
use sealog_fuzz::resealed;

fuzz_target!(|input: &[u8]| {
    try_index(input);
    try_block(input);
    if let Some((header, body)) = input.split_at_checked(32) {
        let mut header = header.to_vec();
        let len = u32::try_from(input.len()).unwrap_or(0);
        header[4..8].copy_from_slice(&len.to_le_bytes());
        header[12..16].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
        try_block(&[&resealed(&header, 16), body].concat());
    }
    // A footer sealed again, over parts that it may or may not fit.
    if let Some(at) = input.len().checked_sub(128) {
        let footer = resealed(&input[at..], 116);
        try_index(&[&input[..at], &footer].concat());
    }
});

fn try_index(bytes: &[u8]) {
    let footer = KeyIndexFooter::decode(bytes, bytes.len() as u64);
    let parts = footer.ok().and_then(|footer| {
        let range = footer.parts_range();
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        KeyIndex::decode(&footer, bytes.get(range)?).ok()
    });
    if let Some(index) = parts {
        let _ = (index.lookup(b"a"), index.blocks_from(b"a").len());
    }
    let Ok(index) = check_key_index(bytes) else {
        return;
    };
    for range in index.blocks() {
        let from = usize::try_from(range.start).expect("in memory");
        let (block, _) = KeyBlock::parse(&bytes[from..]).expect("checked");
        for (key, state) in block.entries() {
            assert_eq!(index.lookup(key), Some(range.clone()));
            assert_eq!(block.get(key), Some(state));
        }
    }
}

fn try_block(bytes: &[u8]) {
    if let Ok((block, rest)) = KeyBlock::parse(bytes) {
        assert!(rest.len() < bytes.len());
        assert_eq!(block.entries().count(), block.len());
    }
}
