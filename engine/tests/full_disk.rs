//! A disk without room for packs: what is tried, what is left behind, and how it goes on.
//!
//! **Invariants**
//! - Needs root, for a small disk of its own; says that it was skipped otherwise.
//!
//! **Not here**: a disk that the log itself fills (`cases_host`).
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::mounts::{Mount, can_mount, free_bytes};
use common::{assert_holds, batch, close, open, payload, scale, scratch, small};
use futures_lite::future::block_on;
use sealog_engine::{Effects, EngineConfig, FeedOptions, Handle, ProductionEnv};

const FEED: &str = "full";

fn append(handle: &Handle<ProductionEnv>, payloads: &mut Vec<Vec<u8>>, mib: usize) {
    for _ in 0..mib * 17 {
        let bytes = payload(payloads.len() as u64, 60 << 10);
        block_on(handle.append(FEED, batch(&[&bytes]))).unwrap();
        payloads.push(bytes);
    }
}

fn wait(what: &str, ready: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !ready() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn trouble(handle: &Handle<ProductionEnv>) -> Option<String> {
    let usage = block_on(handle.usage()).unwrap();
    usage.logs[0].trouble.as_ref().map(|(text, _)| text.clone())
}

/// Fills the disk of `dir` until `left` bytes are free.
fn fill_up(dir: &Path, left: u64) -> std::path::PathBuf {
    let filler = dir.join("filler");
    let bytes = usize::try_from(free_bytes(dir) - left).unwrap();
    std::fs::write(&filler, vec![1; bytes]).unwrap();
    std::fs::File::open(&filler).unwrap().sync_all().unwrap();
    filler
}

/// A log with much more in it than its bucket has room for.
fn bucket_elsewhere(dir: &Path, bucket: &Path) -> EngineConfig {
    let mut config = small(dir);
    config.bucket_dir = Some(bucket.to_owned());
    config.wal.disk_bytes_max = 64 << 20;
    config.wal.full_wait = Duration::from_secs(1);
    config.pack_bytes = 4 << 20;
    config
}

#[test]
fn bucket_on_a_full_disk_is_not_written_again_and_again() {
    let case = "bucket_on_a_full_disk_is_not_written_again_and_again";
    if !can_mount(case) {
        return;
    }
    let Some(mount) = Mount::ext4(case, 48) else {
        return;
    };
    let dir = scratch();
    let bucket = mount.dir.join("bucket");
    let filler = fill_up(&mount.dir, 3 << 20);
    let (engine, handle) = open(bucket_elsewhere(dir.path(), &bucket));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let mut payloads = Vec::new();
    append(&handle, &mut payloads, 12);
    wait("no trouble", || trouble(&handle).is_some());
    let error = block_on(handle.seal(FEED, None, "")).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("storage full: commit 0 is sealed"),
        "{text}"
    );
    assert!(error.is_retryable(), "{text}");
    assert_eq!(
        error.effects(),
        Effects::Unknown,
        "it is sealed all the same"
    );
    let before = mount.written();
    std::thread::sleep(Duration::from_secs(scale(8, 30)));
    let written = mount.written() - before;
    println!("{case}: {written} bytes written for nothing");
    assert!(written < 512 << 10, "{written} bytes written for nothing");
    let left: Vec<_> = std::fs::read_dir(bucket.join(".tmp")).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
    std::fs::remove_file(filler).unwrap();
    wait("not published", || {
        block_on(handle.list_commits(FEED, sealog_engine::ids::CommitNumber(0), 10))
            .unwrap()
            .len()
            == 1
    });
    assert_eq!(trouble(&handle), None);
    assert_holds(&handle, FEED, &payloads, case);
    close(engine);
}

#[test]
fn log_that_may_fill_the_disk_makes_room_for_its_packs() {
    let case = "log_that_may_fill_the_disk_makes_room_for_its_packs";
    if !can_mount(case) {
        return;
    }
    let Some(mount) = Mount::ext4(case, 64) else {
        return;
    };
    let mut config = small(&mount.dir.join("store"));
    config.wal.disk_bytes_max = 60 << 20;
    config.wal.lane_start_bytes = 34 << 20;
    let (engine, handle) = open(config.clone());
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let mut payloads = Vec::new();
    append(&handle, &mut payloads, 33);
    let commit = block_on(handle.seal(FEED, None, ""));
    let left = free_bytes(&mount.dir);
    assert!(commit.is_ok(), "{commit:?}, {left} bytes are free");
    assert_holds(&handle, FEED, &payloads, case);
    // The log goes on with what room there is.
    append(&handle, &mut payloads, 2);
    assert_holds(&handle, FEED, &payloads, case);
    close(engine);
    let (engine, handle) = open(config);
    assert_holds(&handle, FEED, &payloads, case);
    close(engine);
}
