//! Fingerprints: the same answer from log and pack, packs answer out of their columns (PACK-15), and out of no other's.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/store.rs"]
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{close, open, scratch, small};
use futures_lite::future::block_on;
use sealog_engine::ids::{Digest, StreamId};
use sealog_engine::pack::{PackFooter, PackIndex};
use sealog_engine::{
    Budget, Error, FeedOptions, Handle, ProductionEnv, ReadFrom, ReadRequest, Result, fingerprint,
    verify,
};
use sealog_frame::{Batch, BatchBuilder, FrameView, Record};
use store::files;

const FEED: &str = "prints";

/// Sequence and fingerprint of every record asked for; checks that there is one per record.
fn prints(
    handle: &Handle<ProductionEnv>,
    mut request: ReadRequest,
) -> Result<Vec<(u64, [u8; 32])>> {
    request.fingerprints = true;
    let mut found = Vec::new();
    loop {
        let chunk = block_on(handle.read(request.clone()))?;
        let (mut rest, mut at) = (&chunk.frames[..], 0);
        while !rest.is_empty() {
            let (frame, after) = FrameView::split_trusted(rest).unwrap();
            for record in frame.records() {
                let asked = record.sequence >= chunk.first && record.sequence < chunk.next;
                if asked && record.sequence < request.end {
                    found.push((record.sequence, chunk.fingerprints[at]));
                }
                at += 1;
            }
            rest = after;
        }
        assert_eq!(at, chunk.fingerprints.len());
        if chunk.ended || chunk.next == chunk.first {
            return Ok(found);
        }
        request.from = ReadFrom::Sequence(chunk.next);
    }
}

/// What they must be, by the records alone.
fn expected(handle: &Handle<ProductionEnv>, feed: &str) -> Vec<(u64, [u8; 32])> {
    let mut request = ReadRequest::new(feed);
    request.bytes_max = 8 << 20;
    let chunk = block_on(handle.read(request)).unwrap();
    assert!(chunk.fingerprints.is_empty(), "nobody asked");
    assert!(chunk.next >= chunk.tail, "all in one answer");
    let (mut rest, mut found) = (&chunk.frames[..], Vec::new());
    while !rest.is_empty() {
        let (frame, after) = FrameView::split_trusted(rest).unwrap();
        found.extend(frame.records().map(|r| (r.sequence, fingerprint(&r))));
        rest = after;
    }
    found
}

#[test]
fn fingerprints_are_within_the_budget_of_their_answer() {
    let dir = scratch();
    let (engine, handle) = open(small(dir.path()));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let mut builder = BatchBuilder::default();
    for _ in 0..200 {
        builder.push(&Record::of(b"tiny")).unwrap();
    }
    block_on(handle.append(FEED, builder.build().unwrap())).unwrap();
    // In the log, then in a pack.
    for packed in [false, true] {
        if packed {
            block_on(handle.seal(FEED, None, "")).unwrap();
        }
        let budget = Budget::new(1 << 20);
        let mut request = ReadRequest::new(FEED);
        request.fingerprints = true;
        let chunk = block_on(handle.read_within(request, &budget)).unwrap();
        assert_eq!(chunk.fingerprints.len(), 200);
        let bytes = chunk.frames.len() + 200 * 32;
        assert_eq!(
            (chunk.held.bytes(), budget.used()),
            (bytes, bytes),
            "{packed}"
        );
    }
    close(engine);
}

/// `count` records of every sort, from payload number `from` on: empty, long, keyed, with headers, and
/// every third with a fingerprint of its own.
fn odd_batch(from: u64, count: u64) -> (Batch, Vec<[u8; 32]>) {
    let mut builder = BatchBuilder::default();
    let mut prints = Vec::new();
    for n in from..from + count {
        let len = [0, 1, 55, 100, 1_024, 9_000][n as usize % 6];
        let payload = common::payload(n, len);
        let key = n.to_le_bytes();
        let supplied = (n % 3 == 0).then_some([n as u8; 32]);
        let headers = match n % 4 {
            0 => vec![(&b"name"[..], &b"value"[..])],
            _ => Vec::new(),
        };
        let record = Record {
            key: (n % 5 == 0).then_some(&key[..]),
            fingerprint: supplied,
            headers,
            ..Record::of(&payload)
        };
        builder.push(&record).unwrap();
        prints.push(supplied.unwrap_or_else(|| Digest::of(&payload).0));
    }
    (builder.build().unwrap(), prints)
}

/// A feed of such batches, of one record and of many; its fingerprints.
fn filled(handle: &Handle<ProductionEnv>, feed: &str, batches: u64) -> Vec<(u64, [u8; 32])> {
    let options = FeedOptions {
        keys: true,
        ..FeedOptions::default()
    };
    block_on(handle.create_feed(feed, options)).unwrap();
    let mut all = Vec::new();
    for n in 0..batches {
        let (batch, prints) = odd_batch(all.len() as u64, [1, 7, 1, 20][n as usize % 4]);
        block_on(handle.append(feed, batch)).unwrap();
        all.extend(prints);
    }
    (0..).zip(all).collect()
}

#[test]
fn fingerprints_from_log_and_pack_are_the_same() {
    let dir = scratch();
    let (engine, handle) = open(small(dir.path()));
    let all = filled(&handle, FEED, 60);
    let whole = ReadRequest::new(FEED);
    assert_eq!(prints(&handle, whole.clone()).unwrap(), all, "from the log");
    block_on(handle.seal(FEED, None, "")).unwrap();
    assert_eq!(
        prints(&handle, whole.clone()).unwrap(),
        all,
        "from the pack"
    );
    assert_eq!(expected(&handle, FEED), all);
    // Parts: from within a batch, to within a batch, in answers of a batch each.
    let last = all.len() as u64;
    for (from, end, bytes_max) in [
        (0, 1, 1),
        (3, 30, 1),
        (5, 6, 1 << 20),
        (last - 1, u64::MAX, 1),
    ] {
        let request = ReadRequest {
            from: ReadFrom::Sequence(from),
            end,
            bytes_max,
            ..whole.clone()
        };
        let wanted = &all[from as usize..end.min(last) as usize];
        assert_eq!(prints(&handle, request).unwrap(), wanted, "{from}..{end}");
    }
    // Pack and log in one answer.
    let (batch, more) = odd_batch(last, 9);
    block_on(handle.append(FEED, batch)).unwrap();
    let request = ReadRequest {
        bytes_max: 8 << 20,
        ..whole
    };
    let both: Vec<_> = all.into_iter().chain((last..).zip(more)).collect();
    assert_eq!(prints(&handle, request).unwrap(), both);
    close(engine);
}

#[test]
fn fingerprints_out_of_shared_packs_are_the_same() {
    let dir = scratch();
    let (engine, handle) = open(small(dir.path()));
    let quiet: BTreeMap<_, _> = (0..6)
        .map(|n| format!("quiet/{n}"))
        .map(|feed| (feed.clone(), filled(&handle, &feed, 3)))
        .collect();
    let loud = filled(&handle, "loud", 250);
    let packed = |feed: &str| {
        let streams = block_on(handle.list_streams(feed, StreamId(0), 10)).unwrap();
        (streams[0].packed_end, streams[0].end)
    };
    while quiet.keys().any(|feed| packed(feed).0 < packed(feed).1) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut objects = files(dir.path()).into_iter();
    assert!(objects.any(|file| file.starts_with("bucket/shared")));
    for (feed, all) in &quiet {
        assert_eq!(
            &prints(&handle, ReadRequest::new(feed)).unwrap(),
            all,
            "{feed}"
        );
    }
    assert_eq!(prints(&handle, ReadRequest::new("loud")).unwrap(), loud);
    close(engine);
}

/// The one pack of a closed store, and where its columns lie.
fn pack(dir: &Path) -> (PathBuf, String, PackIndex) {
    let all = files(&dir.join("bucket")).into_iter();
    let mut packs = all.filter(|file| file.to_string_lossy().ends_with(".pack"));
    let (key, None) = (packs.next().unwrap(), packs.next()) else {
        panic!("more than one pack")
    };
    let path = dir.join("bucket").join(&key);
    let bytes = std::fs::read(&path).unwrap();
    let footer = PackFooter::decode(&bytes, bytes.len() as u64).unwrap();
    let parts = footer.index_range().start as usize..footer.index_range().end as usize;
    let index = PackIndex::decode(&footer, &bytes[parts]).unwrap();
    (path, key.to_string_lossy().into_owned(), index)
}

fn corrupt(error: &Error) -> (&str, u64) {
    match error {
        Error::Corrupt { file, offset, .. } => (file, *offset),
        other => panic!("not corrupt: {other}"),
    }
}

#[test]
fn damaged_column_is_corrupt_to_who_asks_for_fingerprints_and_to_verify() {
    let dir = scratch();
    let config = small(dir.path());
    let (engine, handle) = open(config.clone());
    let all = filled(&handle, FEED, 12);
    block_on(handle.seal(FEED, None, "")).unwrap();
    close(engine);
    let (path, key, index) = pack(dir.path());
    let whole = std::fs::read(&path).unwrap();
    let row = index.blocks(&index.sections()[0])[0];
    let (start, end) = (row.column_range().start, row.column_range().end);
    assert_eq!(end - start, 16 + 32 * all.len() as u64);
    let offsets = [start, start + 4, start + 9, start + 12, start + 16, end - 1];
    for at in offsets {
        let mut damaged = whole.clone();
        damaged[at as usize] ^= 4;
        std::fs::write(&path, damaged).unwrap();
        let error = verify(&config, &mut |_| {}).unwrap_err();
        let entry = at.checked_sub(start + 16).map(|n| start + 16 + n / 32 * 32);
        assert_eq!(
            corrupt(&error),
            (&key[..], entry.unwrap_or(start)),
            "{error}"
        );
        let (engine, handle) = open(config.clone());
        let error = prints(&handle, ReadRequest::new(FEED)).unwrap_err();
        assert_eq!(corrupt(&error), (&key[..], start), "{error}");
        assert_eq!(expected(&handle, FEED), all, "the records are whole");
        close(engine);
    }
    // An entry changed under a valid checksum: what a pack answers is what its column says.
    let (mut forged, record) = (whole.clone(), 1);
    assert!(all[record].0 == 1 && record % 3 != 0, "not supplied");
    let entry = start as usize + 16 + 32 * record;
    forged[entry..entry + 32].fill(0xee);
    let column = &mut forged[start as usize..end as usize];
    column[8..12].fill(0);
    let crc = crc32c::crc32c(column);
    column[8..12].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, forged).unwrap();
    let (engine, handle) = open(config.clone());
    let found = prints(&handle, ReadRequest::new(FEED)).unwrap();
    assert_eq!(found[record], (1, [0xee; 32]));
    assert_eq!((&found[..1], &found[2..]), (&all[..1], &all[2..]));
    close(engine);
    let error = verify(&config, &mut |_| {}).unwrap_err();
    assert_eq!(corrupt(&error), (&key[..], entry as u64), "{error}");
    std::fs::write(&path, whole).unwrap();
    verify(&config, &mut |_| {}).unwrap();
}

#[test]
fn block_in_the_place_of_another_is_corrupt_not_skipped() {
    let dir = scratch();
    let mut config = small(dir.path());
    config.pack_bytes = 1 << 20;
    config.inflight_bytes_max = 8 << 20;
    let (engine, handle) = open(config.clone());
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    for n in 0..24 {
        common::put(&handle, FEED, &common::payload(n, 30_000));
    }
    block_on(handle.seal(FEED, None, "")).unwrap();
    close(engine);
    let (path, key, index) = pack(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let ranges: Vec<_> = index.blocks(&index.sections()[0])[..2]
        .iter()
        .map(|row| row.range().start as usize..row.range().end as usize)
        .collect();
    let (first, second) = (&ranges[0], &ranges[1]);
    assert_eq!(first.len(), second.len());
    let (front, back) = bytes.split_at_mut(second.start);
    front[first.clone()].swap_with_slice(&mut back[..first.len()]);
    std::fs::write(&path, bytes).unwrap();
    let (engine, handle) = open(config);
    let error = common::read(&handle, ReadRequest::new(FEED)).unwrap_err();
    assert_eq!(corrupt(&error), (&key[..], first.start as u64), "{error}");
    close(engine);
}
