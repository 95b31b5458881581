//! Cases of a process's life: a sync that fails once, restarts, kills at the start, a polite end.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::image::{self, GroupAt};
use common::{
    Dice, assert_holds, batch, child, close, open, payload, produced, put, read_all, scale,
};
use common::{quick, seccomp, small};
use futures_lite::future::block_on;
use sealog_engine::ids::{CommitNumber, StreamId};
use sealog_engine::wal::entry::Entries;
use sealog_engine::{
    Engine, Error, FeedOptions, Handle, ProductionEnv, ReadFrom, ReadRequest, SessionOptions,
};
use sealog_frame::FrameView;

const FEED: &str = "life";

#[test]
fn child_role() {
    let Some((role, argument)) = child::role() else {
        return;
    };
    match role.as_str() {
        "failing sync" => failing_sync(&argument),
        "open" => open_for_ever(Path::new(&argument)),
        other => panic!("{other}"),
    }
}

/// In a child: rounds of eight appends at once, the nth sync fails with EIO, all others succeed.
fn failing_sync(argument: &str) {
    let (nth, dir) = argument.split_once(':').unwrap();
    let nth: u64 = nth.parse().unwrap();
    let (armed, count) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    let judging = armed.clone();
    seccomp::watch_syncs(move || {
        let hit = judging.load(Ordering::SeqCst) && count.fetch_add(1, Ordering::SeqCst) + 1 == nth;
        hit.then_some(libc::EIO)
    });
    let (engine, handle) = open(small(Path::new(dir)));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let session = block_on(handle.open_session(FEED, SessionOptions::default())).unwrap();
    armed.store(true, Ordering::SeqCst);
    let mut failed = false;
    for round in 0..40 {
        let numbers: Vec<u64> = (round * 8..round * 8 + 8).collect();
        let results = block_on(async {
            let mut tickets = Vec::new();
            for number in &numbers {
                let sent = session.append_async(batch(&[&payload(*number, 700)]));
                tickets.push(sent.await);
            }
            let mut results = Vec::new();
            for ticket in tickets {
                results.push(match ticket {
                    Ok(ticket) => ticket.await,
                    Err(error) => Err(error),
                });
            }
            results
        });
        for (number, result) in numbers.iter().zip(results) {
            match result {
                Ok(done) => {
                    assert!(!failed, "{number} acknowledged after the failed sync");
                    assert_eq!(done.first, *number);
                    child::say(format!("acknowledged {number}"));
                }
                Err(Error::Poisoned { .. }) => failed = true,
                Err(other) => panic!("{number}: {other}"),
            }
        }
    }
    // Poisoned is for good, and closing says so.
    if failed {
        assert!(matches!(
            block_on(engine.close()),
            Err(Error::Poisoned { .. })
        ));
    }
    child::say(if failed { "poisoned" } else { "never failed" });
    std::process::exit(0);
}

/// Record sequences in a group.
fn sequences(group: &GroupAt) -> Vec<u64> {
    let bytes = group.bytes();
    let body = &bytes[128..128 + group.header.body_bytes as usize];
    let frames = Entries::new(body).filter_map(|entry| entry.unwrap().frame());
    frames
        .flat_map(|frame| {
            let view = FrameView::trusted(frame).unwrap();
            view.base_sequence()..=view.last_sequence()
        })
        .collect()
}

#[test]
fn case_d07_sync_that_fails_once_acknowledges_nothing_more() {
    let mut poisoned = 0;
    for nth in (1..=20).step_by(scale(3, 1)) {
        let dir = quick();
        let said = child::run("failing sync", format!("{nth}:{}", dir.path().display()));
        let (end, acknowledged) = said.split_last().unwrap();
        poisoned += usize::from(end == "poisoned");
        let count = acknowledged.len() as u64;
        for (at, line) in (0u64..).zip(acknowledged) {
            assert_eq!(*line, format!("acknowledged {at}"), "sync {nth}");
        }
        let payloads: Vec<_> = (0..320).map(|number| payload(number, 700)).collect();
        // The page that failed is gone: the groups that were not acknowledged never reached the disk.
        let lost = image::image(dir.path());
        for group in image::groups(lost.path(), 0) {
            if sequences(&group).iter().any(|sequence| *sequence >= count) {
                image::write_at(&group.path, group.position, &vec![0; group.len() as usize]);
            }
        }
        let (engine, handle) = open(small(lost.path()));
        assert_holds(
            &handle,
            FEED,
            &payloads[..count as usize],
            &format!("sync {nth}, lost"),
        );
        close(engine);
        // It reached the disk all the same: whole batches, in order, for good.
        let (engine, handle) = open(small(dir.path()));
        let kept = read_all(&handle, FEED).len();
        assert!(
            kept as u64 >= count,
            "sync {nth}: {kept} of {count} acknowledged"
        );
        assert_holds(
            &handle,
            FEED,
            &payloads[..kept],
            &format!("sync {nth}, kept"),
        );
        assert_eq!(put(&handle, FEED, b"more"), kept as u64);
        close(engine);
    }
    assert!(
        poisoned >= 5,
        "only {poisoned} of the syncs that failed were those of groups"
    );
}

#[test]
fn case_d09_epoch_after_any_restart_is_higher() {
    let mut dir = quick();
    let mut highest = 0;
    let (mut engine, mut handle) = open(small(dir.path()));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    for round in 0..12 {
        let stale = highest;
        for take in 0..1 + round % 3 {
            let lease = if take == 1 {
                block_on(handle.resume(FEED)).unwrap()
            } else {
                block_on(handle.open(FEED)).unwrap()
            };
            assert!(
                lease.epoch.0 > highest,
                "{round}: {} after {highest}",
                lease.epoch.0
            );
            highest = lease.epoch.0;
        }
        if stale > 0 {
            let late = batch(&[b"late"]).with_fencing_token(stale);
            let answer = block_on(handle.append(FEED, late));
            assert!(
                matches!(answer, Err(Error::Fenced { .. })),
                "{round}: {answer:?}"
            );
        }
        // Killed right after the epoch was handed out, or closed.
        let killed = image::image(dir.path());
        close(engine);
        if round % 2 == 0 {
            dir = killed;
        }
        (engine, handle) = open(small(dir.path()));
        assert_eq!(block_on(handle.feed(FEED)).unwrap().epoch.0, highest);
    }
    close(engine);
}

/// In a child: says that it begins, opens, says that it has, and waits to be killed.
fn open_for_ever(dir: &Path) {
    child::say("begins");
    let _engine = open(small(dir));
    child::say("open");
    std::thread::sleep(Duration::from_secs(60));
}

/// Everything that callers can learn of a store.
fn state(handle: &Handle<ProductionEnv>) -> Vec<String> {
    let mut state = Vec::new();
    for feed in block_on(handle.list_feeds("", "", 1000)).unwrap() {
        let name = feed.name.clone();
        state.push(format!("{feed:?}"));
        let streams = block_on(handle.list_streams(&name, StreamId(0), 1000)).unwrap();
        // How far packing has got may differ.
        state.extend(
            streams
                .iter()
                .map(|s| format!("{:?} {:?} {} {}", s.id, s.phase, s.first, s.end)),
        );
        let commits = block_on(handle.list_commits(&name, CommitNumber(0), 1000)).unwrap();
        state.extend(commits.iter().map(|commit| format!("{commit:?}")));
        let producers = block_on(handle.list_producers(&name, None, 1000)).unwrap();
        state.extend(producers.iter().map(|producer| format!("{producer:?}")));
        let records = read_all(handle, &name);
        state.push(format!(
            "{} records {:08x}",
            records.len(),
            crc32c::crc32c(format!("{records:?}").as_bytes())
        ));
    }
    state
}

/// Three feeds with producers, commits, an abandoned stream; many segments' worth; killed.
fn busy_store() -> tempfile::TempDir {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    for feed in ["a", "b", "c"] {
        block_on(handle.create_feed(feed, FeedOptions::default())).unwrap();
    }
    for round in 0..40u64 {
        for feed in ["a", "b"] {
            put(&handle, feed, &payload(round, 20_000));
        }
        block_on(handle.append("c", produced(b"p", 0, round, &payload(round, 9000)))).unwrap();
        if round == 20 {
            block_on(handle.seal("a", None, "half")).unwrap();
            block_on(handle.open("b")).unwrap();
        }
    }
    let image = image::image(dir.path());
    close(engine);
    image
}

#[test]
fn case_r01_killed_again_and_again_while_recovering() {
    let base = busy_store();
    // A torn tail, so that recovery has something to wipe.
    let last = image::groups(base.path(), 0).pop().unwrap();
    image::write_at(&last.path, last.end(), &Dice::new(9).bytes(6000));
    let reference = image::image(base.path());
    let started = Instant::now();
    let (engine, handle) = open(small(reference.path()));
    let took = started.elapsed();
    let expected = state(&handle);
    close(engine);
    let mut dice = Dice::new(10);
    let (mut inside, points) = (0, scale(30, 100));
    for point in (0..points).step_by(5) {
        let copy = image::image(base.path());
        for _ in 0..5 {
            let mut running = child::spawn("open", copy.path());
            assert_eq!(running.hear().as_deref(), Some("begins"));
            std::thread::sleep(took.mul_f64(dice.below(1200) as f64 / 1000.0));
            inside += usize::from(running.kill().is_empty());
        }
        for restart in 0..2 {
            let (engine, handle) = open(small(copy.path()));
            assert_eq!(
                state(&handle),
                expected,
                "after kill {point}, restart {restart}"
            );
            close(engine);
        }
    }
    println!("{inside} of {points} kills came before the engine was open");
    assert!(
        inside * 4 >= points,
        "only {inside} of {points} kills hit recovery"
    );
}

/// Follows a feed until the engine ends; answers how many records it saw.
fn follow(handle: &Handle<ProductionEnv>, feed: &str) -> u64 {
    let mut next = 0;
    loop {
        let mut request = ReadRequest::new(feed);
        request.from = ReadFrom::Sequence(next);
        request.wait = Duration::from_secs(30);
        match block_on(handle.read(request)) {
            Ok(chunk) => {
                let mut rest = &chunk.frames[..];
                while !rest.is_empty() {
                    // Never cut within a frame.
                    let (frame, after) = FrameView::split_trusted(rest).unwrap();
                    next = next.max(frame.end_sequence());
                    rest = after;
                }
            }
            Err(error) => {
                assert_eq!(error, Error::Closed);
                return next;
            }
        }
    }
}

/// Appends until refused; answers the payload numbers that were acknowledged, with their sequences.
fn write_on(handle: &Handle<ProductionEnv>, feed: &str, writer: u64) -> Vec<(u64, u64)> {
    let mut acknowledged = Vec::new();
    for number in 0.. {
        let number = writer << 32 | number;
        match block_on(handle.append(feed, batch(&[&payload(number, 200)]))) {
            Ok(done) => acknowledged.push((number, done.first)),
            Err(error) => {
                assert_eq!(error, Error::Closed);
                return acknowledged;
            }
        }
    }
    unreachable!()
}

#[test]
fn case_d28_close_under_load_keeps_all_and_ends_everyone() {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    let feeds = ["one", "two", "three", "four"];
    for feed in feeds {
        block_on(handle.create_feed(feed, FeedOptions::default())).unwrap();
    }
    let mut acknowledged = Vec::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..64u64)
            .map(|writer| {
                let handle = handle.clone();
                let feed = feeds[writer as usize % 4];
                scope.spawn(move || (feed, write_on(&handle, feed, writer)))
            })
            .collect();
        let readers: Vec<_> = (0..16)
            .map(|reader| {
                let handle = handle.clone();
                scope.spawn(move || follow(&handle, feeds[reader % 4]))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(scale(1500, 10_000)));
        let closing = Instant::now();
        close(engine);
        acknowledged.extend(writers.into_iter().map(|writer| writer.join().unwrap()));
        let seen: Vec<_> = readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .collect();
        assert!(seen.iter().any(|count| *count > 0), "readers saw nothing");
        let took = closing.elapsed();
        assert!(took < Duration::from_secs(10), "ending took {took:?}");
    });
    let (engine, handle) = open(small(dir.path()));
    let reports = block_on(handle.recovery_reports()).unwrap();
    assert!(reports.iter().all(|report| report.clean), "{reports:?}");
    let mut total = 0;
    for feed in feeds {
        let records = read_all(&handle, feed);
        for (at, (sequence, _)) in (0u64..).zip(&records) {
            assert_eq!(*sequence, at, "{feed}");
        }
        for (_, mine) in acknowledged.iter().filter(|(of, _)| *of == feed) {
            for (number, sequence) in mine {
                assert!(
                    records[*sequence as usize].1 == payload(*number, 200),
                    "{feed} {sequence}"
                );
            }
            total += mine.len();
        }
    }
    assert!(total > 64, "only {total} appends were acknowledged");
    close(engine);
}

#[test]
fn case_d28_dropped_without_close_keeps_all_and_ends_everyone() {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let reader = std::thread::spawn({
        let handle = handle.clone();
        move || follow(&handle, FEED)
    });
    let writer = std::thread::spawn({
        let handle = handle.clone();
        move || write_on(&handle, FEED, 1)
    });
    std::thread::sleep(Duration::from_millis(300));
    drop(engine);
    let mine = writer.join().unwrap();
    reader.join().unwrap();
    let (engine, handle) = open(small(dir.path()));
    let records = read_all(&handle, FEED);
    for (number, sequence) in &mine {
        assert!(
            records[*sequence as usize].1 == payload(*number, 200),
            "{sequence}"
        );
    }
    assert!(!mine.is_empty());
    assert!(matches!(
        block_on(handle.append("absent", batch(&[b"x"]))),
        Err(Error::FeedNotFound { .. })
    ));
    close(engine);
}

#[test]
fn case_d28_calls_after_the_end_are_refused() {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    close(engine);
    assert_eq!(
        block_on(handle.append(FEED, batch(&[b"x"]))),
        Err(Error::Closed)
    );
    assert_eq!(
        block_on(handle.read(ReadRequest::new(FEED))),
        Err(Error::Closed)
    );
    assert!(Engine::open(small(dir.path())).is_ok());
}
