//! Rolls: a feed that never ends commits what it holds, part by part, and nobody who writes or reads it can tell.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{
    assert_holds, batch, close, image, open, payload, produced, put, quick, read_all, small,
};
use futures_lite::future::block_on;
use sealog_engine::commit::{Commit, CommitKind};
use sealog_engine::ids::{CommitNumber, Epoch, StreamId};
use sealog_engine::{
    CloseRequest, EngineConfig, Error, FeedOptions, ForkRequest, Handle, MakeRequest, OrderKey,
    ProductionEnv, ReadFrom, ReadRequest, StreamPhase, verify,
};

/// Bytes of the segments of the one log.
fn log_bytes(dir: &Path) -> u64 {
    let logs = std::fs::read_dir(dir.join("wal")).unwrap();
    let files = logs.flat_map(|log| std::fs::read_dir(log.unwrap().path()).unwrap());
    files
        .map(|file| file.unwrap().metadata().map_or(0, |m| m.len()))
        .sum()
}

type Calls = Handle<ProductionEnv>;

const RECORD: usize = 2000;
/// Records of [`RECORD`] bytes until a part is due.
const PART: u64 = 9;

/// Parts of 16 KiB, and none for its age.
fn config(dir: &Path) -> EngineConfig {
    let mut config = small(dir);
    config.roll.bytes = 16 << 10;
    config
}

fn rolling() -> FeedOptions {
    FeedOptions {
        rolling: true,
        ..FeedOptions::default()
    }
}

fn make(handle: &Calls, feed: &str) {
    block_on(handle.create_feed(feed, rolling())).unwrap();
}

/// Appends records `from..to`, one by one, each at its number.
fn fill(handle: &Calls, feed: &str, from: u64, to: u64) {
    for number in from..to {
        assert_eq!(put(handle, feed, &payload(number, RECORD)), number);
    }
}

fn payloads(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(|number| payload(number, RECORD)).collect()
}

/// What is sealed is published by now.
fn commits(handle: &Calls, feed: &str) -> Vec<Commit> {
    block_on(handle.repair(feed)).unwrap();
    block_on(handle.list_commits(feed, CommitNumber(0), usize::MAX)).unwrap()
}

/// Ranges of all commits.
fn ranges(handle: &Calls, feed: &str) -> Vec<(u64, u64)> {
    let commits = commits(handle, feed);
    commits.iter().map(|c| (c.first.0, c.end.0)).collect()
}

fn open_stream(handle: &Calls, feed: &str) -> Option<StreamId> {
    block_on(handle.feed(feed)).unwrap().open_stream
}

#[test]
fn part_that_is_large_enough_becomes_a_commit() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    make(&handle, "f");
    block_on(handle.create_feed("native", FeedOptions::default())).unwrap();
    fill(&handle, "native", 0, 3 * PART);
    fill(&handle, "f", 0, PART - 1);
    assert_eq!(ranges(&handle, "f"), []);
    fill(&handle, "f", PART - 1, 2 * PART + 2);
    assert_eq!(ranges(&handle, "f"), [(0, PART), (PART, 2 * PART)]);
    assert_holds(&handle, "f", &payloads(2 * PART + 2), "rolled twice");
    assert_eq!(ranges(&handle, "native"), [], "it was not made to roll");
    // Batches that are due by themselves, and records that are mere headers, count, too.
    let large = payload(0, 60_000);
    block_on(handle.append("f", batch(&[&large]))).unwrap();
    assert_eq!(ranges(&handle, "f").last(), Some(&(2 * PART, 2 * PART + 3)));
    close(engine);
    verify(&config(dir.path()), &mut |_| ()).unwrap();
}

#[test]
fn first_batch_of_a_feed_that_is_made_with_it_may_be_due() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    let large = payload(0, 60_000);
    let request = |closed| MakeRequest {
        options: rolling(),
        batch: Some(batch(&[&large])),
        closed,
    };
    for (feed, closed) in [("open", false), ("closed", true)] {
        block_on(handle.make_feed(feed, request(closed))).unwrap();
        assert_eq!(ranges(&handle, feed), [(0, 1)], "{feed}");
        assert_holds(&handle, feed, std::slice::from_ref(&large), feed);
    }
    close(engine);
}

#[test]
fn lease_of_a_writer_outlives_rolls() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    make(&handle, "f");
    let lease = block_on(handle.open("f")).unwrap();
    assert_eq!(lease.stream, StreamId(1));
    for number in 0..2 * PART {
        let batch = batch(&[&payload(number, RECORD)]).with_fencing_token(lease.epoch.0);
        assert_eq!(block_on(handle.append("f", batch)).unwrap().first, number);
    }
    let info = block_on(handle.feed("f")).unwrap();
    assert_eq!(
        (info.epoch, info.open_stream),
        (lease.epoch, Some(StreamId(3)))
    );
    let streams = block_on(handle.list_streams("f", StreamId(0), 10)).unwrap();
    assert_eq!(streams.last().unwrap().phase, StreamPhase::Open);
    let commit = block_on(handle.seal("f", Some(lease.epoch), "by hand")).unwrap();
    assert_eq!((commit.number, commit.records), (CommitNumber(2), 0));
    let epochs: Vec<Epoch> = commits(&handle, "f").iter().map(|c| c.epoch).collect();
    assert_eq!(epochs, [lease.epoch; 3]);
    assert_holds(&handle, "f", &payloads(2 * PART), "under a lease");
    close(engine);
}

#[test]
fn parts_outlive_restarts_kills_and_other_limits() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    make(&handle, "f");
    make(&handle, "leased");
    block_on(handle.open("leased")).unwrap();
    for feed in ["f", "leased"] {
        fill(&handle, feed, 0, 2 * PART + 4);
    }
    let killed = image::image(dir.path());
    close(engine);
    for dir in [killed.path(), dir.path()] {
        // What would never have been due, and is.
        let mut other = config(dir);
        other.roll.bytes = 1 << 30;
        let (engine, handle) = open(other);
        for feed in ["f", "leased"] {
            assert_eq!(ranges(&handle, feed), [(0, PART), (PART, 2 * PART)]);
            assert!(block_on(handle.feed(feed)).unwrap().options.rolling);
            assert_holds(&handle, feed, &payloads(2 * PART + 4), feed);
        }
        close(engine);
        // The part that was open goes on where it was.
        let (engine, handle) = open(config(dir));
        for feed in ["f", "leased"] {
            fill(&handle, feed, 2 * PART + 4, 3 * PART);
            assert_eq!(ranges(&handle, feed).last(), Some(&(2 * PART, 3 * PART)));
        }
        close(engine);
        verify(&config(dir), &mut |_| ()).unwrap();
    }
}

#[test]
fn every_kill_leaves_a_feed_that_rolls_on() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    make(&handle, "f");
    let mut images = Vec::new();
    for number in 0..3 * PART {
        fill(&handle, "f", number, number + 1);
        images.push((number + 1, image::image(dir.path())));
    }
    close(engine);
    for (count, image) in images {
        let (engine, handle) = open(config(image.path()));
        assert_holds(&handle, "f", &payloads(count), "after a kill");
        fill(&handle, "f", count, 3 * PART + 1);
        let all = [(0, PART), (PART, 2 * PART), (2 * PART, 3 * PART)];
        // A roll that was not durable yet comes with the next batch.
        let found = ranges(&handle, "f");
        assert!(
            found.len() >= 2 && found.windows(2).all(|w| w[0].1 == w[1].0),
            "{found:?}"
        );
        assert!(found == all || count % PART == 0, "{count}: {found:?}");
        close(engine);
    }
}

#[test]
fn producers_and_order_keys_stay_over_rolls() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    make(&handle, "f");
    let sent = |sequence: u64| produced(b"p", 1, sequence, &payload(sequence, RECORD));
    for number in 0..2 * PART {
        let key = OrderKey::new(&number.to_be_bytes()).unwrap();
        let done = block_on(handle.append_ordered("f", sent(number), key)).unwrap();
        assert_eq!((done.first, done.duplicate), (number, false));
    }
    assert_eq!(ranges(&handle, "f").len(), 2);
    for number in [0, PART - 1, PART, 2 * PART - 1] {
        let again = block_on(handle.append("f", sent(number))).unwrap();
        assert_eq!((again.first, again.duplicate), (number, true));
    }
    let key = OrderKey::new(&(PART - 1).to_be_bytes()).unwrap();
    let refused = block_on(handle.append_ordered("f", batch(&[b"late"]), key));
    assert!(
        matches!(refused, Err(Error::OutOfOrder { .. })),
        "{refused:?}"
    );
    let gap = block_on(handle.append("f", sent(2 * PART + 1))).unwrap_err();
    assert!(matches!(gap, Error::ProducerGap { expected, .. } if expected == 2 * PART));
    block_on(handle.append("f", sent(2 * PART))).unwrap();
    assert_holds(&handle, "f", &payloads(2 * PART + 1), "produced");
    close(engine);
}

#[test]
fn readers_follow_over_rolls() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    make(&handle, "f");
    let count = 4 * PART;
    let reading = handle.clone();
    let reader = std::thread::spawn(move || {
        let mut next = 0;
        while next < count {
            let request = ReadRequest {
                from: ReadFrom::Sequence(next),
                wait: Duration::from_secs(20),
                ..ReadRequest::new("f")
            };
            let chunk = block_on(reading.read(request)).unwrap();
            assert!(!chunk.ended && chunk.first == next && chunk.next >= next);
            next = chunk.next;
        }
        next
    });
    fill(&handle, "f", 0, count);
    assert_eq!(reader.join().unwrap(), count);
    close(engine);
}

#[test]
fn closing_ends_the_rolls_and_leaves_no_empty_commit() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    let large = payload(0, 60_000);
    for (feed, records, last, expected) in [
        ("rolled", PART, None, vec![(0, PART)]),
        ("begun", PART + 1, None, vec![(0, PART), (PART, PART + 1)]),
        ("due", 1, Some(&large), vec![(0, 2)]),
    ] {
        make(&handle, feed);
        fill(&handle, feed, 0, records);
        let request = CloseRequest {
            batch: last.map(|bytes| batch(&[bytes])),
            ..CloseRequest::default()
        };
        assert!(
            block_on(handle.close_feed(feed, None, request))
                .unwrap()
                .now
        );
        assert_eq!(ranges(&handle, feed), expected, "{feed}");
        assert_eq!(open_stream(&handle, feed), None);
    }
    close(engine);
    verify(&config(dir.path()), &mut |_| ()).unwrap();
}

#[test]
fn feed_with_an_abandoned_stream_waits_for_its_operator() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    make(&handle, "f");
    fill(&handle, "f", 0, 2);
    block_on(handle.open("f")).unwrap();
    fill(&handle, "f", 2, 2 * PART);
    assert_eq!(ranges(&handle, "f"), []);
    block_on(handle.settle_stream("f", None, CommitKind::Sealed, "as it stands")).unwrap();
    fill(&handle, "f", 2 * PART, 2 * PART + 1);
    assert_eq!(ranges(&handle, "f"), [(0, 2), (2, 2 * PART + 1)]);
    close(engine);
}

#[test]
fn forks_rest_on_parts() {
    let dir = quick();
    let (engine, handle) = open(config(dir.path()));
    make(&handle, "source");
    fill(&handle, "source", 0, 3 * PART);
    let at = PART + 3;
    let request = ForkRequest {
        source: "source".to_owned(),
        source_id: None,
        at: Some(at),
        make: MakeRequest {
            options: rolling(),
            ..MakeRequest::default()
        },
    };
    block_on(handle.fork_feed("fork", request)).unwrap();
    fill(&handle, "source", 3 * PART, 4 * PART + 1);
    block_on(handle.delete_feed("source")).unwrap();
    fill(&handle, "fork", at, at + 2 * PART + 1);
    let own = [(at, at + PART), (at + PART, at + 2 * PART)];
    assert_eq!(ranges(&handle, "fork"), own);
    assert_holds(&handle, "fork", &payloads(at + 2 * PART + 1), "a fork");
    close(engine);
    let (engine, handle) = open(config(dir.path()));
    assert_holds(
        &handle,
        "fork",
        &payloads(at + 2 * PART + 1),
        "a fork again",
    );
    close(engine);
    verify(&config(dir.path()), &mut |_| ()).unwrap();
}

#[test]
fn deletion_ends_a_feed_with_parts() {
    let dir = quick();
    let mut config = config(dir.path());
    config.gc_grace = Duration::from_millis(100);
    config.roll.after = Duration::from_secs(1);
    let (engine, handle) = open(config);
    for round in 0..5 {
        make(&handle, "f");
        fill(&handle, "f", 0, 2 * PART + round);
        block_on(handle.delete_feed("f")).unwrap();
    }
    make(&handle, "f");
    fill(&handle, "f", 0, 1);
    let until = Instant::now() + Duration::from_secs(20);
    while ranges(&handle, "f").is_empty() {
        assert!(Instant::now() < until, "not rolled");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(ranges(&handle, "f"), [(0, 1)]);
    close(engine);
}

/// Feeds beyond what is rolled at once.
const QUIET: u64 = 150;

#[test]
fn quiet_parts_are_rolled_for_their_age_by_one_timer() {
    let dir = quick();
    let mut config = config(dir.path());
    config.roll.after = Duration::from_secs(1);
    let (engine, handle) = open(config.clone());
    make(&handle, "empty");
    make(&handle, "leased");
    block_on(handle.open("leased")).unwrap();
    let name = |number: u64| format!("quiet-{number}");
    for number in 0..QUIET {
        make(&handle, &name(number));
        fill(&handle, &name(number), 0, 1);
    }
    fill(&handle, "leased", 0, 1);
    // The age of a part is kept over a restart.
    close(engine);
    let (engine, handle) = open(config);
    let until = Instant::now() + Duration::from_secs(30);
    for number in 0..QUIET {
        while ranges(&handle, &name(number)) != [(0, 1)] {
            assert!(Instant::now() < until, "{number} not rolled");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(open_stream(&handle, &name(number)), None);
    }
    while ranges(&handle, "leased") != [(0, 1)] {
        assert!(Instant::now() < until, "not rolled");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(open_stream(&handle, "leased"), Some(StreamId(2)));
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(
        ranges(&handle, "leased").len(),
        1,
        "nothing is in the new one"
    );
    assert_eq!(ranges(&handle, "empty"), []);
    fill(&handle, &name(7), 1, 2);
    assert_holds(&handle, &name(7), &payloads(2), "rolled and gone on");
    close(engine);
}

#[test]
fn endless_feed_needs_a_bounded_log_and_a_bounded_state() {
    let dir = quick();
    let mut config = config(dir.path());
    config.roll.bytes = 256 << 10;
    let bound = config.wal.disk_bytes_max;
    let (engine, handle) = open(config.clone());
    make(&handle, "f");
    let bytes = payload(1, 60_000);
    let count = 6 * bound / bytes.len() as u64;
    for number in 0..count {
        assert_eq!(put(&handle, "f", &bytes), number);
        assert!(log_bytes(dir.path()) <= bound, "{number}");
        let unpublished = block_on(handle.feed("f")).unwrap().unpublished;
        assert!(unpublished <= bound / config.roll.bytes, "{unpublished}");
    }
    let found = ranges(&handle, "f");
    assert_eq!(found.len() as u64, count / 5, "a part is five records");
    assert_eq!(read_all(&handle, "f").len() as u64, count);
    close(engine);
    verify(&config, &mut |_| ()).unwrap();
}
