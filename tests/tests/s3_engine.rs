//! S3_engine: the engine on a store that goes away, comes back, loses replies, or is another one.
//!
//! **Invariants**
//! - What is acknowledged stays, within the log's bound; publication follows in order, each commit once.
//!
//! **Not here**: single requests (`s3_faults`), real stores (`s3`).
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use sealog_engine::ids::CommitNumber;
use sealog_engine::{Engine, Error, FeedOptions, Handle, ProductionEnv, ReadFrom, ReadRequest};
use sealog_frame::{Batch, BatchBuilder, Record};
use sealog_tests::store::{FakeStore, Fault, Proxy, Reply, Request, config};

const FEED: &str = "f";

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn batch(seed: u8) -> Batch {
    let mut batch = BatchBuilder::default();
    let payload = [seed; 8 << 10];
    batch.push(&Record::of(&payload)).unwrap();
    batch.build().unwrap()
}

fn append(handle: &Handle<ProductionEnv>, count: usize) -> Result<(), Error> {
    (0..count).try_for_each(|n| block_on(handle.append(FEED, batch(n as u8))).map(drop))
}

fn records(handle: &Handle<ProductionEnv>) -> u64 {
    let mut request = ReadRequest::new(FEED);
    loop {
        let chunk = block_on(handle.read(request.clone())).unwrap();
        if chunk.frames.is_empty() {
            return chunk.next;
        }
        request.from = ReadFrom::Sequence(chunk.next);
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(40), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_commit(request: &Request) -> bool {
    request.method == "PUT" && request.key().ends_with(".commit")
}

fn away() -> Fault {
    Fault::Answer(Reply::error(503, "SlowDown"))
}

#[test]
fn regression_store_away_the_log_keeps_what_it_may_and_publication_follows() {
    let (dir, store) = (scratch(), FakeStore::start());
    let proxy = Proxy::start(&store.endpoint());
    let config = config(dir.path(), &proxy.endpoint(), "p");
    let engine = Engine::open(config.clone()).unwrap();
    let handle = engine.handle().clone();
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    append(&handle, 5).unwrap();
    block_on(handle.seal(FEED, None, "first")).unwrap();

    proxy.rule(usize::MAX, away(), |_| true);
    append(&handle, 5).unwrap();
    let sealed = block_on(handle.seal(FEED, None, "second")).unwrap_err();
    let waits = matches!(sealed, Error::Unpublished { full: false, .. });
    assert!(waits, "{sealed}");
    let mut kept = 10;
    let full = loop {
        match append(&handle, 1) {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::StorageFull { .. }), "{full}");
    assert!(full.is_retryable() && kept > 100, "{kept}: {full}");
    let usage = block_on(handle.usage()).unwrap();
    let log = &usage.logs[0];
    assert!(log.disk_bytes <= log.disk_bytes_max, "{log:?}");
    assert!(log.unpacked_bytes > log.disk_bytes_max / 2, "{log:?}");
    assert_eq!(log.unpublished_commits, 1);
    let (text, lasts) = log.trouble.clone().unwrap();
    assert!(text.contains("503") && !lasts.is_zero(), "{text}");
    assert!(usage.bucket.trouble.is_some());

    proxy.heal();
    until("appends go on", || append(&handle, 1).is_ok());
    block_on(handle.seal(FEED, None, "third")).unwrap();
    let usage = block_on(handle.usage()).unwrap();
    assert_eq!(
        (usage.logs[0].unpublished_commits, usage.bucket.trouble),
        (0, None)
    );
    let commits = block_on(handle.list_commits(FEED, CommitNumber(0), 9)).unwrap();
    let messages: Vec<&str> = commits.iter().map(|commit| &*commit.message).collect();
    assert_eq!(messages, ["first", "second", "third"]);
    assert_eq!(records(&handle), kept + 1);
    block_on(engine.close()).unwrap();
    let names = store.keys("p/");
    let published = names.iter().filter(|key| key.ends_with(".commit")).count();
    assert_eq!(published, 3, "{names:?}");
    let report = sealog_engine::verify(&config, &mut |_| {}).unwrap();
    assert_eq!((report.commits, report.packed_records), (3, kept + 1));
}

#[test]
fn regression_commit_whose_reply_is_lost_is_published_once() {
    let (dir, store) = (scratch(), FakeStore::start());
    let proxy = Proxy::start(&store.endpoint());
    let config = config(dir.path(), &proxy.endpoint(), "p");
    let engine = Engine::open(config.clone()).unwrap();
    let handle = engine.handle().clone();
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    for fault in [
        Fault::LoseReply,
        Fault::ChangeReply(Reply::error(500, "InternalError")),
    ] {
        append(&handle, 3).unwrap();
        proxy.rule(1, fault, is_commit);
        block_on(handle.seal(FEED, None, "")).unwrap();
    }
    assert_eq!(proxy.heal(), [1, 1]);
    // Somebody else's object in the place of the next one: never taken for ours.
    let theirs = store
        .keys("p/")
        .into_iter()
        .find(|key| key.ends_with("1.commit"));
    let next = theirs.unwrap().replace("1.commit", "2.commit");
    store.set(&next, b"somebody else's");
    append(&handle, 3).unwrap();
    let refused = block_on(handle.seal(FEED, None, "")).unwrap_err();
    assert!(refused.to_string().contains("not ours"), "{refused}");
    assert_eq!(store.object(&next).unwrap(), b"somebody else's");
    block_on(engine.close()).unwrap();
}

#[test]
fn regression_start_without_the_store_takes_appends() {
    let (dir, store) = (scratch(), FakeStore::start());
    let proxy = Proxy::start(&store.endpoint());
    let config = config(dir.path(), &proxy.endpoint(), "p");
    proxy.rule(usize::MAX, Fault::Drop, |_| true);
    let engine = Engine::open(config.clone()).unwrap();
    let handle = engine.handle().clone();
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    append(&handle, 10).unwrap();
    assert!(block_on(handle.seal(FEED, None, "m")).is_err());
    assert_eq!(store.requests(), Vec::<String>::new());
    proxy.heal();
    until("published", || {
        block_on(handle.usage()).unwrap().logs[0].unpublished_commits == 0
    });
    assert_eq!(records(&handle), 10);
    block_on(engine.close()).unwrap();
}

#[test]
fn regression_another_bucket_that_comes_late_is_not_written_to() {
    let (dir, store) = (scratch(), FakeStore::start());
    let proxy = Proxy::start(&store.endpoint());
    let engine = Engine::open(config(dir.path(), &proxy.endpoint(), "p")).unwrap();
    let handle = engine.handle().clone();
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    append(&handle, 3).unwrap();
    block_on(handle.seal(FEED, None, "")).unwrap();
    block_on(engine.close()).unwrap();

    let other = config(dir.path(), &proxy.endpoint(), "other");
    let refused = Engine::open(other.clone()).err().unwrap().to_string();
    assert!(refused.contains("another bucket"), "{refused}");
    proxy.rule(usize::MAX, away(), |_| true);
    let engine = Engine::open(other).unwrap();
    let handle = engine.handle().clone();
    append(&handle, 3).unwrap();
    proxy.heal();
    let trouble = || block_on(handle.usage()).unwrap().logs[0].trouble.clone();
    until("it is found out", || {
        trouble().is_some_and(|(text, _)| text.contains("another bucket"))
    });
    assert!(block_on(handle.seal(FEED, None, "")).is_err());
    assert_eq!(store.keys("other/feeds"), Vec::<String>::new());
    block_on(engine.close()).unwrap();
}

#[test]
fn prefix_of_another_data_directory_is_refused_and_may_be_taken() {
    let (one, two, store) = (scratch(), scratch(), FakeStore::start());
    let first = config(one.path(), &store.endpoint(), "p");
    let mut second = config(two.path(), &store.endpoint(), "p");
    block_on(Engine::open(first.clone()).unwrap().close()).unwrap();
    let refused = Engine::open(second.clone()).err().unwrap();
    assert!(matches!(refused, Error::Unusable(_)), "{refused}");
    for dir in [one.path(), two.path()] {
        let dir = dir.to_str().unwrap();
        assert!(refused.to_string().contains(dir), "{refused}");
    }
    // Its own finds it again, also in a bucket that has no owner yet.
    assert!(store.keys("p/").contains(&"p/owner".to_owned()));
    store.remove("p/owner");
    block_on(Engine::open(first.clone()).unwrap().close()).unwrap();
    assert!(Engine::open(second.clone()).is_err());
    sealog_engine::verify(&first, &mut |_| {}).unwrap();
    second.take_bucket = true;
    block_on(Engine::open(second).unwrap().close()).unwrap();
    assert!(Engine::open(first).is_err(), "it was taken");
}

#[test]
fn owner_whose_reply_is_lost_is_recognised() {
    let (dir, store) = (scratch(), FakeStore::start());
    let proxy = Proxy::start(&store.endpoint());
    let config = config(dir.path(), &proxy.endpoint(), "p");
    proxy.rule(1, Fault::LoseReply, |request| {
        request.method == "PUT" && request.key().ends_with("/owner")
    });
    let engine = Engine::open(config).unwrap();
    let handle = engine.handle().clone();
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    append(&handle, 3).unwrap();
    block_on(handle.seal(FEED, None, "")).unwrap();
    assert_eq!(proxy.heal(), [1]);
    block_on(engine.close()).unwrap();
}

#[test]
fn owner_of_a_bucket_that_comes_late_is_found_out_before_anything_is_published() {
    let (one, two, store) = (scratch(), scratch(), FakeStore::start());
    let proxy = Proxy::start(&store.endpoint());
    let first = config(one.path(), &store.endpoint(), "p");
    block_on(Engine::open(first).unwrap().close()).unwrap();
    proxy.rule(usize::MAX, away(), |_| true);
    let engine = Engine::open(config(two.path(), &proxy.endpoint(), "p")).unwrap();
    let handle = engine.handle().clone();
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    append(&handle, 3).unwrap();
    proxy.heal();
    let trouble = || block_on(handle.usage()).unwrap().logs[0].trouble.clone();
    until("it is found out", || {
        trouble().is_some_and(|(text, _)| text.contains("belongs to data directory"))
    });
    assert!(block_on(handle.seal(FEED, None, "")).is_err());
    assert_eq!(store.keys("p/feeds"), Vec::<String>::new());
    block_on(engine.close()).unwrap();
}

#[test]
fn regression_close_does_not_wait_for_a_store_that_is_away() {
    let (dir, store) = (scratch(), FakeStore::start());
    let proxy = Proxy::start(&store.endpoint());
    let config = config(dir.path(), &proxy.endpoint(), "p");
    let engine = Engine::open(config.clone()).unwrap();
    let handle = engine.handle().clone();
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    append(&handle, 3).unwrap();
    // The pack is on its way when the store goes.
    proxy.rule(usize::MAX, away(), |request| {
        request.key().ends_with(".pack")
    });
    assert!(block_on(handle.seal(FEED, None, "")).is_err());
    proxy.rule(usize::MAX, away(), |_| true);
    let began = Instant::now();
    block_on(engine.close()).unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    proxy.heal();
    let engine = Engine::open(config).unwrap();
    let handle = engine.handle().clone();
    until("published", || {
        block_on(handle.usage()).unwrap().logs[0].unpublished_commits == 0
    });
    assert_eq!(records(&handle), 3);
    block_on(engine.close()).unwrap();
}
