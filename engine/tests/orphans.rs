//! Orphans: objects that nothing names go from the bucket, and no others.
#![allow(clippy::unwrap_used)]

mod common;
mod formats;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{assert_holds, batch, close, open, payload, put, quick, small};
use futures_lite::future::block_on;
use sealog_engine::commit::CommitKind;
use sealog_engine::ids::{FeedId, LogId, StreamId};
use sealog_engine::pack::{PackBuilder, PackKind, PackOptions};
use sealog_engine::{EngineConfig, FeedOptions, Handle, ProductionEnv, verify};
use sealog_frame::Record;

const GRACE: Duration = Duration::from_millis(400);

fn config(dir: &Path) -> EngineConfig {
    let mut config = small(dir);
    config.gc_grace = GRACE;
    config
}

/// Packs and manifests below `dir`, which may go while they are listed.
fn objects(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let Ok(entries) = std::fs::read_dir(dir) else {
        return found;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(objects(&path));
        } else if path
            .extension()
            .is_some_and(|end| end == "pack" || end == "manifest")
        {
            found.insert(path);
        }
    }
    found
}

/// A pack that an interrupted upload may leave: of the right streams, named by nothing.
fn lost_pack(dir: &Path, kind: PackKind, feed: FeedId, stream: StreamId) -> PathBuf {
    let mut builder = PackBuilder::new(kind, PackOptions::default());
    builder.begin_section(feed, stream, false).unwrap();
    builder
        .push_frame(&formats::frame(0, &[Record::of(b"lost")]))
        .unwrap();
    let (bytes, summary) = formats::finish(builder);
    let folder = match kind {
        PackKind::Shared { log } => dir.join(format!("bucket/shared/{log}")),
        PackKind::Stream { .. } => {
            dir.join(format!("bucket/feeds/kept/{feed}/streams/{:020}", stream.0))
        }
    };
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{}.pack", summary.digest));
    std::fs::write(&path, bytes).unwrap();
    path
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Enough of several feeds that the lane packs them into shared packs.
fn fill(handle: &Handle<ProductionEnv>, feeds: &[&str], rounds: u64) -> Vec<Vec<u8>> {
    for feed in feeds {
        block_on(handle.create_feed(feed, FeedOptions::default())).unwrap();
    }
    let mut payloads = Vec::new();
    for number in 0..rounds {
        let bytes = payload(number, 8_000);
        for feed in feeds {
            block_on(handle.append(feed, batch(&[&bytes]))).unwrap();
        }
        payloads.push(bytes);
    }
    payloads
}

#[test]
fn lost_packs_are_removed_after_their_grace_and_named_ones_stay() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    let feeds: Vec<String> = (0..11).map(|n| format!("quiet-{n}")).collect();
    let mut names: Vec<&str> = feeds.iter().map(String::as_str).collect();
    names.push("kept");
    let payloads = fill(&handle, &names, 60);
    block_on(handle.seal("kept", None, "done")).unwrap();
    let feed = block_on(handle.feed("kept")).unwrap().id;
    close(engine);
    let before = objects(dir.path());
    let shared = |path: &PathBuf| path.starts_with(dir.path().join("bucket/shared"));
    assert!(before.iter().any(shared), "{before:?}");

    let log = LogId(0);
    let stream = StreamId(1);
    let lost = [
        lost_pack(dir.path(), PackKind::Shared { log }, feed, stream),
        lost_pack(dir.path(), PackKind::Stream { feed, stream }, feed, stream),
    ];
    let notes = dir.path().join("bucket/shared/0/notes.txt");
    std::fs::write(&notes, b"mine").unwrap();
    let begun = Instant::now();
    let (engine, handle) = open(config(dir.path()));
    for lost in &lost {
        wait_until("a lost pack stays", || !lost.exists());
    }
    assert!(begun.elapsed() >= GRACE);
    for name in &names {
        assert_holds(&handle, name, &payloads, "after the walk");
    }
    close(engine);
    let after = objects(dir.path());
    assert!(after.is_superset(&before), "named objects are gone");
    assert!(notes.exists());
    verify(&config(dir.path()), &mut |_| {}).unwrap();
}

#[test]
fn packs_of_a_discarded_stream_are_removed() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    fill(&handle, &["dropped"], 700);
    let stream_packs = || {
        let found = objects(dir.path()).into_iter();
        found
            .filter(|path| path.to_string_lossy().contains("/dropped/"))
            .count()
    };
    wait_until("nothing is packed", || stream_packs() > 0);
    let stream = block_on(handle.feed("dropped")).unwrap();
    assert_eq!(stream.next_sequence, 700);
    block_on(handle.settle_stream("dropped", None, CommitKind::Discarded, "")).unwrap();
    wait_until("packs of a discarded stream stay", || stream_packs() == 0);
    put(&handle, "dropped", b"next");
    block_on(handle.seal("dropped", None, "")).unwrap();
    close(engine);
    verify(&config(dir.path()), &mut |_| {}).unwrap();
}

#[test]
fn shared_packs_of_deleted_feeds_only_are_removed() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    let feeds: Vec<String> = (0..12).map(|n| format!("gone-{n}")).collect();
    let names: Vec<&str> = feeds.iter().map(String::as_str).collect();
    fill(&handle, &names, 60);
    let shared = || {
        let found = objects(dir.path()).into_iter();
        found
            .filter(|path| path.to_string_lossy().contains("/shared/"))
            .count()
    };
    wait_until("nothing is packed", || shared() > 0);
    for name in &names[1..] {
        block_on(handle.delete_feed(name)).unwrap();
    }
    std::thread::sleep(3 * GRACE + Duration::from_secs(3));
    assert!(shared() > 0, "one feed is left that its packs hold");
    block_on(handle.delete_feed(names[0])).unwrap();
    wait_until("packs of nobody stay", || shared() == 0);
    close(engine);
    verify(&config(dir.path()), &mut |_| {}).unwrap();
}

#[test]
fn bucket_elsewhere_is_left_alone() {
    let dir = quick();
    let elsewhere = quick();
    let mut config = config(dir.path());
    config.bucket_dir = Some(elsewhere.path().join("bucket"));
    let (engine, handle) = open(config.clone());
    block_on(handle.create_feed("kept", FeedOptions::default())).unwrap();
    put(&handle, "kept", b"payload");
    let log = LogId(0);
    let feed = block_on(handle.feed("kept")).unwrap().id;
    let theirs = lost_pack(
        elsewhere.path(),
        PackKind::Shared { log },
        feed,
        StreamId(1),
    );
    std::thread::sleep(3 * GRACE + Duration::from_secs(3));
    assert!(theirs.exists());
    close(engine);
}
