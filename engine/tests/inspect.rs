//! Inspection: every file of a store and every golden file is told by its first bytes, and shown bounded.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/store.rs"]
mod store;

use std::collections::BTreeSet;
use std::path::Path;

use common::scratch;
use sealog_engine::{Error, InspectOptions, Node, inspect};
use store::{files, fill, tiny};

fn number(node: &Node, path: &[&str]) -> u64 {
    match node.get(path) {
        Some(Node::Number(value)) => *value,
        other => panic!("{path:?}: {other:?}"),
    }
}

fn text(node: &Node, path: &[&str]) -> String {
    match node.get(path) {
        Some(Node::Text(value)) => value.clone(),
        other => panic!("{path:?}: {other:?}"),
    }
}

#[test]
fn inspect_every_file_of_a_store_is_told_and_bounded() {
    let dir = scratch();
    fill(&tiny(dir.path()));
    let options = InspectOptions {
        items: 3,
        preview_bytes: 16,
    };
    let mut formats = BTreeSet::new();
    for file in files(dir.path()) {
        let name = file.to_string_lossy().into_owned();
        let path = dir.path().join(&file);
        match inspect(&path, &options) {
            Ok(node) => {
                formats.insert(text(&node, &["format"]));
                let shown = node.to_string();
                assert!(shown.lines().count() < 400, "{name}:\n{shown}");
                let json = node.to_json();
                assert_eq!(json["format"], text(&node, &["format"]));
            }
            // The lock, feed.json and spare space are no formats of ours.
            Err(error) => panic!("{name}: {error}"),
        }
    }
    // A directory has one only now and then.
    formats.remove("segment that is not in use yet");
    let expected = [
        "bucket lock",
        "checkpoint chunk",
        "checkpoint root",
        "commit",
        "data directory",
        "directory lock",
        "feed",
        "key index",
        "manifest",
        "pack",
        "reserve: space kept for a checkpoint or a pack",
        "segment",
    ];
    assert_eq!(
        formats.iter().map(String::as_str).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn inspect_golden_files_show_what_is_in_them() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let see = |file: &str| inspect(&golden.join(file), &InspectOptions::default()).unwrap();
    let group = see("wal/v1/group-entries.bin");
    assert_eq!(number(&group, &["entry_count"]), 17);
    assert_eq!(text(&group, &["entries", "0", "entry"]), "feed created");
    assert_eq!(
        text(&group, &["entries", "0", "content", "name"]),
        "plant/pump-1"
    );
    assert_eq!(
        text(
            &group,
            &["entries", "4", "content", "records", "0", "payload"]
        ),
        "first"
    );
    let chunk = see("checkpoint/v1/chunk.bin");
    assert_eq!(number(&chunk, &["feeds", "0", "next_sequence"]), 8);
    assert_eq!(number(&see("checkpoint/v1/root.bin"), &["chunk_count"]), 2);
    assert_eq!(number(&see("checkpoint/v1/marker.bin"), &["logs", "1"]), 4);
    let commit = see("commit/v1/sealed.bin");
    assert_eq!(number(&commit, &["number"]), 0);
    for file in [
        "pack/v1/shared.bin",
        "manifest/v1/packs-and-keys.bin",
        "key-index/v1/blocks.bin",
    ] {
        assert!(!see(file).to_string().is_empty());
    }
    let frame = see("frame/v1/plain-every-field.bin");
    assert_eq!(text(&frame, &["records", "0", "key"]), "sensor/7");
    let few = InspectOptions {
        items: 1,
        ..InspectOptions::default()
    };
    let frame = inspect(&golden.join("frame/v1/plain-every-field.bin"), &few).unwrap();
    assert_eq!(text(&frame, &["records", "1"]), "and 3 more");
}

#[test]
fn inspect_damage_names_file_and_byte() {
    let dir = scratch();
    let path = dir.path().join("x");
    std::fs::write(&path, b"no format of ours").unwrap();
    let error = inspect(&path, &InspectOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    assert!(
        error.to_string().contains("is not a Sealog file"),
        "{error}"
    );
    std::fs::write(&path, b"SEALCOMT").unwrap();
    let error = inspect(&path, &InspectOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let missing = inspect(&dir.path().join("y"), &InspectOptions::default());
    assert!(matches!(missing, Err(Error::Io { .. })));
}
