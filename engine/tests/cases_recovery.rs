//! Cases of recovery: torn tails, junk behind them, zeros, and kill -9 in the middle of it.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::image::{self, GroupAt};
use common::{Dice, assert_holds, batch, child, close, open, payload, put, quick, scale, small};
use futures_lite::future::block_on;
use sealog_engine::{Engine, Error, FeedOptions, ReadRequest};
use tempfile::TempDir;

const FEED: &str = "torn";

/// What a kill right after the last of these commits leaves, before any idle marker.
struct Killed {
    image: TempDir,
    payloads: Vec<Vec<u8>>,
    last: GroupAt,
}

/// Appends commits of these sizes, one group each, after `restarts` restarts, and takes the image.
fn killed_after(sizes: &[usize], restarts: u32) -> Killed {
    let payloads: Vec<_> = (0u64..)
        .zip(sizes)
        .map(|(i, len)| payload(i, *len))
        .collect();
    for _ in 0..10 {
        let dir = quick();
        let (mut engine, mut handle) = open(small(dir.path()));
        block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
        for _ in 0..restarts {
            close(engine);
            (engine, handle) = open(small(dir.path()));
        }
        for bytes in &payloads {
            put(&handle, FEED, bytes);
        }
        let image = image::image(dir.path());
        close(engine);
        let last = image::groups(image.path(), 0).pop().unwrap();
        // A slow machine may have let the log become idle.
        if !last.is_marker() {
            assert_eq!(last.header.entries, 1);
            return Killed {
                image,
                payloads,
                last,
            };
        }
    }
    panic!("the log wrote its idle marker before it could be copied, ten times");
}

/// Opens, finds exactly `kept`, appends one more, and finds that after two more restarts.
fn survives(dir: &Path, kept: &[Vec<u8>], about: &str) {
    let (engine, handle) = open(small(dir));
    assert_holds(&handle, FEED, kept, about);
    let mut payloads = kept.to_vec();
    payloads.push(payload(1000, 700));
    let sequence = put(&handle, FEED, payloads.last().unwrap());
    assert_eq!(sequence, kept.len() as u64, "{about}");
    close(engine);
    for _ in 0..2 {
        let (engine, handle) = open(small(dir));
        assert_holds(&handle, FEED, &payloads, about);
        close(engine);
    }
}

/// Places to cut a group: around every boundary of its layout, and a few anywhere; or every one.
fn cuts(group: &GroupAt) -> Vec<u64> {
    let len = group.len();
    if common::long() {
        return (0..len).collect();
    }
    let mut dice = Dice::new(len);
    let mut cuts = vec![0, 1, 13, 127, 128, 152, 511, 4095, 4096, 4097, len - 1];
    cuts.extend((0..4).map(|_| dice.below(len)));
    cuts.retain(|cut| *cut < len);
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

fn cut_everywhere(fifth: usize, restarts: u32) {
    let killed = killed_after(&[1, 511, 4096, 9000, fifth], restarts);
    for cut in cuts(&killed.last) {
        let copy = image::image(killed.image.path());
        let last = image::groups(copy.path(), 0).pop().unwrap();
        image::set_len(&last.path, last.position + cut);
        let about = format!("fifth of {fifth} bytes cut at {cut}, {restarts} restarts before");
        survives(copy.path(), &killed.payloads[..4], &about);
    }
}

#[test]
fn case_d01_last_record_cut_everywhere() {
    cut_everywhere(9000, 0);
}

#[test]
fn case_d01_short_last_record_cut_everywhere_after_restarts() {
    cut_everywhere(30, 2);
}

#[test]
fn case_d01_torn_record_overwritten_in_place() {
    // The disk kept the length and lost the rest: old bytes, junk, or parts of both.
    let killed = killed_after(&[1, 511, 4096, 9000, 20_000], 1);
    let mut dice = Dice::new(7);
    for round in 0..scale(8, 500) {
        let copy = image::image(killed.image.path());
        let last = image::groups(copy.path(), 0).pop().unwrap();
        let sectors = u64::from(last.header.body_bytes) / 512;
        let from = dice.below(sectors);
        let count = 1 + dice.below(sectors - from);
        let junk = dice.bytes(count as usize * 512);
        image::write_at(&last.path, last.position + from * 512, &junk);
        let about = format!("round {round}: sectors {from}+{count} of the fifth are junk");
        survives(copy.path(), &killed.payloads[..4], &about);
    }
}

/// Appends for ever; says each sequence once it is acknowledged.
fn appender(dir: &str) {
    let engine = Engine::open(small(Path::new(dir))).unwrap();
    let handle = engine.handle().clone();
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let mut next = block_on(handle.feed(FEED)).unwrap().next_sequence;
    loop {
        let bytes = payload(next, 1 + (next * 977 % 30_000) as usize);
        assert_eq!(put(&handle, FEED, &bytes), next);
        child::say(next);
        next += 1;
    }
}

#[test]
fn case_d01_kill_nine_while_appending() {
    let dir = quick();
    let mut dice = Dice::new(1);
    let mut acknowledged = 0;
    for round in 0..scale(6, 100) {
        let mut running = child::spawn("appender", dir.path());
        for _ in 0..1 + dice.below(60) {
            let said = running.hear().expect("the appender ended early");
            acknowledged = said.parse::<u64>().unwrap() + 1;
        }
        std::thread::sleep(std::time::Duration::from_micros(dice.below(3000)));
        if let Some(last) = running.kill().last() {
            acknowledged = last.parse::<u64>().unwrap() + 1;
        }
        let (engine, handle) = open(small(dir.path()));
        let records = common::read_all(&handle, FEED);
        let count = records.len() as u64;
        // One append at a time: at most one was acknowledged and not said, or durable and not acknowledged.
        assert!(
            count >= acknowledged && count <= acknowledged + 2,
            "{round}: {count} {acknowledged}"
        );
        for (at, (sequence, bytes)) in (0u64..).zip(&records) {
            assert_eq!(
                (*sequence, bytes),
                (at, &payload(at, 1 + (at * 977 % 30_000) as usize))
            );
        }
        drop(engine);
    }
}

#[test]
fn child_role() {
    match child::role() {
        Some((role, dir)) if role == "appender" => appender(&dir),
        _ => {}
    }
}

/// Junk behind the tail, found by a restart, two commits, two more restarts.
fn junk_behind_the_tail(junk: &[u8], killed: &Killed, about: &str) {
    let copy = image::image(killed.image.path());
    let dir = copy.path();
    let end = killed.last.end();
    let path = image::groups(dir, 0).pop().unwrap().path;
    image::write_at(&path, end, junk);
    let before = image::read_at(&path, 0, end as usize);
    let mut payloads = killed.payloads.clone();
    let (engine, handle) = open(small(dir));
    assert_holds(&handle, FEED, &payloads, about);
    for number in 0..2 {
        payloads.push(payload(2000 + number, 300));
        put(&handle, FEED, payloads.last().unwrap());
    }
    // Killed once more, so that the junk's place matters again.
    let again = image::image(dir);
    close(engine);
    for dir in [dir, again.path()] {
        for _ in 0..2 {
            let (engine, handle) = open(small(dir));
            assert_holds(&handle, FEED, &payloads, about);
            close(engine);
            let name = path.strip_prefix(copy.path()).unwrap();
            let now = image::read_at(&dir.join(name), 0, end as usize);
            assert!(now == before, "{about}: bytes before the damage changed");
        }
    }
}

#[test]
fn case_d02_junk_behind_the_tail_hides_nothing() {
    let killed = killed_after(&[200, 3000, 4096], 0);
    let mut dice = Dice::new(2);
    for (round, k) in [1, 7, 511, 512, 4095, 4096, 5000].into_iter().enumerate() {
        if common::long() || round % 2 == 0 {
            junk_behind_the_tail(&dice.bytes(k), &killed, &format!("{k} random bytes"));
        }
        if common::long() || round % 2 == 1 {
            junk_behind_the_tail(&vec![0xFF; k], &killed, &format!("{k} bytes of 0xFF"));
        }
    }
    // A valid group that is at the wrong place is junk too.
    let stale = killed.last.bytes();
    junk_behind_the_tail(&stale, &killed, "the last group once more");
}

#[test]
fn case_d02_junk_beyond_the_file_hides_nothing() {
    let killed = killed_after(&[200, 3000, 4096], 1);
    for k in [1, 4096, 5000] {
        let copy = image::image(killed.image.path());
        let path = image::groups(copy.path(), 0).pop().unwrap().path;
        let len = std::fs::metadata(&path).unwrap().len();
        image::write_at(&path, len, &vec![0xA7; k]);
        survives(
            copy.path(),
            &killed.payloads,
            &format!("{k} bytes behind the file"),
        );
    }
}

#[test]
fn case_d04_zeros_in_the_last_record() {
    let killed = killed_after(&[1, 511, 4096, 9000, 9000], 0);
    let entries_end = killed.last.position + 128 + u64::from(killed.last.header.body_bytes);
    let damage = [
        ("its last 512 bytes", entries_end - 512, 512),
        ("its last 4096 bytes", entries_end - 4096, 4096),
        ("its middle sector", killed.last.position + 4096 + 512, 512),
        ("its first block", killed.last.position, 4096),
    ];
    for (what, at, len) in damage {
        let copy = image::image(killed.image.path());
        let path = image::groups(copy.path(), 0).pop().unwrap().path;
        image::write_at(&path, at, &vec![0; len]);
        survives(
            copy.path(),
            &killed.payloads[..4],
            &format!("zeros over {what}"),
        );
    }
}

#[test]
fn case_d04_zeros_behind_the_log() {
    let killed = killed_after(&[1, 511, 4096], 0);
    let copy = image::image(killed.image.path());
    let path = image::groups(copy.path(), 0).pop().unwrap().path;
    let len = std::fs::metadata(&path).unwrap().len();
    image::set_len(&path, len + (4 << 20));
    survives(copy.path(), &killed.payloads, "4 MiB of zeros appended");
    // A segment that a kill caught while it was being made: no header yet, any length.
    for len in [0, 512, 4096, 300_000, 1 << 20] {
        let copy = image::image(killed.image.path());
        let made = copy.path().join("wal/0/00000777.seg");
        std::fs::File::create(&made).unwrap().set_len(len).unwrap();
        survives(
            copy.path(),
            &killed.payloads,
            &format!("a new segment of {len} zeros"),
        );
    }
}

/// Appends until a group ends exactly where its segment does; answers all payloads.
fn fill_segment(dir: &Path) -> (Engine, Vec<Vec<u8>>) {
    let (engine, handle) = open(small(dir));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let mut payloads: Vec<Vec<u8>> = Vec::new();
    let mut add = |len: usize| {
        payloads.push(payload(payloads.len() as u64, len));
        put(&handle, FEED, payloads.last().unwrap());
    };
    let overhead = batch(&[&[7u8; 4096]]).as_bytes().len() - 4096;
    add(100);
    for _ in 0..200 {
        let last = image::groups(dir, 0).pop().unwrap();
        let left = (1 << 20) - last.end();
        if left == 0 {
            return (engine, payloads);
        }
        let exact = left as usize - (128 + 24 + overhead + 8);
        add(if exact <= 60_000 { exact } else { 40_000 });
    }
    panic!("no group ended where its segment does");
}

#[test]
fn case_d04_record_ends_where_its_segment_does() {
    let dir = quick();
    let (engine, payloads) = fill_segment(dir.path());
    let killed = image::image(dir.path());
    close(engine);
    // The image is a kill with the segment full to the last byte; the other is a clean close, whose
    // marker is the first group of the next segment.
    survives(killed.path(), &payloads, "segment full, killed");
    survives(dir.path(), &payloads, "segment full, closed");
}

#[test]
fn case_d04_payloads_of_zeros_are_data() {
    let overhead = batch(&[&[7u8; 4096]]).as_bytes().len() - 4096;
    // The last one leaves no block of its group but the first with a byte that is not zero.
    let sizes = [1, 4096, 5 * 4096 - (128 + 24 + overhead), 60_000];
    let payloads: Vec<Vec<u8>> = sizes.iter().map(|len| vec![0; *len]).collect();
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    payloads.iter().for_each(|bytes| {
        put(&handle, FEED, bytes);
    });
    assert_holds(&handle, FEED, &payloads, "zeros");
    let killed = image::image(dir.path());
    close(engine);
    survives(killed.path(), &payloads, "zeros, killed");
    survives(dir.path(), &payloads, "zeros, closed");
    // A zero-filled log is no log of zero records: the checkpoint says that there were some.
    let copy = image::image(dir.path());
    let (number, path) = image::segments(copy.path(), 0).pop_first().unwrap();
    assert_eq!(number, 0);
    image::write_at(&path, 4096, &vec![0; (1 << 20) - 4096]);
    let (engine, handle) = open(small(copy.path()));
    let error = common::read(&handle, ReadRequest::new(FEED)).expect_err("a wiped log was read");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let tail = block_on(handle.feed(FEED)).unwrap().next_sequence;
    assert_eq!(tail, sizes.len() as u64 + 1);
    close(engine);
}
