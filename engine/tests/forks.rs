//! Forks: feeds that go on from others: what they read, what keeps their ground, what a crash leaves of the steps.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::image::{copy_tree, image};
use common::{batch, close, open, payload, produced, put, quick, read, read_all, small};
use futures_lite::future::block_on;
use sealog_engine::commit::CommitKind;
use sealog_engine::ids::CommitNumber;
use sealog_engine::wal::entry::{Change, Entries, Entry};
use sealog_engine::wal::group::GROUP_HEADER_BYTES;
use sealog_engine::{
    CloseRequest, Engine, EngineConfig, Error, FeedOptions, ForkRequest, Handle, Made, MakeRequest,
    ProductionEnv, ReadFrom, ReadRequest, Result, reshard, verify,
};
use sealog_frame::FrameView;

type Calls = Handle<ProductionEnv>;

/// Two logs, and objects that nobody names go soon.
fn config(dir: &Path) -> EngineConfig {
    let mut config = small(dir);
    config.logs = 2;
    config.gc_grace = Duration::from_millis(200);
    config
}

fn running(dir: &Path) -> (Engine, Calls) {
    open(config(dir))
}

/// A name that begins so and belongs to this log of two.
fn name_in(handle: &Calls, log: usize, stem: &str) -> String {
    let mut names = (0..).map(|n| format!("{stem}-{n}"));
    names.find(|name| handle.log_of(name) == log).unwrap()
}

fn fork_with(
    handle: &Calls,
    source: &str,
    at: Option<u64>,
    fork: &str,
    make: MakeRequest,
) -> Result<Made> {
    let request = ForkRequest {
        source: source.to_owned(),
        source_id: None,
        at,
        make,
    };
    block_on(handle.fork_feed(fork, request))
}

fn fork(handle: &Calls, source: &str, at: impl Into<Option<u64>>, name: &str) -> Made {
    let made = fork_with(handle, source, at.into(), name, MakeRequest::default()).unwrap();
    assert!(made.now, "{name} is there already");
    made
}

fn made(handle: &Calls, feed: &str, records: &[&[u8]]) {
    block_on(handle.create_feed(feed, FeedOptions::default())).unwrap();
    for record in records {
        put(handle, feed, record);
    }
}

/// Payloads of the whole feed, whose sequences go on from 0 without a gap.
fn texts(handle: &Calls, feed: &str) -> Vec<String> {
    let records = read_all(handle, feed);
    let sequences: Vec<u64> = records.iter().map(|(sequence, _)| *sequence).collect();
    assert_eq!(sequences, (0..records.len() as u64).collect::<Vec<_>>());
    let text = |(_, bytes): (u64, Vec<u8>)| String::from_utf8(bytes).unwrap();
    records.into_iter().map(text).collect()
}

fn is_gone(handle: &Calls, feed: &str) -> bool {
    matches!(block_on(handle.feed(feed)), Err(Error::FeedGone { .. }))
}

fn is_missing(handle: &Calls, feed: &str) -> bool {
    matches!(block_on(handle.feed(feed)), Err(Error::FeedNotFound { .. }))
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The checkpoints and segments of one log, put in the place of `to`'s.
fn take_log(from: &Path, to: &Path, log: u64) {
    for kind in ["wal", "checkpoint"] {
        let folder = format!("{kind}/{log}");
        std::fs::remove_dir_all(to.join(&folder)).unwrap();
        copy_tree(&from.join(&folder), &to.join(&folder));
    }
}

#[test]
fn fork_reads_its_source_below_the_base_and_itself_from_there_on() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    for (log, at) in [(0, 2), (1, 0), (0, 3), (1, 3)] {
        let source = name_in(&handle, 0, &format!("source-{log}-{at}"));
        let name = name_in(&handle, log, &format!("fork-{log}-{at}"));
        made(&handle, &source, &[b"a", b"b", b"c"]);
        let fork = fork(&handle, &source, at, &name);
        assert_eq!(fork.feed.next_sequence, at);
        assert_eq!(fork.feed.base.unwrap().sequence, at);
        assert_eq!(put(&handle, &name, b"own"), at);
        put(&handle, &source, b"later");
        let expected = ["a", "b", "c"].iter().take(at as usize).chain(&["own"]);
        assert_eq!(texts(&handle, &name), expected.copied().collect::<Vec<_>>());
        assert_eq!(texts(&handle, &source), ["a", "b", "c", "later"]);
    }
    close(engine);
    verify(&config(dir.path()), &mut |_| {}).unwrap();
}

#[test]
fn inherited_batch_is_cut_at_the_base_and_keeps_times_and_fingerprints() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    block_on(handle.create_feed("s", FeedOptions::default())).unwrap();
    let four: [&[u8]; 4] = [b"0", b"1", b"2", b"3"];
    block_on(handle.append("s", batch(&four))).unwrap();
    let ask = |feed: &str| ReadRequest {
        fingerprints: true,
        ..ReadRequest::new(feed)
    };
    let whole = block_on(handle.read(ask("s"))).unwrap();
    fork(&handle, "s", 2, "f");
    put(&handle, "f", b"own");
    let chunk = block_on(handle.read(ask("f"))).unwrap();
    assert_eq!((chunk.first, chunk.next, chunk.tail), (0, 3, 3));
    assert_eq!(chunk.fingerprints[..2], whole.fingerprints[..2]);
    assert_eq!(chunk.fingerprints.len(), 3);
    let (cut, rest) = FrameView::split_trusted(&chunk.frames).unwrap();
    assert_eq!((cut.base_sequence(), cut.end_sequence()), (0, 2));
    let (original, _) = FrameView::split_trusted(&whole.frames).unwrap();
    for (cut, original) in cut.records().zip(original.records()) {
        assert_eq!(cut.payload, original.payload);
        assert_eq!(cut.timestamp_ms, original.timestamp_ms);
    }
    let (own, rest) = FrameView::split_trusted(rest).unwrap();
    assert_eq!((own.base_sequence(), rest.len()), (2, 0));
    close(engine);
}

#[test]
fn fork_of_a_closed_feed_is_open_knows_no_producers_and_closes_by_itself() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    block_on(handle.create_feed("s", FeedOptions::default())).unwrap();
    block_on(handle.append("s", produced(b"p", 3, 0, b"one"))).unwrap();
    block_on(handle.close_feed("s", None, CloseRequest::default())).unwrap();
    fork(&handle, "s", None, "f");
    assert_eq!(block_on(handle.feed("f")).unwrap().closed, None);
    let done = block_on(handle.append("f", produced(b"p", 3, 0, b"two"))).unwrap();
    assert!(!done.duplicate);
    assert_eq!(texts(&handle, "f"), ["one", "two"]);
    block_on(handle.close_feed("f", None, CloseRequest::default())).unwrap();
    let chunk = block_on(handle.read(ReadRequest::new("f"))).unwrap();
    assert!(chunk.ended && chunk.next == 2);
    // One that is closed behind what it inherits says so with that.
    let closed = MakeRequest {
        closed: true,
        ..MakeRequest::default()
    };
    fork_with(&handle, "s", Some(1), "g", closed).unwrap();
    let chunk = block_on(handle.read(ReadRequest::new("g"))).unwrap();
    assert!(chunk.ended && (chunk.next, chunk.tail) == (1, 1));
    close(engine);
}

#[test]
fn later_appends_to_the_source_wake_no_reader_of_the_fork() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    made(&handle, "s", &[b"a"]);
    fork(&handle, "s", None, "f");
    let at_tail = |wait| ReadRequest {
        from: ReadFrom::Sequence(1),
        wait,
        ..ReadRequest::new("f")
    };
    let (reading, request) = (handle.clone(), at_tail(Duration::from_millis(600)));
    let begun = Instant::now();
    let reader = std::thread::spawn(move || block_on(reading.read(request)).unwrap());
    std::thread::sleep(Duration::from_millis(100));
    put(&handle, "s", b"later");
    let chunk = reader.join().unwrap();
    assert!(chunk.frames.is_empty() && chunk.next == 1);
    assert!(begun.elapsed() >= Duration::from_millis(600));
    let (reading, request) = (handle.clone(), at_tail(Duration::from_secs(30)));
    let reader = std::thread::spawn(move || block_on(reading.read(request)).unwrap());
    std::thread::sleep(Duration::from_millis(50));
    put(&handle, "f", b"own");
    assert_eq!(reader.join().unwrap().next, 2);
    close(engine);
}

#[test]
fn chain_of_five_reads_through_at_every_depth_and_time() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    made(&handle, "f0", &[b"0a", b"0b"]);
    for depth in 1..=5u64 {
        let (source, name) = (format!("f{}", depth - 1), format!("f{depth}"));
        fork(&handle, &source, None, &name);
        std::thread::sleep(Duration::from_millis(5));
        for letter in ["a", "b"] {
            put(&handle, &name, format!("{depth}{letter}").as_bytes());
        }
        // Not to be seen from below.
        put(&handle, &source, b"later");
    }
    let expected: Vec<String> = (0..=5)
        .flat_map(|depth| ["a", "b"].map(|letter| format!("{depth}{letter}")))
        .collect();
    assert_eq!(texts(&handle, "f5"), expected);
    let whole = block_on(handle.read(ReadRequest::new("f5"))).unwrap();
    assert_eq!(
        (whole.next, whole.feed),
        (12, block_on(handle.feed("f5")).unwrap().id)
    );
    let mut times = Vec::new();
    let mut rest = &whole.frames[..];
    while !rest.is_empty() {
        let (frame, after) = FrameView::split_trusted(rest).unwrap();
        times.extend(frame.records().map(|record| record.timestamp_ms));
        rest = after;
    }
    assert!(times.is_sorted(), "{times:?}");
    for time_ms in [times[0], times[2], times[5], times[11], times[11] + 1] {
        let request = ReadRequest {
            from: ReadFrom::Timestamp(time_ms),
            ..ReadRequest::new("f5")
        };
        let first = times.iter().position(|at| *at >= time_ms).unwrap_or(12);
        assert_eq!(block_on(handle.read(request)).unwrap().first, first as u64);
    }
    let tail = ReadRequest {
        from: ReadFrom::Tail(7),
        ..ReadRequest::new("f5")
    };
    assert_eq!(block_on(handle.read(tail)).unwrap().first, 5);
    // A fork of a fork, below its base.
    fork(&handle, "f5", 1, "deep");
    put(&handle, "deep", b"x");
    assert_eq!(texts(&handle, "deep"), ["0a", "x"]);
    close(engine);
    let (engine, handle) = running(dir.path());
    assert_eq!(texts(&handle, "f5"), expected);
    close(engine);
    verify(&config(dir.path()), &mut |_| {}).unwrap();
}

#[test]
fn refused_fork_leaves_no_pin_and_one_that_is_there_is_left_alone() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    made(&handle, "s", &[b"a", b"b"]);
    let beyond = fork_with(&handle, "s", Some(3), "f", MakeRequest::default()).unwrap_err();
    assert_eq!(beyond.to_string(), "fork sequence of 3 over the limit of 2");
    let gap = MakeRequest {
        batch: Some(produced(b"p", 0, 1, b"gap")),
        ..MakeRequest::default()
    };
    let refused = fork_with(&handle, "s", None, "f", gap).unwrap_err();
    assert!(matches!(refused, Error::ProducerGap { .. }), "{refused}");
    made(&handle, "taken", &[b"mine"]);
    let found = fork_with(&handle, "s", None, "taken", MakeRequest::default()).unwrap();
    assert!(!found.now && found.feed.base.is_none());
    let none = fork_with(&handle, "nobody", None, "f", MakeRequest::default()).unwrap_err();
    assert!(matches!(none, Error::FeedNotFound { .. }), "{none}");
    assert!(is_missing(&handle, "f"));
    block_on(handle.delete_feed("s")).unwrap();
    assert!(is_missing(&handle, "s"), "a pin is left");
    close(engine);
}

#[test]
fn many_forks_made_at_once_under_one_name_leave_one_pin() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    made(&handle, "s", &[b"a"]);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let handle = handle.clone();
            std::thread::spawn(move || {
                fork_with(&handle, "s", None, "f", MakeRequest::default()).unwrap()
            })
        })
        .collect();
    let made: Vec<Made> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert_eq!(made.iter().filter(|made| made.now).count(), 1);
    block_on(handle.delete_feed("s")).unwrap();
    assert!(is_gone(&handle, "s"));
    assert_eq!(texts(&handle, "f"), ["a"]);
    block_on(handle.delete_feed("f")).unwrap();
    wait_until("s stays", || is_missing(&handle, "s"));
    close(engine);
}

#[test]
fn asker_that_goes_away_leaves_a_whole_fork_or_none() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    made(&handle, "s", &[b"a"]);
    for number in 0..20u64 {
        let name = format!("f{number}");
        let request = ForkRequest {
            source: "s".to_owned(),
            make: MakeRequest {
                batch: Some(batch(&[b"own"])),
                ..MakeRequest::default()
            },
            ..ForkRequest::default()
        };
        block_on(async {
            let asked = handle.fork_feed(&name, request);
            let late = async {
                for _ in 0..number % 4 {
                    futures_lite::future::yield_now().await;
                }
            };
            futures_lite::future::or(async { drop(asked.await) }, late).await;
        });
    }
    std::thread::sleep(Duration::from_millis(300));
    for number in 0..20 {
        let name = format!("f{number}");
        if !is_missing(&handle, &name) {
            assert_eq!(texts(&handle, &name), ["a", "own"]);
            block_on(handle.delete_feed(&name)).unwrap();
        }
    }
    block_on(handle.delete_feed("s")).unwrap();
    wait_until("a pin is left", || is_missing(&handle, "s"));
    close(engine);
}

#[test]
fn deleted_source_keeps_its_name_and_its_records_for_forks_across_restarts() {
    let dir = quick();
    let (mut engine, mut handle) = running(dir.path());
    made(&handle, "s", &[b"a", b"b"]);
    fork(&handle, "s", 1, "f");
    put(&handle, "f", b"own");
    let waiting = handle.clone();
    let reader = std::thread::spawn(move || {
        let request = ReadRequest {
            from: ReadFrom::Sequence(2),
            wait: Duration::from_secs(30),
            ..ReadRequest::new("s")
        };
        block_on(waiting.read(request))
    });
    std::thread::sleep(Duration::from_millis(50));
    block_on(handle.delete_feed("s")).unwrap();
    let told = reader.join().unwrap().unwrap_err();
    assert!(matches!(told, Error::FeedGone { .. }), "{told}");
    for _ in 0..3 {
        assert!(is_gone(&handle, "s"));
        let gone = |outcome: Result<()>| matches!(outcome, Err(Error::FeedGone { .. }));
        assert!(gone(block_on(handle.append("s", batch(&[b"x"]))).map(drop)));
        assert!(gone(block_on(handle.open("s")).map(drop)));
        assert!(gone(block_on(handle.delete_feed("s"))));
        assert!(gone(block_on(handle.seal("s", None, "")).map(drop)));
        let closing = handle.close_feed("s", None, CloseRequest::default());
        assert!(gone(block_on(closing).map(drop)));
        let create = handle.create_feed("s", FeedOptions::default());
        assert!(gone(block_on(create).map(drop)));
        let make = handle.make_feed("s", MakeRequest::default());
        assert!(gone(block_on(make).map(drop)));
        assert!(gone(read(&handle, ReadRequest::new("s")).map(drop)));
        let again = fork_with(&handle, "s", None, "g", MakeRequest::default());
        assert!(gone(again.map(drop)));
        let listed = block_on(handle.list_feeds("", "", 10)).unwrap();
        assert_eq!(listed.iter().map(|f| &*f.name).collect::<Vec<_>>(), ["f"]);
        assert_eq!(texts(&handle, "f"), ["a", "own"]);
        close(engine);
        verify(&config(dir.path()), &mut |_| {}).unwrap();
        (engine, handle) = running(dir.path());
    }
    block_on(handle.delete_feed("f")).unwrap();
    wait_until("s stays", || is_missing(&handle, "s"));
    made(&handle, "s", &[b"new"]);
    assert_eq!(texts(&handle, "s"), ["new"]);
    close(engine);
}

#[test]
fn last_fork_takes_a_chain_of_deleted_feeds_with_it() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    made(&handle, "f0", &[b"0"]);
    for depth in 1..=4 {
        fork(
            &handle,
            &format!("f{}", depth - 1),
            None,
            &format!("f{depth}"),
        );
        put(&handle, &format!("f{depth}"), depth.to_string().as_bytes());
    }
    // From the middle outwards.
    for deleted in ["f2", "f0", "f3", "f1"] {
        block_on(handle.delete_feed(deleted)).unwrap();
        assert!(is_gone(&handle, deleted));
        assert_eq!(texts(&handle, "f4"), ["0", "1", "2", "3", "4"]);
    }
    fork(&handle, "f4", 3, "side");
    block_on(handle.delete_feed("f4")).unwrap();
    assert!(is_gone(&handle, "f4"));
    assert_eq!(texts(&handle, "side"), ["0", "1", "2"]);
    block_on(handle.delete_feed("side")).unwrap();
    for depth in 0..=4 {
        let name = format!("f{depth}");
        wait_until("a source stays", || is_missing(&handle, &name));
    }
    close(engine);
    verify(&config(dir.path()), &mut |_| {}).unwrap();
}

/// Records of a source that has been packed and published, whose log has gone round, in its two feeds.
fn recycled(handle: &Calls, source: &str, filler: &str) -> Vec<Vec<u8>> {
    let payloads: Vec<_> = (0..40).map(|n| payload(n, 20_000)).collect();
    block_on(handle.create_feed(source, FeedOptions::default())).unwrap();
    block_on(handle.create_feed(filler, FeedOptions::default())).unwrap();
    for (number, bytes) in payloads.iter().enumerate() {
        put(handle, source, bytes);
        if number % 15 == 14 {
            block_on(handle.seal(source, None, "part")).unwrap();
        }
    }
    for number in 0..400 {
        put(handle, filler, &payload(number, 40_000));
    }
    payloads
}

fn assert_begins(handle: &Calls, feed: &str, payloads: &[Vec<u8>]) {
    let records = read_all(handle, feed);
    assert!(records.len() >= payloads.len(), "{feed}: {}", records.len());
    for ((sequence, bytes), (at, payload)) in records.iter().zip((0..).zip(payloads)) {
        assert!(*sequence == at && bytes == payload, "record {at} of {feed}");
    }
}

#[test]
fn pinned_records_stay_in_the_bucket_when_their_feed_is_deleted_and_go_with_the_last_fork() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    let source = name_in(&handle, 0, "source");
    let filler = name_in(&handle, 0, "filler");
    let name = name_in(&handle, 1, "fork");
    let payloads = recycled(&handle, &source, &filler);
    fork(&handle, &source, 37, &name);
    put(&handle, &name, b"own");
    block_on(handle.seal(&name, None, "the fork's first")).unwrap();
    let commits = block_on(handle.list_commits(&name, CommitNumber(0), 9)).unwrap();
    assert_eq!((commits[0].first.0, commits[0].end.0), (37, 38));
    block_on(handle.delete_feed(&source)).unwrap();
    close(engine);
    let (engine, handle) = running(dir.path());
    // Well behind the grace time, and after walks of those who remove what nobody names.
    for number in 0..100 {
        put(&handle, &filler, &payload(number, 40_000));
    }
    std::thread::sleep(Duration::from_secs(3));
    assert_begins(&handle, &name, &payloads[..37]);
    close(engine);
    verify(&config(dir.path()), &mut |_| {}).unwrap();
    let (engine, handle) = running(dir.path());
    let objects = dir.path().join("bucket/feeds").join(&source);
    let kept = || common::image::files(&objects, |_| true).len();
    assert!(objects.exists() && kept() > 0);
    block_on(handle.delete_feed(&name)).unwrap();
    wait_until("objects of a feed that is gone stay", || {
        !objects.exists() || kept() == 0
    });
    assert!(is_missing(&handle, &source));
    close(engine);
    verify(&config(dir.path()), &mut |_| {}).unwrap();
}

#[test]
fn what_forks_go_on_from_is_not_discarded() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    made(&handle, "s", &[b"a"]);
    fork(&handle, "s", None, "f");
    block_on(handle.open("s")).unwrap();
    put(&handle, "s", b"second stream");
    let discard = || block_on(handle.settle_stream("s", None, CommitKind::Discarded, ""));
    let refused = discard().unwrap_err();
    assert!(matches!(refused, Error::Pinned { .. }), "{refused}");
    block_on(handle.settle_stream("s", None, CommitKind::Sealed, "")).unwrap();
    // Behind the pin it may be.
    discard().unwrap();
    assert_eq!(texts(&handle, "f"), ["a"]);
    close(engine);
    verify(&config(dir.path()), &mut |_| {}).unwrap();
}

#[test]
fn pin_whose_fork_never_came_is_dropped_at_the_next_start() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    let source = name_in(&handle, 0, "source");
    let (name, other) = (name_in(&handle, 1, "fork"), name_in(&handle, 1, "other"));
    made(&handle, &source, &[b"a"]);
    fork(&handle, &source, None, &other);
    let before = image(dir.path());
    fork(&handle, &source, None, &name);
    // The source's log has the pin, the other log not the fork.
    let crashed = image(dir.path());
    take_log(before.path(), crashed.path(), 1);
    close(engine);
    let (engine, handle) = running(crashed.path());
    assert!(is_missing(&handle, &name));
    assert_eq!(texts(&handle, &other), ["a"], "its pin is not doubted");
    block_on(handle.delete_feed(&source)).unwrap();
    assert!(is_gone(&handle, &source));
    block_on(handle.delete_feed(&other)).unwrap();
    wait_until("the orphan pin stays", || is_missing(&handle, &source));
    close(engine);
    verify(&config(crashed.path()), &mut |_| {}).unwrap();
}

#[test]
fn pin_of_a_fork_whose_name_is_anothers_now_is_dropped_at_the_next_start() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    let source = name_in(&handle, 0, "source");
    let name = name_in(&handle, 1, "fork");
    made(&handle, &source, &[b"a"]);
    let before = image(dir.path());
    made(&handle, &name, &[b"somebody else's"]);
    let taken = image(dir.path());
    close(engine);
    let (engine, handle) = running(before.path());
    fork(&handle, &source, None, &name);
    let crashed = image(before.path());
    take_log(taken.path(), crashed.path(), 1);
    close(engine);
    let (engine, handle) = running(crashed.path());
    assert_eq!(texts(&handle, &name), ["somebody else's"]);
    block_on(handle.delete_feed(&source)).unwrap();
    wait_until("the orphan pin stays", || is_missing(&handle, &source));
    assert_eq!(texts(&handle, &name), ["somebody else's"]);
    close(engine);
}

#[test]
fn pin_that_a_loss_took_is_put_again_at_the_next_start() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    let source = name_in(&handle, 0, "source");
    let name = name_in(&handle, 1, "fork");
    made(&handle, &source, &[b"a"]);
    let before = image(dir.path());
    fork(&handle, &source, None, &name);
    let lost = image(dir.path());
    take_log(before.path(), lost.path(), 0);
    close(engine);
    let (engine, handle) = running(lost.path());
    std::thread::sleep(Duration::from_millis(500));
    block_on(handle.delete_feed(&source)).unwrap();
    assert!(is_gone(&handle, &source), "nothing keeps it");
    assert_eq!(texts(&handle, &name), ["a"]);
    close(engine);
}

/// The entries of every group that has one of a feed being made, by kind.
fn kinds(dir: &Path, log: u64) -> Vec<String> {
    let groups = common::image::groups(dir, log).into_iter();
    let of_group = |group: common::image::GroupAt| {
        let bytes = group.bytes();
        let end = GROUP_HEADER_BYTES + group.header.body_bytes as usize;
        let entries = Entries::new(&bytes[GROUP_HEADER_BYTES..end]);
        let kinds = entries.map(|entry| match entry.unwrap().decode().unwrap() {
            Entry::Batch(_) => "batch",
            Entry::Change(Change::FeedCreated { .. }) => "created",
            Entry::Change(Change::FeedForked(_)) => "forked",
            Entry::Change(Change::StreamOpened { .. }) => "opened",
            Entry::Change(Change::StreamSealed(_)) => "sealed",
            Entry::Change(Change::FeedClosed { .. }) => "closed",
            Entry::Change(_) => "other",
        });
        kinds.collect::<Vec<_>>().join(" ")
    };
    let all = groups.map(of_group);
    all.filter(|kinds| kinds.contains("created") || kinds.contains("forked"))
        .collect()
}

#[test]
fn feed_made_with_records_and_closed_is_one_group_whatever_its_size() {
    let dir = quick();
    let config = EngineConfig {
        logs: 1,
        ..config(dir.path())
    };
    let mut config = config;
    config.wal.flush_bytes = 4096;
    let (engine, handle) = open(config);
    let request = || MakeRequest {
        batch: Some(batch(&[&payload(1, 60_000)])),
        closed: true,
        ..MakeRequest::default()
    };
    block_on(handle.make_feed("s", request())).unwrap();
    fork_with(&handle, "s", None, "f", request()).unwrap();
    let whole = "opened batch sealed closed";
    assert_eq!(
        kinds(dir.path(), 0),
        [format!("created {whole}"), format!("forked {whole}")]
    );
    close(engine);
}

#[test]
fn release_that_a_crash_interrupts_is_finished_at_the_next_start_up_the_chain() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    let root = name_in(&handle, 0, "root");
    let middle = name_in(&handle, 0, "middle");
    let leaf = name_in(&handle, 1, "leaf");
    made(&handle, &root, &[b"a"]);
    fork(&handle, &root, None, &middle);
    put(&handle, &middle, b"b");
    fork(&handle, &middle, None, &leaf);
    for deleted in [&root, &middle] {
        block_on(handle.delete_feed(deleted)).unwrap();
    }
    let before = image(dir.path());
    block_on(handle.delete_feed(&leaf)).unwrap();
    wait_until("the chain stays", || is_missing(&handle, &root));
    // The leaf's end is durable in log 1, of log 0 nothing newer than before.
    let crashed = image(dir.path());
    take_log(before.path(), crashed.path(), 0);
    close(engine);
    let (engine, handle) = running(crashed.path());
    assert!(is_missing(&handle, &leaf));
    for gone in [&middle, &root] {
        wait_until("an interrupted release stays", || is_missing(&handle, gone));
    }
    close(engine);
    verify(&config(crashed.path()), &mut |_| {}).unwrap();
}

#[test]
fn forks_keep_their_ground_across_a_reshard() {
    let dir = quick();
    let (engine, handle) = running(dir.path());
    for number in 0..6 {
        let (source, name) = (format!("s{number}"), format!("f{number}"));
        made(&handle, &source, &[b"a", b"b"]);
        fork(&handle, &source, 1, &name);
        put(&handle, &name, b"own");
        if number % 2 == 0 {
            block_on(handle.delete_feed(&source)).unwrap();
        }
    }
    close(engine);
    for logs in [3, 1] {
        reshard(&config(dir.path()), logs, |_| Ok(())).unwrap();
        verify(&config(dir.path()), &mut |_| {}).unwrap();
        let (engine, handle) = running(dir.path());
        for number in 0..6 {
            assert_eq!(texts(&handle, &format!("f{number}")), ["a", "own"]);
            assert_eq!(is_gone(&handle, &format!("s{number}")), number % 2 == 0);
        }
        close(engine);
    }
    let (engine, handle) = running(dir.path());
    block_on(handle.delete_feed("f0")).unwrap();
    wait_until("s0 stays", || is_missing(&handle, "s0"));
    close(engine);
}
