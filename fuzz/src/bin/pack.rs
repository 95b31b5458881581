//! Target pack: packs as they stream by, and by ranges as readers take them. Spec: spec/pack.md.
//!
//! **Invariants**
//! - No bytes panic, however they are cut; a pack that verifies is one that readers can open.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_engine::ids::Sequence;
use sealog_engine::pack::{BlockView, PackFooter, PackIndex, PackSummary, PackVerifier};
use sealog_fuzz::resealed;

fuzz_target!(|input: &[u8]| {
    try_pack(input);
    try_block(input);
    try_block(&resealed(input.get(..64).unwrap_or(input), 8));
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
            let from = usize::try_from(block.range().start).expect("in memory");
            let (block, _) = BlockView::parse(&bytes[from..]).expect("what verifies parses");
            assert!(block.frames().all(|frame| frame.is_ok()));
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

fn try_block(bytes: &[u8]) {
    let Ok((block, rest)) = BlockView::parse(bytes) else {
        return;
    };
    assert_eq!(block.as_bytes().len() + rest.len(), bytes.len());
    let frames = block.frames().take_while(Result::is_ok).count();
    let _ = (frames, block.frames_from(Sequence(5)).count());
}
