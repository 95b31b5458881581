//! S3_away: a store that goes away under load, for as long as it is told, and comes back.
//!
//! **Invariants**
//! - Every acknowledged record is there once, every sealed stream is published once and in order, and
//!   the log stays within its bound all the while.
//!
//! **Not here**: single faults (`s3_engine`, `s3_faults`), real stores (`s3`).
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use sealog_engine::ids::CommitNumber;
use sealog_engine::{Engine, Error, FeedOptions, Handle, ProductionEnv, ReadFrom, ReadRequest};
use sealog_frame::{BatchBuilder, FrameView, Record};
use sealog_tests::store::{FakeStore, Fault, Proxy, Reply, config};

/// Seconds that the store is away: `SEALOG_AWAY_SECONDS`, else this.
const AWAY_SECONDS: u64 = 12;
const FEEDS: [&str; 4] = ["a", "b", "c", "d"];
/// Batches of a stream.
const STREAM_BATCHES: u64 = 40;

fn away_for() -> Duration {
    let told = std::env::var("SEALOG_AWAY_SECONDS").ok();
    Duration::from_secs(told.map_or(AWAY_SECONDS, |told| told.parse().unwrap()))
}

/// What one producer knows for certain.
#[derive(Debug, Default)]
struct Written {
    acked: u64,
    /// Messages of the commits, in order.
    sealed: Vec<String>,
    refused: u64,
}

/// Appends and seals until told to stop; goes on after a refusal that may be tried again.
fn produce(handle: &Handle<ProductionEnv>, feed: &str, stop: &AtomicBool) -> Written {
    let mut written = Written::default();
    while !stop.load(Ordering::Relaxed) {
        let mut batch = BatchBuilder::default();
        let mut payload = [feed.as_bytes()[0]; 4 << 10];
        payload[..8].copy_from_slice(&written.acked.to_le_bytes());
        batch.push(&Record::of(&payload)).unwrap();
        match block_on(handle.append(feed, batch.build().unwrap())) {
            Ok(ack) => {
                assert_eq!(ack.first, written.acked, "{feed}");
                written.acked += 1;
            }
            Err(error) => {
                assert!(
                    matches!(error, Error::StorageFull { .. }),
                    "{feed}: {error}"
                );
                assert!(error.is_retryable(), "{error}");
                written.refused += 1;
                continue;
            }
        }
        if written.acked.is_multiple_of(STREAM_BATCHES) {
            seal(handle, feed, &mut written);
        }
        // The load of an appliance, not of a benchmark: the log lasts for a while.
        std::thread::sleep(Duration::from_millis(2));
    }
    written
}

/// Seals; a seal that can't be published in time is durable all the same, and says so.
fn seal(handle: &Handle<ProductionEnv>, feed: &str, written: &mut Written) {
    let message = format!("{feed} {}", written.sealed.len());
    loop {
        match block_on(handle.seal(feed, None, &message)) {
            Ok(_) => break,
            Err(Error::Unpublished { .. }) => break,
            Err(error @ Error::StorageFull { .. }) => assert!(error.is_retryable()),
            Err(error) => panic!("{feed}: {error}"),
        }
    }
    written.sealed.push(message);
}

fn check(handle: &Handle<ProductionEnv>, feed: &str, written: &Written) {
    let mut request = ReadRequest::new(feed);
    let mut due = 0_u64;
    loop {
        let chunk = block_on(handle.read(request.clone())).unwrap();
        if chunk.frames.is_empty() {
            break;
        }
        let mut rest: &[u8] = &chunk.frames;
        while !rest.is_empty() {
            let (frame, behind) = FrameView::split_trusted(rest).unwrap();
            for record in frame.records() {
                assert_eq!(record.payload[..8], due.to_le_bytes(), "{feed}");
                due += 1;
            }
            rest = behind;
        }
        request.from = ReadFrom::Sequence(chunk.next);
    }
    assert_eq!(due, written.acked, "{feed}");
    let mut messages = Vec::new();
    loop {
        let from = CommitNumber(messages.len() as u64);
        let page = block_on(handle.list_commits(feed, from, 100)).unwrap();
        if page.is_empty() {
            break;
        }
        messages.extend(page.into_iter().map(|commit| commit.message.to_string()));
    }
    assert_eq!(messages, written.sealed, "{feed}");
}

#[test]
fn store_away_under_load_publishes_every_commit_once_and_in_order() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = FakeStore::start();
    let proxy = Proxy::start(&store.endpoint());
    let config = config(dir.path(), &proxy.endpoint(), "p");
    let engine = Engine::open(config.clone()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> = FEEDS
        .into_iter()
        .map(|feed| {
            let (handle, stop) = (engine.handle().clone(), stop.clone());
            block_on(handle.create_feed(feed, FeedOptions::default())).unwrap();
            std::thread::spawn(move || produce(&handle, feed, &stop))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));

    let slow_down = || Fault::Answer(Reply::error(503, "SlowDown"));
    let began = Instant::now();
    let mut round = 0_u32;
    while began.elapsed() < away_for() {
        // Away in turns: nobody there, asked to slow down, taken in and not answered.
        proxy.heal();
        match round % 3 {
            0 => proxy.rule(usize::MAX, Fault::Drop, |_| true),
            1 => proxy.rule(usize::MAX, slow_down(), |_| true),
            _ => proxy.rule(usize::MAX, Fault::LoseReply, |request| {
                request.method == "PUT"
            }),
        }
        round += 1;
        std::thread::sleep(Duration::from_secs(2));
        let usage = block_on(engine.handle().usage()).unwrap();
        for log in &usage.logs {
            assert!(log.disk_bytes <= log.disk_bytes_max, "{log:?}");
        }
    }
    proxy.heal();
    std::thread::sleep(Duration::from_secs(2));
    stop.store(true, Ordering::Relaxed);
    let written: Vec<Written> = producers.into_iter().map(|p| p.join().unwrap()).collect();

    let handle = engine.handle().clone();
    let began = Instant::now();
    while block_on(handle.usage())
        .unwrap()
        .logs
        .iter()
        .any(|log| log.unpublished_commits > 0)
    {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "publication does not follow"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    for (feed, written) in FEEDS.iter().zip(&written) {
        eprintln!(
            "{feed}: {} acked, {} sealed, {} refused as full",
            written.acked,
            written.sealed.len(),
            written.refused
        );
        assert!(written.sealed.len() > 2, "{feed}");
        check(&handle, feed, written);
    }
    block_on(engine.close()).unwrap();
    let report = sealog_engine::verify(&config, &mut |_| {}).unwrap();
    let sealed: usize = written.iter().map(|written| written.sealed.len()).sum();
    assert_eq!(report.commits, sealed as u64);
    let names = store.keys("p/");
    let published = names.iter().filter(|key| key.ends_with(".commit"));
    assert_eq!(published.count(), sealed);
}
