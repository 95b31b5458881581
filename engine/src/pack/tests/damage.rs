//! Tests of damage: every flipped bit, every cut, and contradictions under valid checksums.

use super::super::layout;
use super::super::table;
use super::*;
use crate::codec::DecodeError;

/// A pack with every part there is, padding between frames included.
fn small_packs() -> [Packed; 2] {
    let keyed = [
        frame(3, &[Record::keyed(b"key", 4, b"value"), Record::of(b"")]),
        frame(5, &[Record::keyed(b"", 4, b"v")]),
    ];
    [shared_pack(), stream_pack(true, &keyed, BLOCK_BYTES_TARGET)]
}

#[test]
fn exhaustive_any_flipped_bit_is_detected_and_placed() {
    for pack in small_packs() {
        let mut object = pack.object.clone();
        for at in 0..object.len() {
            for bit in 0..8 {
                object[at] ^= 1 << bit;
                let error = verify(&object, usize::MAX).expect_err("a flipped bit");
                assert!(error.offset <= at as u64, "byte {at} bit {bit}: {error}");
                assert!(
                    at as u64 - error.offset < 1_000,
                    "byte {at} bit {bit}: {error}"
                );
                object[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn exhaustive_any_cut_or_addition_is_detected() {
    for pack in small_packs() {
        for at in 0..pack.object.len() {
            assert!(verify(&pack.object[..at], 100).is_err(), "cut at {at}");
            let gone = [&pack.object[..at], &pack.object[at + 1..]].concat();
            assert!(verify(&gone, usize::MAX).is_err(), "byte {at} gone");
        }
        let longer = [pack.object.as_slice(), &[0]].concat();
        let error = verify(&longer, 100).expect_err("a trailing byte");
        assert_eq!(error.offset, pack.object.len() as u64);
    }
}

#[test]
fn exhaustive_flipped_bits_in_what_a_reader_reads_are_detected() {
    for pack in small_packs() {
        let footer_at = pack.object.len() - PACK_FOOTER_BYTES;
        let index_at = {
            let footer = PackFooter::decode(&pack.object, pack.object.len() as u64).unwrap();
            footer.index_range().start as usize
        };
        for at in index_at..pack.object.len() {
            let mut object = pack.object.clone();
            object[at] ^= 0x10;
            let footer = PackFooter::decode(&object, object.len() as u64);
            let index =
                footer.and_then(|footer| PackIndex::decode(&footer, &object[index_at..footer_at]));
            assert!(index.is_err(), "byte {at}");
        }
    }
}

#[test]
fn block_flipped_bits_are_detected_by_its_readers() {
    let pack = &small_packs()[1];
    let row = pack.index().blocks_for(FEED, STREAM, Sequence(0))[0];
    let block = pack.range(row.range());
    for at in 0..block.len() {
        let mut damaged = block.to_vec();
        damaged[at] ^= 4;
        let found = BlockView::parse(&damaged)
            .map_err(PackError::from)
            .and_then(|(view, _)| view.frames().collect::<Result<Vec<_>, _>>());
        assert!(found.is_err(), "byte {at}");
        assert!(BlockView::parse(&block[..at]).is_err(), "cut at {at}");
    }
}

/// Writes `patch` at `at`, then seals index, section table and footer again.
fn tamper(pack: &Packed, at: usize, patch: &[u8]) -> Vec<u8> {
    let mut object = pack.object.clone();
    object[at..at + patch.len()].copy_from_slice(patch);
    let range = pack.index().footer().index_range();
    let (index_at, footer_at) = (range.start as usize, range.end as usize);
    let rows = pack.index().rows_for_test();
    let table_at = index_at + table::PART_HEADER_BYTES + rows * table::INDEX_ROW_BYTES;
    layout::seal(&mut object[index_at..table_at], 8);
    layout::seal(&mut object[table_at..footer_at], 8);
    let crcs = [index_at, table_at].map(|at| table::part_crc(&object[at..]).unwrap());
    for (n, crc) in crcs.into_iter().enumerate() {
        let at = footer_at + 80 + 4 * n;
        object[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    layout::seal(&mut object[footer_at..], PACK_FOOTER_BYTES - 12);
    object
}

#[test]
fn tampered_tables_under_valid_checksums_are_detected() {
    for pack in small_packs() {
        assert_eq!(
            tamper(&pack, 0, b"SEAL"),
            pack.object,
            "sealing again changes nothing"
        );
        let range = pack.index().footer().index_range();
        for at in range.start as usize..pack.object.len() - 12 {
            let object = tamper(&pack, at, &[pack.object[at] ^ 1]);
            if object == pack.object {
                continue; // a checksum byte, sealed over
            }
            // Frames cannot tell whether keys were allowed where there are none: `keyed` is taken
            // on trust, and so is nothing else.
            if let Ok(mut summary) = verify(&object, usize::MAX) {
                let all = summary.sections.iter_mut().zip(&pack.summary.sections);
                let changed = all.filter(|(found, said)| found.keyed != said.keyed);
                let keys: Vec<_> = changed.map(|(found, _)| found.key_count).collect();
                assert_eq!(keys, [0], "byte {at}");
            }
            // A reader may believe it, but must not panic or be led out of the object.
            let len = object.len() as u64;
            if let Ok(footer) = PackFooter::decode(&object, len)
                && let Ok(parts) = usize::try_from(footer.index_range().start)
                && let Ok(index) =
                    PackIndex::decode(&footer, &object[parts..object.len() - PACK_FOOTER_BYTES])
            {
                for section in index.sections() {
                    let rows = index.blocks(section);
                    assert!(rows.iter().all(|row| row.range().end <= len));
                    assert!(section.keys.end <= len);
                }
            }
        }
    }
}

#[test]
fn index_rows_that_contradict_the_section_are_refused() {
    let pack = stream_pack(false, &[plain(3), plain(4), plain(5)], 0);
    let rows_at = pack.index().footer().index_range().start as usize + table::PART_HEADER_BYTES;
    let second = rows_at + table::INDEX_ROW_BYTES;
    // Offsets of offset, feed, stream, first, end, first_record and records in a row.
    let patches = [
        (0, 72),
        (16, 1),
        (24, 1),
        (32, 0),
        (40, 4),
        (48, 0),
        (56, 9),
        (32, 3),
    ];
    for (field, value) in patches {
        let object = tamper(&pack, second + field, &u64::to_le_bytes(value));
        let footer = PackFooter::decode(&object, object.len() as u64).unwrap();
        let range = footer.index_range();
        let parts = &object[range.start as usize..range.end as usize];
        let decoded = PackIndex::decode(&footer, parts);
        assert!(decoded.is_err(), "field at {field} set to {value}");
    }
}

#[test]
fn tampered_key_run_under_valid_checksums_is_detected() {
    let pack = &small_packs()[1];
    let index = pack.index();
    let section = &index.sections()[0];
    let keys = section.keys.clone();
    let mut object = pack.object.clone();
    let (start, end) = (keys.start as usize, keys.end as usize);
    object[start + 32 + 16] ^= 1; // the first entry's sequence
    let body = crc32c::crc32c(&object[start + 32..end]);
    object[start + 12..start + 16].copy_from_slice(&body.to_le_bytes());
    layout::seal(&mut object[start..start + 32], 16);
    let error = verify(&object, usize::MAX).expect_err("another newest record");
    assert_eq!(error.offset, keys.start);
}

#[test]
fn tampered_column_under_a_valid_checksum_is_named_by_its_entry() {
    for pack in small_packs() {
        let index = pack.index();
        let sections = index.sections().iter();
        for row in sections.flat_map(|section| index.blocks(section)) {
            let column = row.column_range();
            for record in 0..row.records() {
                let entry = column.start + 16 + 32 * record;
                let mut object = pack.object.clone();
                object[entry as usize + 31] ^= 0x80;
                let (start, end) = (column.start as usize, column.end as usize);
                layout::seal(&mut object[start..end], 8);
                assert!(ColumnView::parse(&object[start..end], row.records()).is_ok());
                let error = verify(&object, 40).expect_err("another digest");
                assert_eq!(error.offset, entry);
                let said = layout::invalid("column entry", record);
                assert_eq!(error.error, PackError::Pack(said));
            }
        }
    }
}

#[test]
fn newer_version_is_named_wherever_it_stands() {
    let pack = shared_pack();
    let footer_at = pack.object.len() - PACK_FOOTER_BYTES;
    let mut object = pack.object.clone();
    object[8] = 2;
    let error = verify(&object, usize::MAX).expect_err("a newer header");
    assert!(matches!(
        error.error,
        PackError::Pack(DecodeError::Version { found: 2, .. })
    ));
    let mut object = pack.object.clone();
    object[footer_at] = 2;
    let error = PackFooter::decode(&object, object.len() as u64);
    assert!(matches!(error, Err(DecodeError::Version { found: 2, .. })));
}
