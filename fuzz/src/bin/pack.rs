//! Target pack: packs as they stream by, and by ranges as readers take them. Spec: spec/pack.md.
//!
//! **Invariants**
//! - No bytes panic, however they are cut; a pack that verifies is one that readers can open.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_engine::ids::Sequence;
use sealog_engine::pack::{
    BlockView, ColumnView, PackFooter, PackIndex, PackSummary, PackVerifier,
};
use sealog_fuzz::resealed;

fuzz_target!(|input: &[u8]| {
    try_pack(input);
    try_block(input);
    try_block(&resealed(input.get(..64).unwrap_or(input), 8));
    try_column(input);
    try_column(&resealed(input, 8));
});

fn try_pack(bytes: &[u8]) {
    let verified = verify(bytes, 1 + bytes.len() / 3);
    assert_eq!(verify(bytes, 7), verified);
    let len = bytes.len() as u64;
    let index = PackFooter::decode(bytes, len).ok().and_then(|footer| {
        let range = footer.index_range();
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        PackIndex::decode(&footer, bytes.get(range)?).ok()
    });
    let Some(summary) = verified else { return };
    let index = index.expect("what verifies opens");
    assert_eq!(index.sections(), summary.sections);
    for section in index.sections() {
        for block in index.blocks_for(section.feed, section.stream, Sequence(0)) {
            let at = |offset| usize::try_from(offset).expect("in memory");
            let column = at(block.column_range().start)..at(block.column_range().end);
            let column = ColumnView::parse(&bytes[column], block.records());
            let mut column = column.expect("what verifies parses");
            let from = at(block.range().start);
            let (block, _) = BlockView::parse(&bytes[from..]).expect("what verifies parses");
            for frame in block.frames() {
                let records = frame.expect("what verifies parses").record_count();
                column.take(records).expect("an entry per record");
            }
            assert!(column.take(1).is_err(), "no more entries than records");
        }
    }
}

fn verify(bytes: &[u8], cut: usize) -> Option<PackSummary> {
    let mut verifier = PackVerifier::new();
    for part in bytes.chunks(cut) {
        verifier.push(part).ok()?;
    }
    verifier.finish().ok()
}

fn try_column(bytes: &[u8]) {
    let records = bytes.len().saturating_sub(16) / 32;
    let Ok(mut column) = ColumnView::parse(bytes, records as u64) else {
        return;
    };
    assert!(ColumnView::parse(bytes, 1 + records as u64).is_err());
    assert_eq!(column.take(records).map(<[_]>::len), Ok(records));
}

fn try_block(bytes: &[u8]) {
    let Ok((block, rest)) = BlockView::parse(bytes) else {
        return;
    };
    assert_eq!(block.as_bytes().len() + rest.len(), bytes.len());
    let frames = block.frames().take_while(Result::is_ok).count();
    let _ = (frames, block.frames_from(Sequence(5)).count());
}
