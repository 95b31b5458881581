//! Cases of damage: flipped bits, newer formats, damaged derived files; nothing wrong is ever served.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::image::{self, GroupAt};
use common::{Dice, assert_holds, close, open, payload, put, quick, read, scale, small};
use futures_lite::future::block_on;
use sealog_engine::{Engine, EngineConfig, Error, FeedOptions, ReadFrom, ReadRequest};
use tempfile::TempDir;

const FEED: &str = "kept";

/// Nothing is packed and no checkpoint is due: everything stays in the log.
fn log_only(dir: &Path) -> EngineConfig {
    let mut config = small(dir);
    config.wal.disk_bytes_max = 64 << 20;
    config.wal.lane_start_bytes = 64 << 20;
    config.wal.checkpoint_bytes = 64 << 20;
    config
}

struct Store {
    dir: TempDir,
    payloads: Vec<Vec<u8>>,
}

/// At least `per_segment` commits in each of three full segments, and some in a fourth.
fn four_segments(len: usize, per_segment: usize) -> Store {
    let dir = quick();
    let (engine, handle) = open(log_only(dir.path()));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let mut payloads = Vec::new();
    let mut number = 0;
    loop {
        for _ in 0..20 {
            payloads.push(payload(number, len + (number % 7) as usize));
            put(&handle, FEED, payloads.last().unwrap());
            number += 1;
        }
        let groups = image::data_groups(dir.path(), 0);
        let newest = groups.last().unwrap().path.clone();
        let segments = image::segments(dir.path(), 0);
        let in_newest = groups.iter().filter(|group| group.path == newest).count();
        if segments.get(&3) == Some(&newest) && in_newest >= per_segment.min(60) {
            break;
        }
    }
    close(engine);
    for path in image::segments(dir.path(), 0).values().take(3) {
        let groups = image::data_groups(dir.path(), 0);
        assert!(groups.iter().filter(|group| &group.path == path).count() >= per_segment);
    }
    Store { dir, payloads }
}

/// Where to hit a group: each field class of its header, its entry, its frame, its payload.
const HITS: [(&str, u64); 7] = [
    ("magic", 3),
    ("header checksum", 13),
    ("offset", 32),
    ("body checksum", 53),
    ("durable end", 66),
    ("entry length", 129),
    ("payload", 2000),
];

/// Opens a damaged copy: it must be refused by name and place, and stay as it is.
fn refuses(dir: &Path, group: &GroupAt, about: &str) {
    let before = image::tree(dir);
    match Engine::open(log_only(dir)).err() {
        Some(Error::Corrupt { file, offset, .. }) => {
            assert_eq!(Path::new(&file), dir.join(relative(&group.path)), "{about}");
            assert_eq!(offset, group.position, "{about}");
        }
        other => panic!("{about}: {other:?}"),
    }
    assert!(image::tree(dir) == before, "{about}: something was changed");
}

/// `wal/<log>/<name>` of a segment file, wherever its store is.
fn relative(path: &Path) -> &Path {
    let store = path.ancestors().nth(3).unwrap();
    path.strip_prefix(store).unwrap()
}

#[test]
fn case_d03_flipped_bit_in_any_replayed_segment_is_refused() {
    let store = four_segments(5000, 100);
    let groups = image::data_groups(store.dir.path(), 0);
    let mut dice = Dice::new(3);
    for path in image::segments(store.dir.path(), 0).values() {
        let here: Vec<_> = groups.iter().filter(|group| group.path == *path).collect();
        let Some(newest) = here.len().checked_sub(2) else {
            continue;
        };
        for (round, (what, at)) in HITS.iter().enumerate() {
            // The first and the last but one of the file, and others in between.
            let index = match round {
                0 => 0,
                1 => newest,
                _ => dice.below(newest as u64) as usize,
            };
            let copy = image::image(store.dir.path());
            let target = copy.path().join(relative(path));
            image::flip_bit(&target, here[index].position + at, dice.next() as u8);
            refuses(
                copy.path(),
                here[index],
                &format!("{what} of group {index} of {path:?}"),
            );
        }
    }
}

/// A full verification must fail, naming the damaged file, and the place if one is given.
fn verify_names(dir: &Path, file: &Path, position: Option<u64>, about: &str) {
    match sealog_engine::verify(&log_only(dir), &mut |_| {}) {
        Err(Error::Corrupt {
            file: named,
            offset,
            ..
        }) => {
            // Objects of the bucket are named by their keys.
            assert!(file.ends_with(&named), "{about}: verify names {named}");
            assert!(
                position.is_none_or(|at| at == offset),
                "{about}: verify says {offset}"
            );
        }
        // A flip in a version field reads as a newer format, of the same file.
        Err(Error::NewerFormat { file: named, .. }) => {
            assert!(file.ends_with(&named), "{about}: verify names {named}");
        }
        other => panic!("{about}: verify says {other:?}"),
    }
}

/// Reads every record by itself: right, or an explicit error; answers the sequences that failed.
fn read_each(dir: &Path, config: fn(&Path) -> EngineConfig, payloads: &[Vec<u8>]) -> Vec<u64> {
    let (engine, handle) = open(config(dir));
    let info = block_on(handle.feed(FEED)).unwrap();
    assert_eq!(
        info.next_sequence,
        payloads.len() as u64,
        "the tail went down"
    );
    let mut failed = Vec::new();
    for (sequence, payload) in (0u64..).zip(payloads) {
        let mut request = ReadRequest::new(FEED);
        request.from = ReadFrom::Sequence(sequence);
        request.end = sequence + 1;
        match read(&handle, request) {
            Ok(records) => {
                let found: Vec<_> = records.iter().map(|(s, b)| (*s, b.as_slice())).collect();
                assert!(
                    found == [(sequence, payload.as_slice())],
                    "wrong bytes at {sequence}"
                );
            }
            Err(Error::Corrupt { .. } | Error::NewerFormat { .. }) => failed.push(sequence),
            Err(other) => panic!("{sequence}: {other}"),
        }
    }
    close(engine);
    failed
}

#[test]
fn case_d03_flipped_bit_behind_the_checkpoint_harms_its_record_alone() {
    let store = four_segments(5000, 100);
    // Opening takes a checkpoint at the end: nothing of this is replayed any more.
    close(open(log_only(store.dir.path())).0);
    let groups = image::data_groups(store.dir.path(), 0);
    let mut dice = Dice::new(4);
    for (number, path) in image::segments(store.dir.path(), 0) {
        let here: Vec<_> = groups.iter().filter(|group| group.path == path).collect();
        for (round, (what, at)) in (0..).zip(&HITS) {
            // Scaled down: every kind of hit, but not in every segment.
            if here.len() < 3 || (!common::long() && round % 3 != number % 3) {
                continue;
            }
            let index = 1 + dice.below(here.len() as u64 - 2) as usize;
            let copy = image::image(store.dir.path());
            let target = copy.path().join(relative(&path));
            image::flip_bit(&target, here[index].position + at, dice.next() as u8);
            let about = format!("{what} of group {index} of {path:?}");
            verify_names(copy.path(), &target, Some(here[index].position), &about);
            let failed = read_each(copy.path(), log_only, &store.payloads);
            assert_eq!(failed.len(), 1, "{about}: {failed:?}");
        }
    }
}

/// A whole group for log offset `offset` that says that record `sequence` of the feed is `bytes`.
fn forged(like: &GroupAt, offset: u64, sequence: u64, bytes: &[u8]) -> Vec<u8> {
    use sealog_engine::wal::{entry, group};
    let template = like.bytes();
    let entry = entry::Entries::new(&template[128..])
        .next()
        .unwrap()
        .unwrap();
    let mut frame = common::batch(&[bytes]).into_bytes();
    let view = sealog_frame::FrameView::trusted(entry.frame().unwrap()).unwrap();
    let mut stamp = view.server_stamp();
    stamp.base_sequence = sequence;
    sealog_frame::stamp(&mut frame, &stamp);
    let mut buf = sealog_engine::env::AlignedBuf::zeroed(128);
    entry::put_batch(&mut buf, entry.feed, entry.stream, &frame);
    let seal = group::GroupSeal {
        flags: 0,
        log: like.header.log,
        incarnation: like.header.incarnation,
        offset,
        entries: 1,
        predecessor: like.header.predecessor,
        durable_end: like.header.durable_end,
    };
    group::seal_group(&mut buf, &seal);
    buf.to_vec()
}

/// Appends a record whose payload holds a forged group on a block of its own, at the very place where
/// it would be believed; answers the group that holds it, or `None` if the place was guessed wrong.
fn append_forgery(dir: &Path, payloads: &mut Vec<Vec<u8>>) -> Option<GroupAt> {
    let (engine, handle) = open(log_only(dir));
    for _ in 0..3 {
        payloads.push(payload(payloads.len() as u64, 3000));
        put(&handle, FEED, payloads.last().unwrap());
    }
    let last = image::groups(dir, 0).pop().unwrap();
    let place = last.header.end();
    let sequence = payloads.len() as u64;
    let mut bytes = payload(sequence, 12_000);
    let batch = common::batch(&[&bytes]);
    let start = batch
        .as_bytes()
        .windows(32)
        .position(|w| w == &bytes[..32])
        .unwrap();
    // Group header, entry header, frame up to the payload; then to the next block.
    let at = 4096 - (128 + 24 + start);
    let forgery = forged(
        &image::data_groups(dir, 0)[2],
        place + 4096,
        sequence,
        b"forged",
    );
    bytes[at..at + forgery.len()].copy_from_slice(&forgery);
    payloads.push(bytes);
    put(&handle, FEED, payloads.last().unwrap());
    payloads.push(payload(sequence + 1, 3000));
    put(&handle, FEED, payloads.last().unwrap());
    close(engine);
    let found = image::groups(dir, 0)
        .into_iter()
        .find(|group| group.header.offset == place)?;
    let planted = image::read_at(&found.path, found.position + 4096, forgery.len());
    (planted == forgery).then_some(found)
}

#[test]
fn case_d03_payload_that_looks_like_a_group_is_never_taken_for_one() {
    let dir = quick();
    let (engine, handle) = open(log_only(dir.path()));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    close(engine);
    let mut payloads = Vec::new();
    let holder = (0..10).find_map(|_| append_forgery(dir.path(), &mut payloads));
    let holder = holder.expect("the place was guessed wrong ten times");
    let holder_sequence = payloads.len() as u64 - 2;
    // A checkpoint at the end: the damage is found by reads alone.
    close(open(log_only(dir.path())).0);
    for (what, at) in HITS {
        let copy = image::image(dir.path());
        let target = copy.path().join(relative(&holder.path));
        image::flip_bit(&target, holder.position + at, 5);
        let failed = read_each(copy.path(), log_only, &payloads);
        assert_eq!(failed, [holder_sequence], "{what}");
    }
}

/// A feed with three published commits, each of one or more packs, and some records in the log.
fn published() -> Store {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    let keyed = FeedOptions {
        keys: true,
        ..FeedOptions::default()
    };
    block_on(handle.create_feed(FEED, keyed)).unwrap();
    let mut payloads = Vec::new();
    for _ in 0..3 {
        for _ in 0..20 {
            let number = payloads.len() as u64;
            payloads.push(payload(number, 20_000));
            put_keyed(&handle, number, payloads.last().unwrap());
        }
        block_on(handle.seal(FEED, None, "sealed")).unwrap();
    }
    payloads.push(payload(payloads.len() as u64, 100));
    put(&handle, FEED, payloads.last().unwrap());
    close(engine);
    Store { dir, payloads }
}

fn put_keyed(handle: &sealog_engine::Handle<sealog_engine::ProductionEnv>, n: u64, bytes: &[u8]) {
    let mut builder = sealog_frame::BatchBuilder::default();
    let key = (n % 5).to_le_bytes();
    builder
        .push(&sealog_frame::Record::keyed(&key, 0, bytes))
        .unwrap();
    block_on(handle.append(FEED, builder.build().unwrap())).unwrap();
}

#[test]
fn case_d03_flipped_bit_in_any_bucket_object_is_never_served() {
    let store = published();
    let objects = image::files(&store.dir.path().join("bucket"), |name| {
        [".pack", ".manifest", ".commit"]
            .iter()
            .any(|end| name.ends_with(end))
    });
    assert!(objects.len() >= 9, "{objects:?}");
    let mut dice = Dice::new(5);
    let mut harmed = 0;
    for object in &objects {
        let len = std::fs::metadata(object).unwrap().len();
        for round in 0..scale(4, 200) {
            // Header, end and anywhere.
            let at = match round {
                0 => dice.below(16),
                1 => len - 1 - dice.below(128.min(len)),
                _ => dice.below(len),
            };
            let copy = image::image(store.dir.path());
            let target = copy
                .path()
                .join(object.strip_prefix(store.dir.path()).unwrap());
            image::flip_bit(&target, at, dice.next() as u8);
            verify_names(
                copy.path(),
                &target,
                None,
                &format!("byte {at} of {object:?}"),
            );
            harmed += read_each(copy.path(), small, &store.payloads).len();
        }
    }
    assert!(harmed > 0, "no flip was noticed by any read");
}

#[test]
fn case_r03_newest_checkpoint_damaged_the_older_one_serves() {
    let store = four_segments(3000, 100);
    close(open(log_only(store.dir.path())).0);
    let roots = image::files(store.dir.path(), |name| name.contains("/root-"));
    let newest = roots
        .last()
        .unwrap()
        .strip_prefix(store.dir.path())
        .unwrap();
    assert!(roots.len() == 2, "{roots:?}");
    for damage in DAMAGES {
        let copy = image::image(store.dir.path());
        damage_file(&copy.path().join(newest), damage);
        for _ in 0..2 {
            let (engine, handle) = open(log_only(copy.path()));
            assert_holds(&handle, FEED, &store.payloads, damage);
            close(engine);
        }
    }
}

const DAMAGES: [&str; 5] = ["deleted", "truncated", "emptied", "zeroed", "flipped"];

fn damage_file(path: &Path, damage: &str) {
    let len = std::fs::metadata(path).unwrap().len();
    match damage {
        "deleted" => std::fs::remove_file(path).unwrap(),
        "truncated" => image::set_len(path, len / 2),
        "emptied" => image::set_len(path, 0),
        "zeroed" => image::write_at(path, 0, &vec![0; len as usize]),
        _ => image::flip_bit(path, len / 2, 3),
    }
}

#[test]
fn case_r03_leftovers_and_derived_files_damaged_state_intact() {
    let store = published();
    // What a crash leaves in the making, what other processes left, and what can be made anew.
    let leftovers = [
        "format.tmp",
        "checkpoint/0/root-00000000000000ff.tmp",
        "checkpoint/0/chunk-00000000000000-00000000000000ff",
        "checkpoint/0/chunk-00000000000000-00000000000000ff.tmp",
        "wal/0/00000999.seg",
        "wal/0/notes.txt",
        "bucket/.tmp/left-behind",
    ];
    for bytes in [Vec::new(), vec![0; 5000], Dice::new(6).bytes(3000)] {
        let copy = image::image(store.dir.path());
        for name in leftovers {
            let path = copy.path().join(name);
            if path.parent().unwrap().exists() {
                std::fs::write(path, &bytes).unwrap();
            }
        }
        still_whole(
            copy.path(),
            &store.payloads,
            &format!("leftovers of {} bytes", bytes.len()),
        );
    }
    let spares = spare_segments(store.dir.path());
    assert!(!spares.is_empty(), "no segment was prepared ahead");
    let derived = ["LOCK", "bucket/.tmp/OPEN", "bucket/.tmp/CAS"].map(Into::into);
    for name in spares.into_iter().chain(derived) {
        for damage in DAMAGES {
            let copy = image::image(store.dir.path());
            let path = copy.path().join(&name);
            if path.exists() && std::fs::metadata(&path).unwrap().len() > 0 {
                damage_file(&path, damage);
                still_whole(copy.path(), &store.payloads, &format!("{name} {damage}"));
            }
        }
    }
}

/// Segment files behind the log's end: prepared ahead, or recycled.
fn spare_segments(dir: &Path) -> Vec<String> {
    let used: Vec<_> = image::groups(dir, 0)
        .into_iter()
        .map(|group| group.path)
        .collect();
    let all = image::files(dir, |name| name.ends_with(".seg"));
    let spare = all.into_iter().filter(|path| !used.contains(path));
    spare
        .map(|path| {
            path.strip_prefix(dir)
                .unwrap()
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

/// Opens, holds everything, takes enough more to go through the spare segments, holds that too.
fn still_whole(dir: &Path, payloads: &[Vec<u8>], about: &str) {
    let mut payloads = payloads.to_vec();
    let (engine, handle) = open(small(dir));
    assert_holds(&handle, FEED, &payloads, about);
    for _ in 0..60 {
        payloads.push(payload(payloads.len() as u64, 50_000));
        put(&handle, FEED, payloads.last().unwrap());
    }
    close(engine);
    for _ in 0..2 {
        let (engine, handle) = open(small(dir));
        assert_holds(&handle, FEED, &payloads, about);
        close(engine);
    }
}
