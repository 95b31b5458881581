//! Golden packs, manifests, commits and key indexes: the bytes of version 1, pinned both ways. Spec: spec/pack.md,
//! spec/manifest.md, spec/commit.md, spec/key-index.md.
//!
//! **Invariants**
//! - For every case decode(file) = value and encode(value) = file.
//! - Files are written once, by the ignored test, which never overwrites; no file is without a case.
//!
//! **Not here**: bytes that must be refused; unit tests and `formats_properties` have them.
#![allow(clippy::unwrap_used)]

mod formats;

use formats::{FEED, STREAM, commits, key_entries, key_index, manifests, shared_pack, stream_pack};
use sealog_engine::commit::{Commit, Manifest};
use sealog_engine::ids::{Digest, FeedId, Sequence, StreamId};
use sealog_engine::pack::keys::KeyEntry;
use sealog_engine::pack::keys::block::KeyBlock;
use sealog_engine::pack::keys::reader::check_key_index;
use sealog_engine::pack::{BlockView, PackFooter, PackIndex, PackSummary, PackVerifier};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

struct Case {
    format: &'static str,
    name: &'static str,
    about: &'static str,
    bytes: Vec<u8>,
}

/// Fields of the first bytes of a format, with their sizes.
type Fields = &'static [(&'static str, usize)];

const FORMATS: [(&str, Fields); 4] = [
    ("pack", PACK),
    ("manifest", MANIFEST),
    ("commit", COMMIT),
    ("key-index", KEY_INDEX),
];
const PACK: Fields = &[
    ("magic", 8),
    ("version", 2),
    ("kind", 1),
    ("reserved", 1),
    ("header_crc", 4),
    ("feed", 8),
    ("stream", 8),
    ("log", 8),
    ("reserved", 24),
];
const MANIFEST: Fields = &[
    ("magic", 8),
    ("version", 2),
    ("flags", 2),
    ("crc", 4),
    ("feed", 8),
    ("stream", 8),
    ("first_sequence", 8),
    ("end_sequence", 8),
    ("record_count", 8),
    ("payload_bytes", 8),
    ("first_timestamp_ms", 8),
    ("max_timestamp_ms", 8),
    ("merkle_root", 32),
    ("key_index_digest", 32),
    ("key_index_bytes", 8),
    ("pack_count", 4),
    ("reserved", 4),
];
const COMMIT: Fields = &[
    ("magic", 8),
    ("version", 2),
    ("kind", 1),
    ("reserved", 1),
    ("crc", 4),
    ("number", 8),
    ("feed", 8),
    ("stream", 8),
    ("epoch", 8),
    ("first_sequence", 8),
    ("end_sequence", 8),
    ("record_count", 8),
    ("payload_bytes", 8),
    ("time_ms", 8),
    ("parent", 32),
    ("manifest", 32),
    ("message_bytes", 4),
];
const KEY_INDEX: Fields = &[
    ("magic", 8),
    ("version", 2),
    ("reserved", 2),
    ("header_crc", 4),
    ("feed", 8),
    ("stream", 8),
    ("reserved", 32),
];

fn cases() -> Vec<Case> {
    let case = |format, name, about, bytes| Case {
        format,
        name,
        about,
        bytes,
    };
    let [full, empty] = manifests();
    let [sealed, discarded] = commits();
    vec![
        case(
            "pack",
            "stream.bin",
            "one stream, two blocks, a supplied fingerprint, a SPARSE frame",
            stream_pack().0,
        ),
        case(
            "pack",
            "shared.bin",
            "three sections: plain, keyed, keyed without keys",
            shared_pack().0,
        ),
        case(
            "manifest",
            "packs-and-keys.bin",
            "a shared pack, a stream pack, a key index",
            full.encode(),
        ),
        case(
            "manifest",
            "empty.bin",
            "a stream sealed without a record",
            empty.encode(),
        ),
        case(
            "commit",
            "sealed.bin",
            "number 0, with a message",
            sealed.encode(),
        ),
        case(
            "commit",
            "discarded.bin",
            "its child, of a discarded stream",
            discarded.encode(),
        ),
        case(
            "key-index",
            "blocks.bin",
            "six keys in several blocks, the empty key and tombstones among them",
            key_index(&key_entries()),
        ),
        case("key-index", "empty.bin", "no keys", key_index(&[])),
    ]
}

fn folder(format: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden");
    PathBuf::from(root).join(format).join("v1")
}

fn golden(format: &str, name: &str) -> Vec<u8> {
    fs::read(folder(format).join(name)).unwrap()
}

fn header_fields(fields: Fields, bytes: &[u8]) -> String {
    let mut at = 0;
    let mut lines = Vec::new();
    for (field, size) in fields {
        let mut line = format!("        \"{at:03} {field}\": \"");
        for byte in &bytes[at..at + size] {
            write!(line, "{byte:02x}").unwrap();
        }
        lines.push(line + "\"");
        at += size;
    }
    lines.join(",\n")
}

fn description(format: &str, fields: Fields) -> String {
    let all = cases();
    let of_format = all.iter().filter(|case| case.format == format);
    let files: Vec<_> = of_format
        .map(|case| {
            format!(
                "    {{\n      \"file\": \"{}\",\n      \"about\": \"{}\",\n      \"bytes\": {},\n      \
                 \"sha256\": \"{}\",\n      \"header\": {{\n{}\n      }}\n    }}",
                case.name,
                case.about,
                case.bytes.len(),
                Digest::of(&case.bytes),
                header_fields(fields, &case.bytes)
            )
        })
        .collect();
    format!(
        "{{\n  \"format\": \"{format}\",\n  \"format_version\": 1,\n  \"files\": [\n{}\n  ]\n}}\n",
        files.join(",\n")
    )
}

#[test]
fn formats_v1_encode_to_golden() {
    for case in cases() {
        let found = golden(case.format, case.name);
        assert!(found == case.bytes, "{} {}", case.format, case.name);
    }
}

#[test]
fn commit_v1_golden_decodes() {
    let files = ["sealed.bin", "discarded.bin"].map(|name| golden("commit", name));
    for (bytes, expected) in files.iter().zip(commits()) {
        assert_eq!(Commit::decode(bytes), Ok(expected));
    }
    let child = Commit::decode(&files[1]).unwrap();
    assert_eq!(
        child.parent,
        Digest::of(&files[0]),
        "the chain is over the objects' bytes"
    );
}

#[test]
fn manifest_v1_golden_decodes() {
    for (name, expected) in ["packs-and-keys.bin", "empty.bin"].iter().zip(manifests()) {
        assert_eq!(Manifest::decode(&golden("manifest", name)), Ok(expected));
    }
}

#[test]
fn key_index_v1_golden_decodes() {
    for (name, expected) in [("blocks.bin", key_entries()), ("empty.bin", Vec::new())] {
        let bytes = golden("key-index", name);
        let index = check_key_index(&bytes).unwrap();
        assert_eq!((index.footer().feed, index.footer().stream), (FEED, STREAM));
        let mut found = Vec::new();
        for range in index.blocks() {
            let (block, _) =
                KeyBlock::parse(&bytes[range.start as usize..range.end as usize]).unwrap();
            found.extend(block.entries().map(|(key, state)| KeyEntry {
                key: key.to_vec(),
                state,
            }));
        }
        assert_eq!(found, expected, "{name}");
    }
}

fn verify(bytes: &[u8]) -> PackSummary {
    let mut verifier = PackVerifier::new();
    verifier.push(bytes).unwrap();
    verifier.finish().unwrap()
}

/// Sequence and payload of every record of a stream.
fn records(bytes: &[u8], feed: FeedId, stream: StreamId) -> Vec<(u64, Vec<u8>)> {
    let footer = PackFooter::decode(bytes, bytes.len() as u64).unwrap();
    let range = footer.index_range();
    let parts = &bytes[range.start as usize..range.end as usize];
    let index = PackIndex::decode(&footer, parts).unwrap();
    let mut found = Vec::new();
    for row in index.blocks_for(feed, stream, Sequence(0)) {
        let (block, _) = BlockView::parse(&bytes[row.range().start as usize..]).unwrap();
        for frame in block.frames() {
            let frame = frame.unwrap();
            found.extend(frame.records().map(|r| (r.sequence, r.payload.to_vec())));
        }
    }
    found
}

#[test]
fn pack_v1_golden_decodes() {
    let bytes = golden("pack", "stream.bin");
    assert_eq!(verify(&bytes), stream_pack().1);
    let expected = [
        (100, ""),
        (101, "supplied"),
        (102, "one more"),
        (110, "kept"),
        (112, "kept too"),
    ];
    let expected = expected.map(|(sequence, payload)| (sequence, payload.as_bytes().to_vec()));
    assert_eq!(records(&bytes, FEED, STREAM), expected);

    let bytes = golden("pack", "shared.bin");
    assert_eq!(verify(&bytes), shared_pack().1);
    assert_eq!(
        records(&bytes, FeedId(1), StreamId(1)),
        [(0, b"plain".to_vec())]
    );
    let keyed = [(7, b"x".to_vec()), (8, Vec::new()), (9, b"y".to_vec())];
    assert_eq!(records(&bytes, FEED, STREAM), keyed);
    assert_eq!(
        records(&bytes, FEED, StreamId(5)),
        [(10, b"no key".to_vec())]
    );
}

#[test]
fn formats_v1_descriptions_name_every_file() {
    for (format, fields) in FORMATS {
        let found = fs::read_to_string(folder(format).join("manifest.json")).unwrap();
        assert_eq!(found, description(format, fields));
        let files: BTreeSet<_> = fs::read_dir(folder(format))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let all = cases();
        let of_format = all.iter().filter(|case| case.format == format);
        let mut expected: BTreeSet<_> = of_format.map(|case| case.name.to_owned()).collect();
        expected.insert("manifest.json".to_owned());
        assert_eq!(files, expected, "no file without a case");
    }
}

#[test]
#[ignore = "writes the golden files, once: cargo test -p sealog-engine --test golden_formats -- --ignored"]
fn write_golden_files_once() {
    let write = |path: PathBuf, bytes: &[u8]| {
        let file = fs::File::create_new(&path);
        let mut file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        std::io::Write::write_all(&mut file, bytes).unwrap();
    };
    for (format, fields) in FORMATS {
        fs::create_dir_all(folder(format)).unwrap();
        write(
            folder(format).join("manifest.json"),
            description(format, fields).as_bytes(),
        );
    }
    for case in cases() {
        write(folder(case.format).join(case.name), &case.bytes);
    }
}
