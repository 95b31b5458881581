//! One changed byte: verification names the file it is in, or it changes nothing at all (VERIFY-1, VERIFY-2).
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/store.rs"]
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::{batch, close, open, scratch};
use futures_lite::future::block_on;
use sealog_engine::pack::{PackFooter, PackIndex};
use sealog_engine::wal::group::GroupHeader;
use sealog_engine::wal::segment::SegmentHeader;
use sealog_engine::{EngineConfig, Error, VerifyReport, verify};
use store::{copy, everything, files, fill, tiny};

const BLOCK: u64 = 4096;

fn check(config: &EngineConfig) -> Result<VerifyReport, Error> {
    verify(config, &mut |_| {})
}

/// Flips a bit of one byte; the same call flips it back.
fn flip(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0] ^= 1 << (offset % 8);
    file.write_all_at(&byte, offset).unwrap();
}

/// A segment file as it lies there: its number and its groups that follow each other.
struct Segment {
    file: PathBuf,
    bytes: u64,
    number: u64,
    groups: Vec<(u64, GroupHeader)>,
}

fn segments(dir: &Path) -> Vec<Segment> {
    let wal = files(dir).into_iter().filter(|f| f.starts_with("wal"));
    wal.filter_map(|file| {
        let content = std::fs::read(dir.join(&file)).unwrap();
        let header = SegmentHeader::decode(&content).ok()?;
        let base = header.number * header.segment_bytes;
        let (mut at, mut groups) = (BLOCK, Vec::new());
        while let Some(rest) = content.get(at as usize..)
            && let Ok(group) = GroupHeader::decode(rest)
            && group.offset == base + at
        {
            groups.push((at, group));
            at += u64::from(group.group_bytes);
        }
        Some(Segment {
            file,
            bytes: content.len() as u64,
            number: header.number,
            groups,
        })
    })
    .collect()
}

/// What may be flipped where: `seen` must be noticed, `unseen` must change nothing.
#[derive(Default)]
struct Places {
    seen: Vec<(PathBuf, u64)>,
    unseen: Vec<(PathBuf, u64)>,
}

fn log_places(dir: &Path, report: &VerifyReport) -> Places {
    let log = report.logs[0];
    let mut all = segments(dir);
    all.sort_by_key(|segment| segment.number);
    let current = log.end / all[0].bytes;
    let live_from = current + 1 - log.segments;
    let known: BTreeSet<_> = all.iter().map(|segment| segment.file.clone()).collect();
    let mut places = Places::default();
    for segment in &all {
        let mut put = |offset: u64, seen: bool| {
            let to = if seen {
                &mut places.seen
            } else {
                &mut places.unseen
            };
            to.push((segment.file.clone(), offset));
        };
        let live = (live_from..=current).contains(&segment.number);
        for offset in [0, 8, 10, 12, 16, 24, 32, 40, 48, 4095] {
            put(offset, live);
        }
        let every = segment.groups.len() / 3 + 1;
        let mut used = BLOCK;
        for (n, (at, group)) in segment.groups.iter().enumerate() {
            let proven = live && group.end() <= log.proven_end;
            let len = u64::from(group.group_bytes);
            if group.end() <= log.end {
                used = used.max(at + len);
            }
            if n % every != 0 && n + 1 != segment.groups.len() {
                continue;
            }
            let header = [0, 8, 10, 12, 16, 24, 32, 40, 52, 56, 64, 127];
            let body_end = 128 + u64::from(group.body_bytes);
            let body = [128, 130, 140, 128 + u64::from(group.body_bytes) / 2];
            let tail = [body_end - 1, body_end, len - 1];
            let inside = header
                .iter()
                .chain(&body)
                .chain(&tail)
                .filter(|o| **o < len);
            for offset in inside {
                if proven || !live {
                    put(at + offset, proven);
                }
            }
        }
        let unused_from = if live { used } else { BLOCK };
        for offset in [
            unused_from,
            (unused_from + segment.bytes) / 2,
            segment.bytes - 1,
        ] {
            if offset >= unused_from && offset < segment.bytes {
                put(offset, false);
            }
        }
    }
    let claims = files(dir)
        .into_iter()
        .filter(|f| f.to_string_lossy().contains("reserve"));
    places.unseen.extend(claims.map(|file| (file, 100)));
    // Files that were prepared, or failed to be, and hold no segment.
    let spare = files(dir).into_iter().filter(|f| f.starts_with("wal"));
    for file in spare.filter(|f| !known.contains(f)) {
        places.unseen.extend([0, 5000].map(|at| (file.clone(), at)));
    }
    places
}

/// Offsets over all of a file: densely for the first of its kind, sparsely for others.
fn spread(len: u64, dense: bool) -> BTreeSet<u64> {
    let count = if dense { 16 } else { 3 };
    let head = if dense { 10 } else { 0 };
    let even = (0..count).map(|n| n * (len - 1) / (count - 1));
    let ends = (0..head).chain(len.saturating_sub(head)..len);
    even.chain(ends).filter(|at| *at < len).collect()
}

/// Offsets in the first and the last column of a pack: every field of the header, and some of the digests.
fn column_offsets(pack: &Path) -> Vec<u64> {
    let bytes = std::fs::read(pack).unwrap();
    let footer = PackFooter::decode(&bytes, bytes.len() as u64).unwrap();
    let parts = footer.index_range().start as usize..footer.index_range().end as usize;
    let index = PackIndex::decode(&footer, &bytes[parts]).unwrap();
    let sections = index.sections().iter();
    let rows = sections.flat_map(|section| index.blocks(section));
    let columns: Vec<_> = rows.map(|row| row.column_range()).collect();
    let ends = [columns[0].clone(), columns[columns.len() - 1].clone()];
    let offsets = ends.into_iter().flat_map(|Range { start, end }| {
        let fields = [0, 4, 8, 12, 16, 31].map(|at| start + at);
        fields.into_iter().chain([(start + end) / 2, end - 1])
    });
    offsets.collect()
}

fn file_places(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut seen_kinds: BTreeMap<String, u32> = BTreeMap::new();
    let mut places = Vec::new();
    for file in files(dir) {
        let name = file.to_string_lossy().into_owned();
        let skip = name.starts_with("wal/") || name == "LOCK" || name.starts_with("bucket/.tmp/");
        // Space claimed ahead: its content is nothing.
        let skip = skip || name.contains("reserve");
        let len = std::fs::metadata(dir.join(&file)).unwrap().len();
        if skip || len == 0 {
            continue;
        }
        let base = file.file_name().unwrap().to_string_lossy();
        let kind = match base.rsplit_once('.') {
            Some((_, extension)) if name.starts_with("bucket/shared") => {
                format!("shared {extension}")
            }
            Some((_, extension)) => extension.to_owned(),
            None => base.split('-').next().unwrap().to_owned(),
        };
        let count = seen_kinds.entry(kind).or_default();
        *count += 1;
        let mut offsets = spread(len, *count == 1);
        if name.ends_with(".pack") && *count == 1 {
            offsets.extend(column_offsets(&dir.join(&file)));
        }
        places.extend(offsets.into_iter().map(|at| (file.clone(), at)));
    }
    let kinds: Vec<_> = seen_kinds.keys().map(String::as_str).collect();
    let expected = [
        "chunk",
        "commit",
        "format",
        "json",
        "keys",
        "manifest",
        "pack",
        "root",
        "shared pack",
    ];
    assert_eq!(kinds, expected, "the store holds every kind of file");
    places
}

/// The file an error names, and the offset if it gives one.
fn named(error: &Error) -> (String, u64) {
    match error {
        Error::Corrupt { file, offset, .. } => (file.clone(), *offset),
        Error::NewerFormat { file, .. } => (file.clone(), 0),
        other => panic!("neither corrupt nor newer: {other}"),
    }
}

fn must_be_seen(config: &EngineConfig, places: &[(PathBuf, u64)]) {
    let dir = &config.data_dir;
    let mut missed = Vec::new();
    for (file, offset) in places {
        let path = dir.join(file);
        flip(&path, *offset);
        let outcome = check(config);
        flip(&path, *offset);
        let name = file.to_string_lossy();
        let key = name.strip_prefix("bucket/").unwrap_or(&name);
        match outcome {
            Ok(_) => missed.push(format!("{name} at {offset}: not noticed")),
            Err(error) => {
                let (found, at) = named(&error);
                if !found.ends_with(key) || at > *offset {
                    missed.push(format!("{name} at {offset}: {error}"));
                }
            }
        }
    }
    let (count, all) = (missed.len(), places.len());
    assert!(
        missed.is_empty(),
        "{count} of {all}:\n{}",
        missed.join("\n")
    );
}

#[test]
fn verify_any_flipped_byte_is_named_or_harmless() {
    let dir = scratch();
    let config = tiny(dir.path());
    fill(&config);
    let whole = check(&config).unwrap();
    let log = whole.logs[0];
    assert!(log.clean && log.segments >= 2, "{whole:?}");
    assert!(
        whole.commits >= 4 && whole.packs >= 5 && whole.key_indexes >= 2,
        "{whole:?}"
    );
    let places = log_places(dir.path(), &whole);
    must_be_seen(&config, &places.seen);
    must_be_seen(&config, &file_places(dir.path()));
    assert_eq!(check(&config).unwrap(), whole, "every flip was undone");

    let before = everything(&config);
    let copied = scratch();
    copy(dir.path(), copied.path());
    let config = tiny(copied.path());
    let whole = check(&config).unwrap();
    let places = log_places(copied.path(), &whole);
    assert!(places.unseen.len() > 30);
    for (file, offset) in &places.unseen {
        flip(&copied.path().join(file), *offset);
        let checked = check(&config).unwrap();
        assert_eq!(checked, whole, "{} at {offset}", file.display());
    }
    assert_eq!(everything(&config), before);
}

/// What a crash of this moment leaves: a copy during which no file changed, as none may between them.
fn crashed(dir: &Path) -> tempfile::TempDir {
    let contents = || -> Vec<_> {
        let kept = files(dir).into_iter();
        let kept = kept.filter(|file| !file.starts_with("bucket/.tmp"));
        kept.map(|file| (std::fs::read(dir.join(&file)).ok(), file))
            .collect()
    };
    loop {
        let before = contents();
        std::thread::sleep(std::time::Duration::from_millis(500));
        let copied = scratch();
        copy(dir, copied.path());
        if contents() == before {
            return copied;
        }
    }
}

#[test]
fn verify_after_a_crash_passes_and_tells_what_is_proven() {
    let dir = scratch();
    let config = tiny(dir.path());
    fill(&config);
    let (engine, handle) = open(config.clone());
    for i in 0..50u64 {
        block_on(handle.append("plain", batch(&[&i.to_le_bytes()]))).unwrap();
    }
    let crashed = crashed(dir.path());
    close(engine);
    let report = check(&tiny(crashed.path())).unwrap();
    assert!(!report.logs[0].clean);
    // An idle log proves itself with a marker after a second: that may have been before the copy.
    assert!(report.logs[0].proven_end > 0);
    assert!(report.logs[0].proven_end <= report.logs[0].end);
    let all = everything(&tiny(crashed.path()));
    assert_eq!(all["plain"].last().unwrap().1, 49u64.to_le_bytes());
}

#[test]
fn verify_of_what_is_no_data_directory_is_refused() {
    let dir = scratch();
    let config = tiny(dir.path());
    assert!(matches!(check(&config), Err(Error::Unusable(_))));
    std::fs::create_dir(dir.path().join("bucket")).unwrap();
    assert!(matches!(check(&config), Err(Error::Unusable(_))));
    let missing = tiny(&dir.path().join("nothing"));
    assert!(matches!(check(&missing), Err(Error::Unusable(_))));
    let (engine, _) = open(config.clone());
    assert!(matches!(check(&config), Err(Error::Unusable(_))), "locked");
    close(engine);
    check(&config).unwrap();
}

#[test]
fn verify_missing_object_is_named() {
    let dir = scratch();
    let config = tiny(dir.path());
    fill(&config);
    for suffix in [".commit", ".manifest", ".pack", ".keys", "feed.json"] {
        let mut all = files(&dir.path().join("bucket")).into_iter();
        let object = all.find(|f| f.to_string_lossy().ends_with(suffix)).unwrap();
        let path = dir.path().join("bucket").join(&object);
        let aside = dir.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        let error = check(&config).unwrap_err();
        assert_eq!(named(&error).0, object.to_string_lossy(), "{error}");
        std::fs::rename(&aside, &path).unwrap();
    }
    check(&config).unwrap();
}
