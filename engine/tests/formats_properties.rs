//! Properties of packs, manifests, commits and key indexes: canonical, and no panic on any bytes.
//!
//! **Invariants**
//! - Bytes that decode are the bytes that their value encodes to.
//! - Mutations are sealed again where a checksum would hide the decoder behind it.
//!
//! **Not here**: flips that must be detected (exhaustive unit tests), pinned bytes (`golden_formats`).
#![allow(clippy::unwrap_used)]

mod formats;

use formats::{FEED, commits, finish, frame, key_entries, key_index, manifests};
use proptest::prelude::*;
use proptest::sample::Index;
use sealog_engine::commit::{Commit, Manifest, paths};
use sealog_engine::ids::{Digest, LogId, Sequence, StreamId};
use sealog_engine::pack::keys::block::{KeyBlock, peek_key_block_bytes};
use sealog_engine::pack::keys::reader::{KeyIndex, KeyIndexFooter, check_key_index};
use sealog_engine::pack::{
    BlockHeader, BlockView, ColumnView, PACK_FOOTER_BYTES, PackBuilder, PackFooter, PackIndex,
    PackKind, PackOptions, PackVerifier,
};
use sealog_frame::Record;

/// Bytes to overwrite, anywhere in an object.
fn edits() -> impl Strategy<Value = Vec<(Index, u8)>> {
    prop::collection::vec((any::<Index>(), any::<u8>()), 1..6)
}

fn edited(object: &[u8], edits: &[(Index, u8)]) -> Vec<u8> {
    let mut bytes = object.to_vec();
    for (at, byte) in edits {
        bytes[at.index(object.len())] = *byte;
    }
    bytes
}

/// Sets the checksum at `at` over all of `bytes`.
fn seal(bytes: &mut [u8], at: usize) {
    bytes[at..at + 4].fill(0);
    let crc = crc32c::crc32c(bytes);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Reads all that an index offers; every range must lie in the object.
fn walk_pack(bytes: &[u8]) {
    let len = bytes.len() as u64;
    let Ok(footer) = PackFooter::decode(bytes, len) else {
        return;
    };
    let range = footer.index_range();
    let Ok(index) = PackIndex::decode(&footer, &bytes[range.start as usize..range.end as usize])
    else {
        return;
    };
    for section in index.sections() {
        for row in index.blocks_for(section.feed, section.stream, section.first) {
            let block = &bytes[row.range().start as usize..row.range().end as usize];
            let column = row.column_range();
            let column = &bytes[column.start as usize..column.end as usize];
            if let Ok(mut column) = ColumnView::parse(column, row.records()) {
                while column.take(1).is_ok() {}
            }
            if let Ok((view, _)) = BlockView::parse(block) {
                let _ = view.frames().map_while(Result::ok).count();
                let _ = view.frames_from(row.end()).map_while(Result::ok).count();
            }
        }
        let _ = index.blocks_for_timestamp(section.feed, section.stream, u64::MAX);
        assert!(section.keys.end <= len);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn never_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400), len: u64) {
        let _ = Commit::decode(&bytes);
        let _ = Manifest::decode(&bytes);
        let _ = PackFooter::decode(&bytes, len);
        let _ = KeyIndexFooter::decode(&bytes, len);
        let _ = BlockHeader::decode(&bytes);
        let _ = BlockView::parse(&bytes);
        let _ = ColumnView::parse(&bytes, len);
        let _ = peek_key_block_bytes(&bytes);
        let _ = KeyBlock::parse(&bytes);
        let _ = check_key_index(&bytes);
        let mut verifier = PackVerifier::new();
        prop_assert!(verifier.push(&bytes).and_then(|()| verifier.finish().map(drop)).is_err());
    }

    #[test]
    fn roundtrip_commit_that_decodes_is_canonical(which in 0..2usize, edits in edits()) {
        let mut bytes = edited(&commits()[which].encode(), &edits);
        seal(&mut bytes, 12);
        if let Ok(commit) = Commit::decode(&bytes) {
            prop_assert_eq!(commit.encode(), bytes);
        }
    }

    #[test]
    fn roundtrip_manifest_that_decodes_is_canonical(which in 0..2usize, edits in edits()) {
        let mut bytes = edited(&manifests()[which].encode(), &edits);
        seal(&mut bytes, 12);
        if let Ok(manifest) = Manifest::decode(&bytes) {
            prop_assert_eq!(manifest.encode(), bytes);
        }
    }

    #[test]
    fn roundtrip_name_unescapes_to_itself(name in "\\PC{0,80}", other in "[a./%~]{1,6}") {
        for name in [name, other] {
            let component = paths::escape_name(&name);
            prop_assert!(component.len() <= paths::COMPONENT_BYTES_MAX);
            if let Some(back) = paths::unescape_name(&component) {
                prop_assert_eq!(back, name);
            } else {
                prop_assert!(name.is_empty() || component.contains('~'));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn never_panics_on_edited_key_index(edits in edits()) {
        let mut bytes = edited(&key_index(&key_entries()), &edits);
        let footer_at = bytes.len() - 128;
        seal(&mut bytes[footer_at..], 116);
        let Ok(footer) = KeyIndexFooter::decode(&bytes, bytes.len() as u64) else {
            return Ok(());
        };
        let range = footer.parts_range();
        let parts = &bytes[range.start as usize..range.end as usize];
        if let Ok(index) = KeyIndex::decode(&footer, parts) {
            prop_assert!(index.blocks().all(|block| block.end <= range.start));
            let _ = index.lookup(b"customer/17");
            let _ = index.blocks_from(b"c").count();
        }
    }

    #[test]
    fn never_panics_on_edited_pack(shared: bool, edits in edits(), reseal: bool) {
        let object = if shared { formats::shared_pack().0 } else { formats::stream_pack().0 };
        let mut bytes = edited(&object, &edits);
        if reseal {
            let footer = PackFooter::decode(&object, object.len() as u64).unwrap();
            let (index_at, footer_at) = (footer.index_range().start as usize, object.len() - PACK_FOOTER_BYTES);
            let rows = u32::from_le_bytes(object[index_at + 4..index_at + 8].try_into().unwrap());
            let table_at = index_at + 16 + rows as usize * 80;
            seal(&mut bytes[index_at..table_at], 8);
            seal(&mut bytes[table_at..footer_at], 8);
            bytes.copy_within(index_at + 8..index_at + 12, footer_at + 80);
            bytes.copy_within(table_at + 8..table_at + 12, footer_at + 84);
            seal(&mut bytes[footer_at..], 116);
        }
        walk_pack(&bytes);
        let mut verifier = PackVerifier::new();
        if verifier.push(&bytes).is_ok() && let Ok(summary) = verifier.finish() {
            // Only what frames cannot tell may differ: KEYED of sections without keys.
            let (_, expected) = if shared { formats::shared_pack() } else { formats::stream_pack() };
            for (found, expected) in summary.sections.iter().zip(&expected.sections) {
                prop_assert_eq!(found.merkle_root, expected.merkle_root);
                prop_assert!(found.keyed == expected.keyed || found.key_count == 0);
            }
        }
    }

    #[test]
    fn roundtrip_pack_of_any_frames(
        sections in prop::collection::vec(
            (prop::collection::vec((0..5u64, prop::collection::vec((any::<Option<u8>>(), 0..300usize), 1..6)), 0..8), any::<bool>()),
            1..5,
        ),
        block_bytes in 0..3_000usize,
        piece in 1..5_000usize,
    ) {
        let options = PackOptions { block_bytes, part_bytes: 4_096 };
        let mut builder = PackBuilder::new(PackKind::Shared { log: LogId(1) }, options);
        let mut expected = Vec::new();
        for (at, (batches, keyed)) in (1..).zip(&sections) {
            builder.begin_section(FEED, StreamId(at), *keyed).unwrap();
            let (mut base, mut frames) = (0, Vec::new());
            for (gap, batch) in batches {
                let keys: Vec<_> = batch.iter().map(|(key, _)| [key.unwrap_or(0)]).collect();
                let payloads: Vec<_> = batch.iter().map(|(_, len)| vec![7; *len]).collect();
                let records = batch.iter().zip(keys.iter().zip(&payloads)).map(|((key, _), (k, payload))| {
                    let key = (*keyed && key.is_some()).then_some(&k[..]);
                    Record { key, ..Record::of(payload) }
                });
                let frame = frame(base + gap, &records.collect::<Vec<_>>());
                base += gap + batch.len() as u64;
                builder.push_frame(&frame).unwrap();
                frames.push(frame);
            }
            expected.push(frames);
        }
        if expected.iter().all(Vec::is_empty) {
            prop_assert!(builder.finish().is_err());
            return Ok(());
        }
        let mut bytes = Vec::new();
        while let Some(part) = builder.drain() {
            bytes.extend_from_slice(&part);
        }
        let (rest, summary) = finish(builder);
        bytes.extend_from_slice(&rest);
        let mut verifier = PackVerifier::new();
        for piece in bytes.chunks(piece) {
            verifier.push(piece).unwrap();
        }
        prop_assert_eq!(verifier.finish().unwrap(), summary);
        let footer = PackFooter::decode(&bytes, bytes.len() as u64).unwrap();
        let range = footer.index_range();
        let index = PackIndex::decode(&footer, &bytes[range.start as usize..range.end as usize]).unwrap();
        for (at, frames) in (1..).zip(&expected) {
            let mut found = Vec::new();
            for row in index.blocks_for(FEED, StreamId(at), Sequence(0)) {
                let (block, _) = BlockView::parse(&bytes[row.range().start as usize..]).unwrap();
                found.extend(block.frames().map(|frame| frame.unwrap().as_bytes().to_vec()));
                let column = row.column_range();
                let column = &bytes[column.start as usize..column.end as usize];
                let mut column = ColumnView::parse(column, row.records()).unwrap();
                for frame in block.frames() {
                    for record in frame.unwrap().records() {
                        let digest = Digest::of(record.payload).0;
                        prop_assert_eq!(column.take(1).unwrap(), &[digest]);
                    }
                }
                prop_assert!(column.take(1).is_err());
            }
            prop_assert_eq!(&found, frames);
        }
    }
}
