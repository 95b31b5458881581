//! Cases of formats: a program meets data of a newer one: refused, named, untouched.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};

use common::image::{self, GroupAt};
use common::{assert_holds, close, open, payload, quick, read, small};
use futures_lite::future::block_on;
use sealog_engine::{Engine, Error, FeedOptions, ReadRequest};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const FEED: &str = "newer";

struct Store {
    dir: TempDir,
    payloads: Vec<Vec<u8>>,
}

/// One published commit, then records that are only in the log; killed, so that they are replayed.
fn store() -> Store {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    let keyed = FeedOptions {
        keys: true,
        ..FeedOptions::default()
    };
    block_on(handle.create_feed(FEED, keyed)).unwrap();
    let payloads: Vec<_> = (0..12).map(|number| payload(number, 3000)).collect();
    for (at, bytes) in payloads.iter().enumerate() {
        let mut builder = sealog_frame::BatchBuilder::default();
        builder
            .push(&sealog_frame::Record::keyed(b"key", 0, bytes))
            .unwrap();
        block_on(handle.append(FEED, builder.build().unwrap())).unwrap();
        if at == 7 {
            block_on(handle.seal(FEED, None, "first")).unwrap();
        }
    }
    let image = image::image(dir.path());
    close(engine);
    Store {
        dir: image,
        payloads,
    }
}

/// Raises the version number at `at` by one; answers the old one.
fn raise(path: &Path, at: u64) -> u8 {
    let [version] = image::read_at(path, at, 1)[..] else {
        panic!()
    };
    image::write_at(path, at, &[version + 1]);
    version
}

/// The message of an error that must name the file and both numbers.
fn names_both(error: &Error, file: &Path, version: u8, about: &str) {
    let text = error.to_string();
    assert!(
        matches!(error, Error::NewerFormat { .. }),
        "{about}: {error:?}"
    );
    assert!(text.contains(&*file.to_string_lossy()), "{about}: {text}");
    let newer = format!("version {} is newer than {version}", version + 1);
    assert!(text.contains(&newer), "{about}: {text}");
}

/// Opening `dir` is refused for `file`; nothing changes.
fn refuses(dir: &Path, file: &Path, version: u8, about: &str) {
    let before = image::tree(dir);
    let error = Engine::open(small(dir))
        .err()
        .unwrap_or_else(|| panic!("{about}: opened"));
    names_both(&error, file, version, about);
    assert!(image::tree(dir) == before, "{about}: something was changed");
}

/// Raises the version of `file` at `at`, with its checksum made to fit or not, and puts it back.
fn raised_and_back(store: &Store, file: &Path, at: u64, seal: impl Fn(&mut [u8])) {
    let original = std::fs::read(file).unwrap();
    for sealed in [false, true] {
        let about = format!("{}, checksum made to fit: {sealed}", file.display());
        let version = raise(file, at);
        if sealed {
            let mut bytes = std::fs::read(file).unwrap();
            seal(&mut bytes);
            std::fs::write(file, &bytes).unwrap();
        }
        refuses(store.dir.path(), file, version, &about);
        std::fs::write(file, &original).unwrap();
    }
    let copy = image::image(store.dir.path());
    let (engine, handle) = open(small(copy.path()));
    assert_holds(&handle, FEED, &store.payloads, "put back");
    close(engine);
}

/// The checksum of a preamble: bytes 12 to 16, over `len` bytes.
fn seal_preamble(bytes: &mut [u8], len: usize) {
    bytes[12..16].fill(0);
    let crc = crc32c::crc32c(&bytes[..len]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

fn seal_whole(bytes: &mut [u8]) {
    let len = bytes.len();
    seal_preamble(bytes, len);
}

#[test]
fn case_d26_newer_marker_checkpoint_or_segment_is_refused() {
    let store = store();
    let dir = store.dir.path();
    let files = |wanted: &str| image::files(dir, |name| name.contains(wanted));
    let marker = dir.join("format");
    raised_and_back(&store, &marker, 8, seal_whole);
    let newest_root = files("/root-").pop().unwrap();
    raised_and_back(&store, &newest_root, 8, seal_whole);
    let segments = image::segments(dir, 0);
    for path in segments.values() {
        raised_and_back(&store, path, 8, |bytes| seal_preamble(bytes, 4096));
    }
}

#[test]
fn case_d26_newer_state_chunk_is_refused() {
    let store = store();
    // Opening and closing takes a checkpoint with the feed's state (and its producers) in a chunk.
    close(open(small(store.dir.path())).0);
    let chunks = image::files(store.dir.path(), |name| name.contains("/chunk-"));
    let newest = chunks.last().expect("no chunk was written");
    raised_and_back(&store, newest, 8, seal_whole);
}

/// Raises the version of a group and of all behind it, as a newer program would have written them.
fn raise_from(groups: &[GroupAt]) {
    for group in groups {
        let mut bytes = group.bytes();
        bytes[8] += 1;
        group.write_sealed(&mut bytes);
    }
}

#[test]
fn case_d26_newer_groups_are_refused_not_dropped() {
    let store = store();
    let groups = image::groups(store.dir.path(), 0);
    for first in [0, groups.len() / 2, groups.len() - 1] {
        let copy = image::image(store.dir.path());
        let copied = image::groups(copy.path(), 0);
        raise_from(&copied[first..]);
        let about = format!("group {first} of {} and all after it", groups.len());
        refuses(copy.path(), &copied[first].path, 1, &about);
    }
}

/// Reading the feed is refused for `file`.
fn refuses_reading(dir: &Path, file: &str, version: u8) {
    let (engine, handle) = open(small(dir));
    let error = read(&handle, ReadRequest::new(FEED)).expect_err(file);
    names_both(&error, Path::new(file), version, file);
    close(engine);
}

/// The one object whose name ends so, and its key.
fn object(dir: &Path, end: &str) -> (PathBuf, String) {
    let found = image::files(&dir.join("bucket"), |name| name.ends_with(end));
    assert_eq!(found.len(), 1, "{end}: {found:?}");
    let key = found[0].strip_prefix(dir.join("bucket")).unwrap();
    (found[0].clone(), key.to_string_lossy().into_owned())
}

#[test]
fn case_d26_newer_bucket_objects_are_refused_by_reads() {
    let store = store();
    let dir = store.dir.path();
    let before = image::tree(&dir.join("bucket"));
    let pack_end = std::fs::metadata(object(dir, ".pack").0).unwrap().len();
    for (end, at) in [(".commit", 8), (".manifest", 8), (".pack", pack_end - 128)] {
        let (path, key) = object(dir, end);
        let original = std::fs::read(&path).unwrap();
        let version = raise(&path, at);
        let copy = image::image(dir);
        refuses_reading(copy.path(), &key, version);
        std::fs::write(&path, original).unwrap();
    }
    assert!(image::tree(&dir.join("bucket")) == before);
    let (engine, handle) = open(small(dir));
    assert_holds(&handle, FEED, &store.payloads, "put back");
    close(engine);
}

#[test]
fn case_d26_newer_manifest_with_a_commit_that_names_it_is_refused() {
    let store = store();
    let dir = store.dir.path();
    let (manifest, _) = object(dir, ".manifest");
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[8] += 1;
    seal_whole(&mut bytes);
    let digest = Sha256::digest(&bytes);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let newer = manifest.with_file_name(format!("{hex}.manifest"));
    std::fs::write(&newer, &bytes).unwrap();
    let (commit, _) = object(dir, ".commit");
    let mut bytes = std::fs::read(&commit).unwrap();
    bytes[120..152].copy_from_slice(&digest);
    seal_whole(&mut bytes);
    std::fs::write(&commit, &bytes).unwrap();
    refuses_reading(dir, &format!("{hex}.manifest"), 1);
}
